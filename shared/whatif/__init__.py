"""What if: a recorded log forked at a moment, run on otherwise, and compared. Next: `script.py`."""
