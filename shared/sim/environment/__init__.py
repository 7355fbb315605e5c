"""The environment of roles in the simulated world: bus, stores, processes, nodes, message faults, submitters."""
