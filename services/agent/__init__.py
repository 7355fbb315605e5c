"""Runs on a node: starts, watches and reports tasks."""
