"""Shared by all commands: clients of the bus, contexts, output, terminal."""
