"""The engine: real roles in virtual time, without faults, fast enough for days of a cluster in one process.

Reading order: run_setup.py (what a run is made of), service_times.py, engine_role.py (one role), shared_replica.py (one
state read by several roles), simulated_nodes.py, heartbeat_suppression.py, cluster.py, engine.py.
"""
