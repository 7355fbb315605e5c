"""Fleets that are not there: what simulated nodes are, and how long what they run lives."""
