"""All functions of job files: Nomad's, without those whose result depends on time, machine or chance.

Holds try() and can(), which evaluate their arguments themselves, and the functions that read files through the caller's
reader.
"""

from collections.abc import Callable, Mapping
from posixpath import basename, dirname
from typing import Protocol

from shared.jobspec.hcl.errors import HclError, HclLimitExceeded, did_you_mean
from shared.jobspec.hcl.functions import collections, encoding, numbers, text
from shared.jobspec.hcl.functions.registry import FUNCTIONS, Function, LazyFunction, function
from shared.jobspec.hcl.syntax.tree import Expression
from shared.jobspec.hcl.values import TEXT_MAX, Value, as_text

#: Importing them registers their functions.
FAMILIES = (collections, encoding, numbers, text)


class FunctionContext(Protocol):
    """The part of `evaluate.ExpressionContext` that functions use."""

    read_file: Callable[[str], bytes] | None
    seed: str
    drawn: int

    def value(self, node: Expression, names: Mapping[str, Value] = ...) -> Value:
        """Compute an expression."""


#: Functions of Nomad that are refused: name -> reason.
REFUSED_FUNCTIONS = {
    "bcrypt": "is not deterministic",
    "rsadecrypt": "would put a private key into a job file",
    "timeadd": "works on timestamps, which job files do not have",
    "formatdate": "works on timestamps, which job files do not have",
    "timestamp": "is not deterministic",
    "abspath": "would make the job depend on the machine that reads it",
    "pathexpand": "would make the job depend on the machine that reads it",
    "fileset": "would make the job depend on files in a directory",
}


def find_function(name: str) -> Function | LazyFunction:
    """Find a function. Raises HclError that names the nearest one."""
    found = FUNCTIONS.get(name)
    if found is not None:
        return found
    if name in REFUSED_FUNCTIONS:
        raise HclError(f"{name}() is not supported: it {REFUSED_FUNCTIONS[name]}")
    raise HclError(f"unknown function {name[:40]}(){did_you_mean(name, sorted(FUNCTIONS))}")


def _try(
    world: FunctionContext, arguments: tuple[Expression, ...], names: Mapping[str, Value]
) -> Value:
    """Return the first argument that evaluates without an error."""
    last = HclError("try() needs an argument")
    for one in arguments:
        try:
            return world.value(one, names)
        except HclLimitExceeded:
            raise
        except HclError as fault:
            last = fault
    raise last


def _can(
    world: FunctionContext, arguments: tuple[Expression, ...], names: Mapping[str, Value]
) -> Value:
    """Return whether the argument evaluates without an error."""
    if len(arguments) != 1:
        raise HclError("can(expression) takes 1 argument")
    try:
        world.value(arguments[0], names)
    except HclLimitExceeded:
        raise
    except HclError:
        return False
    return True


FUNCTIONS["try"] = LazyFunction("try", _try, "expression…")
FUNCTIONS["can"] = LazyFunction("can", _can, "expression")


def _bytes(world: FunctionContext, path: Value) -> bytes:
    reader = world.read_file
    name = as_text(path)
    if reader is None:
        raise HclError(f"{name[:80]!r} cannot be read: files are not available here")
    try:
        content = reader(name)
    except (OSError, ValueError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise HclError(f"{name[:80]!r} cannot be read: {reason}") from None
    if len(content) > TEXT_MAX:
        raise HclError(f"{name[:80]!r} has more than {TEXT_MAX} bytes")
    return content


@function("file", needs_world=True)
def _file(world: FunctionContext, path: Value) -> Value:
    """Return the text of a file beside the job file."""
    try:
        return _bytes(world, path).decode()
    except UnicodeDecodeError:
        raise HclError(f"{path!r} is not UTF-8; filebase64() reads it") from None


@function("filebase64", needs_world=True)
def _filebase64(world: FunctionContext, path: Value) -> Value:
    """Return the content of a file in base64."""
    return encoding.base64_of(_bytes(world, path))


@function("fileexists", needs_world=True)
def _fileexists(world: FunctionContext, path: Value) -> Value:
    """Return whether a file can be read."""
    try:
        _bytes(world, path)
    except HclError:
        return False
    return True


@function("basename")
def _basename(path: Value) -> Value:
    """Return the last part of a path."""
    return basename(as_text(path).rstrip("/"))


@function("dirname")
def _dirname(path: Value) -> Value:
    """Return a path without its last part."""
    return dirname(as_text(path).rstrip("/")) or "."


@function("uuidv4", needs_world=True)
def _uuidv4(world: FunctionContext) -> Value:
    """Return a new UUID at each use and each submission."""
    if not world.seed:
        raise HclError("is not deterministic; use uuidv5(…)")
    world.drawn += 1
    return encoding.hash_uuid(f"{world.seed}/{world.drawn}".encode(), version=4)
