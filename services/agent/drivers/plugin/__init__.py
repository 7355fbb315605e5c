"""Drivers that are programs of the node's operator."""
