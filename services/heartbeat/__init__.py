"""Notices which nodes have fallen silent."""
