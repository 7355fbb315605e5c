"""Streams, consumers and direct reads of JetStream."""
