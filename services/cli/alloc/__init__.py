"""The commands `caravan alloc …`."""
