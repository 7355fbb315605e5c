"""Detects nodes that no longer send heartbeats."""
