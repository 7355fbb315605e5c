"""Identities of tasks: signed tokens that the keeper gives to a node for what it runs."""
