"""The shell that drives a role on NATS: inputs, effects, timers, leadership, tapes."""
