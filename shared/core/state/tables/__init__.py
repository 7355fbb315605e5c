"""The tables of the state, one family a file; each applies the facts it cares about and knows no other table.

What is hashed leaves out defaults: a field that a later release adds is at its default in every row an older release
wrote, and so an old log's checkpoints still hold (tests/golden/logs).
"""
