"""Nomad's job specification as Structs, and its defaults."""
