"""Snapshots: the state at one checkpoint as bytes, so that a reader need not begin at the log's first record.

A snapshot is never the truth: the log's own checkpoint proves it, or it is passed over. Order of reading:
`kinds.py` (how values become bytes), `entries.py` (which are decoded when looked at), `shapes.py` (what tables
consist of), `sets.py` (a whole set, its manifest, its proof).
"""
