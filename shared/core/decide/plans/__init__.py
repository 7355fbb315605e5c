"""Plans to facts: verify them against the newest state, cut what has no room."""
