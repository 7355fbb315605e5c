"""Variables: `caravan var put`, `get`, `list`, `purge`, `lock` and `init`."""
