"""How times, sizes and events are written for people. Reads the time zone, decides nothing."""
