"""What services share: the pure core, the job file reader, the bus shell, the simulated world."""
