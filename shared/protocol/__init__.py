"""What a client of the bus must know: subjects, names, and which of them belong together."""
