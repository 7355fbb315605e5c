"""How good a node is for a group: integer scores as vectors over the fleet."""
