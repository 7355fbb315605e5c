"""Nodes kept free for a waiting job, and what others may use of them meanwhile."""
