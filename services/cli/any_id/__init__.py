"""The command that finds the object with an id."""
