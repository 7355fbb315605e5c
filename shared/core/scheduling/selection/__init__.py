"""Which nodes a count is placed on: the best scores first, equal to scalar greedy."""
