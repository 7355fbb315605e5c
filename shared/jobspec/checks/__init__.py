"""Validation of a job: what is refused, with path and reason."""
