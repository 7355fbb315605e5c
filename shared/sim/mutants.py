"""Planted bugs, by name."""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.sim.process import Site

MUTANTS: dict[str, object] = {}


@contextmanager
def planted(name: str, site: Site) -> Iterator[None]:
    """Plant nothing."""
    assert not name or name in MUTANTS, name
    del site
    yield
