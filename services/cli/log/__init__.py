"""The commands `caravan log …`, `replay` and `dead`."""
