"""The shell on NATS: it moves messages and knows nothing of what they mean."""
