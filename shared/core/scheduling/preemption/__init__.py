"""Which allocations make room for a job of higher priority."""
