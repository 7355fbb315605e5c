"""The docker driver."""
