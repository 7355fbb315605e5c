"""The endpoints, one family a module; each module has its `ENDPOINTS`, in the order of table.py."""
