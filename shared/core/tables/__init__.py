"""The tables of the state, one family a file; each applies the facts it cares about and knows no other table."""
