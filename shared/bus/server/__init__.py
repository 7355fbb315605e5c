"""The embedded NATS server and its accounts."""
