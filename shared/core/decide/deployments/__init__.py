"""Deployments and rollouts: how they begin, continue and end, by requests and by themselves."""
