"""The command that finds what an id is of."""
