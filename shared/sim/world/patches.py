"""How a planted bug replaces a part of the product: mutants.py and agent_mutants.py use it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

#: Replaces an attribute of an object, module or class until the world ends.
Patch = Callable[[object, str, object], None]


def named(module: str, name: str) -> Any:
    """Return a class or function of a module, which is imported only now."""
    return getattr(import_module(module), name)
