"""The command `caravan what-if`."""
