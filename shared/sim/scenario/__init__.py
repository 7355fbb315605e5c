"""Scenarios: a whole cluster and its days in one file, and what came of it.

Read in this order: `form.py` (what a file says), `reading.py` (and what is wrong with it), `traces.py` (other people's
formats), `arrivals.py` (jobs as they come), `faults.py`, `play.py` (the run), `ledger.py` (what is noted), `report.py`
(what it comes to), `comparing.py`, `page.py` (drawn).
"""
