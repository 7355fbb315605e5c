"""The one writer of the log."""
