"""FastStream inside the gateway: what it hears on the bus, and the description of all subjects."""
