"""Answers requests about tasks on this node: logs, files, stats, exec (subjects `hands.*`)."""
