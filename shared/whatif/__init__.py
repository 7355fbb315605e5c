"""What if: a recorded log forked at a moment, run forward under other circumstances, and compared. Next: `script.py`."""
