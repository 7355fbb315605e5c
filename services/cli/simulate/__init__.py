"""The commands `caravan simulate`, `sim` and `fleet`."""
