"""The commands that open the console or ask the gateway."""
