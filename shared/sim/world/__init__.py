"""The simulated world of one seed, its fault injector, and planted bugs."""
