"""The commands `caravan operator …`."""
