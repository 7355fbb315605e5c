"""The log on NATS."""
