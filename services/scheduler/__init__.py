"""Places one evaluation at a time on replayed state."""
