"""The commands `caravan node …`."""
