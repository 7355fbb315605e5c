"""Leases evaluations to scheduler workers, in order."""
