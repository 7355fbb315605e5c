"""The shell on NATS: it moves messages and does not interpret them."""
