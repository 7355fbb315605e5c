"""Performs what the agent's role decides: journal, directories, logs, processes."""
