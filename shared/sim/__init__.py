"""The other shell: one process, a virtual clock, one seed, every fault."""
