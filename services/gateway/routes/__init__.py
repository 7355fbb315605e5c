"""The endpoints, one family a module; each module has its `ROUTES`."""
