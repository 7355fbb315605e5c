"""Drivers: each starts tasks of one kind. `driver.py` is the interface, one file a driver."""
