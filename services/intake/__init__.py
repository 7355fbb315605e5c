"""Turns submissions into commands, and answers with the verdict."""
