"""Nomad's JSON, made from the state: pure functions without HTTP."""
