"""The engine: the real roles in virtual time, calm and fast, for whole days of a cluster in one process.

Read in this order: `setup.py` (what a run is made of), `times.py` (how long things take), `recent.py` (records decoded
once), `actor.py` (one role and its inbox), `replicas.py` (one state that several roles read), `nodes.py` (simulated
nodes), `silence.py` (heartbeats that need not be sent), `engine.py` (all of it together).
"""
