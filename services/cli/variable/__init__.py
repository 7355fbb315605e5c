"""Variables: `caravan var put`, `get`, `list`, `purge` and `init`."""
