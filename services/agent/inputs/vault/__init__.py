"""Vault: tokens that tasks log in for with their identities, and secrets that templates and secret blocks read."""
