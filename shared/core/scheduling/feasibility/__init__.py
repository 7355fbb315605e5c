"""Which nodes may hold a group: constraints as masks over the fleet."""
