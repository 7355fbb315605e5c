"""The scheduler: from an evaluation and a snapshot to a plan. Begin with `place.py`."""
