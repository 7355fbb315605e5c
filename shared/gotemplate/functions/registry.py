"""Declares a function of templates: its name, the kinds of its parameters, and its body.

Kinds: `any`, `text`, `int`, `float`, `map`, `list`; one that ends in `…` takes all arguments that remain, and one that
ends in `?` takes nil, too, as an empty value of its kind.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

from shared.gotemplate.errors import TemplateError
from shared.gotemplate.values import UNDEFINED, Unsigned, Value, type_name

Body = Callable[..., Value]
_GO_KINDS: Final = {
    "text": "string",
    "int": "int",
    "float": "float64",
    "map": "map[string]interface {}",
    "list": "[]interface {}",
}


class TemplateFunction:
    """One function or method. The body gets the execution first."""

    def __init__(self, name: str, kinds: str, body: Body, *, is_light: bool = False) -> None:
        self.name = name
        #: whether its work does not grow with the lists and maps that it takes.
        self.is_light = is_light
        self.kinds = kinds.split()
        self.body = body
        self.rest = self.kinds.pop()[:-1] if kinds.endswith("…") else ""
        self.purpose = (inspect.getdoc(body) or "").split("\n")[0]

    @property
    def parameters(self) -> str:
        """The kinds of the parameters, as the documentation shows them."""
        return " ".join([*self.kinds, *([self.rest + "…"] if self.rest else [])])

    def check_count(self, count: int) -> None:
        """Raise TemplateError where the number of arguments is wrong."""
        least = len(self.kinds)
        if count < least or (count > least and not self.rest):
            wanted = f"at least {least}" if self.rest else str(least)
            raise TemplateError(
                f"wrong number of arguments for {self.name}: want {wanted}, got {count}"
            )

    def kind_at(self, at: int) -> str:
        """Name the kind of a parameter."""
        return self.kinds[at] if at < len(self.kinds) else self.rest

    def call(self, execution: Any, arguments: list[Value]) -> Value:
        """Call it with arguments that were checked. Raises TemplateError that names it."""
        try:
            return self.body(execution, *arguments)
        except TemplateError as fault:
            if fault.at < 0:
                fault.message = f"error calling {self.name}: {fault.message}"
            raise


def checked(value: Value, kind: str) -> Value:
    """Return a value as a parameter takes it. Raises TemplateError."""
    if kind == "any":
        return None if value is UNDEFINED else value
    if kind == "raw":
        return value
    if value is None or value is UNDEFINED:
        if kind.endswith("?"):
            return {} if kind == "map?" else []
        raise TemplateError(f"invalid value; expected {_GO_KINDS[kind]}")
    kind = kind.rstrip("?")
    if not _is_of_kind(value, kind):
        raise TemplateError(
            f"wrong type for value; expected {_GO_KINDS[kind]}; got {type_name(value)}"
        )
    return value


def _is_of_kind(value: Value, kind: str) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool | Unsigned)
    if kind == "float":
        return isinstance(value, float)
    return isinstance(value, dict if kind == "map" else list)


def constant_for(value: str | float, kind: str, source: str) -> Value:
    """Return a constant as an argument: a number takes the kind of its parameter. Raises TemplateError."""
    kind = kind.rstrip("?")
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind in {"any", "raw"} or _is_of_kind(value, kind):
        return value
    raise TemplateError(f"expected {_GO_KINDS[kind]}; found {source[:40]}")


#: name -> function, filled by the modules that declare them.
FUNCTIONS: dict[str, TemplateFunction] = {}


def template_function(name: str, kinds: str, *, is_light: bool = False) -> Callable[[Body], Body]:
    """Declare a function; its body gets the execution and the arguments."""

    def declare(body: Body) -> Body:
        FUNCTIONS[name] = TemplateFunction(name, kinds, body, is_light=is_light)
        return body

    return declare


def pure_function(name: str, kinds: str, *, is_light: bool = False) -> Callable[[Body], Body]:
    """Declare a function that needs its arguments alone."""

    def declare(body: Body) -> Body:
        purpose = (inspect.getdoc(body) or "").split("\n")[0]
        declare_pure(name, kinds, purpose, body, is_light=is_light)
        return body

    return declare


def declare_pure(
    name: str, kinds: str, purpose: str, body: Body, *, is_light: bool = False
) -> None:
    """Declare a function that needs its arguments alone, by a row of a table."""

    def without_execution(_execution: Any, *arguments: Value) -> Value:
        return body(*arguments)

    made = FUNCTIONS[name] = TemplateFunction(name, kinds, without_execution, is_light=is_light)
    made.purpose = purpose
