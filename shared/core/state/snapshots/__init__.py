"""Snapshots: the state at one checkpoint as bytes, so that a reader need not begin at the log's first record.

A snapshot is never the truth: the log's own checkpoint proves it, or it is passed over. Order of reading:
`codecs.py` (how values become bytes), `lazy_entries.py` (entries decoded at their first access), `table_codecs.py`
(what tables consist of), `shared/core/runtime/snapshots.py` (a whole set, its manifest, its proof).
"""
