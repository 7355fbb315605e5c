"""The timekeeper: sends a command when a deadline is due."""
