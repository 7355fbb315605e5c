"""Thousands of simulated agents in one process: `caravan fleet`."""
