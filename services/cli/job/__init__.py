"""The commands `caravan job …`."""
