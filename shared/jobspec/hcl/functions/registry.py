"""Declares a function of job files: its name, its number of arguments, and its body.

The functions are in the modules beside this one; `catalog.py` lists them.
"""

import inspect
from collections.abc import Callable
from typing import Any

from shared.jobspec.hcl.errors import HclError
from shared.jobspec.hcl.values import Value


class Function:
    """One function that takes values."""

    def __init__(self, name: str, body: Callable[..., Value], *, needs_world: bool = False) -> None:
        self.name = name
        self._body = body
        self._needs_world = needs_world
        parameters = list(inspect.signature(body).parameters.values())[needs_world:]
        self._least = sum(
            one.default is one.empty and one.kind is not one.VAR_POSITIONAL for one in parameters
        )
        variadic = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        self._most = 10_000 if variadic else len(parameters)
        #: as shown in the documentation.
        self.parameters = ", ".join(
            f"{one.name}…" if one.kind is one.VAR_POSITIONAL else one.name for one in parameters
        )
        self.purpose = (inspect.getdoc(body) or "").split("\n")[0]

    def call(self, world: Any, arguments: list[Value]) -> Value:
        """Call it. Raises HclError that names it."""
        count = len(arguments)
        if not self._least <= count <= self._most:
            wanted = str(self._least)
            if self._most != self._least:
                wanted = (
                    f"{self._least} or more" if self._most > 100 else f"{wanted} to {self._most}"
                )
            raise HclError(f"{self.name}({self.parameters}) takes {wanted} arguments, was {count}")
        try:
            if self._needs_world:
                return self._body(world, *arguments)
            return self._body(*arguments)
        except HclError as fault:
            fault.message = f"{self.name}(): {fault.message}"
            raise


class LazyFunction:
    """A function that gets expressions, and the world, and decides itself which of them it works out."""

    def __init__(self, name: str, body: Callable[..., Value], parameters: str) -> None:
        self.name = name
        self.run = body
        self.parameters = parameters
        self.purpose = (inspect.getdoc(body) or "").split("\n")[0]


#: name -> function, filled by the modules that declare them.
FUNCTIONS: dict[str, Function | LazyFunction] = {}


def function(
    *names: str, needs_world: bool = False
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Declare a function under its names."""

    def declare(body: Callable[..., Value]) -> Callable[..., Value]:
        for name in names:
            FUNCTIONS[name] = Function(name, body, needs_world=needs_world)
        return body

    return declare
