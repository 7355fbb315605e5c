"""The commands `caravan sql` and `caravan job timeline` ask with."""
