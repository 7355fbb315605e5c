"""The SQL query behind `caravan sql` and `caravan job timeline`."""
