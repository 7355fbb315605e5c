"""Ephemeral disks that follow an allocation to another node."""
