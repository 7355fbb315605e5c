"""Simulated fleets: node specs, task profiles, and the simulated allocations of many nodes."""
