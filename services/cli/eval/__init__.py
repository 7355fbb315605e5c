"""The commands `caravan eval …`, `why` and `why-not`."""
