"""The timekeeper: says that the time of something has come."""
