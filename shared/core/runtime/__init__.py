"""What roles and shells share: messages, the role protocol, the replica of the log, timers."""
