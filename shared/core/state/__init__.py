"""The state that the log replays to: tables, ids, and what must always hold of them."""
