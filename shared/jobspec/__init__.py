"""Job files: parsed, evaluated and checked without the bus."""
