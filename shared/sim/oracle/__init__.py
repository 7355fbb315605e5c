"""The oracle of the simulated world: reference model, invariants, lifecycle and convergence checks."""
