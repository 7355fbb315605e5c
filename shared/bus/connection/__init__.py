"""Connections to NATS."""
