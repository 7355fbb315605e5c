"""The commands that run a cluster on this machine: `up`, `demo`, `run`."""
