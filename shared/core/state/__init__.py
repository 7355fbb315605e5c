"""The state that the log replays to: tables, columns, ids, and what must always hold of them."""
