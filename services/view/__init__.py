"""Publishes last values of the state, and answers queries."""
