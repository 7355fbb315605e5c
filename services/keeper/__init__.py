"""The keeper: the only role whose process holds keys (ADR 31)."""
