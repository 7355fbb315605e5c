"""All functions of job files: Nomad's, minus what would make a file mean something else each time.

Decides which function a name is, and those that look at their arguments before working them out, or at files. A file is
read only through the reader that the caller hands in, confined to a directory; without one, files do not exist.
"""

from collections.abc import Callable, Mapping
from posixpath import basename, dirname
from typing import Protocol

from shared.jobspec.hcl import functions_code, functions_list, functions_number, functions_text
from shared.jobspec.hcl.errors import HclFault, TooMuch, hint
from shared.jobspec.hcl.registry import FUNCTIONS, Function, LazyFunction, function
from shared.jobspec.hcl.tree import Node
from shared.jobspec.hcl.values import TEXT_MAX, Value, as_text


class World(Protocol):
    """What the functions here need of `evaluate.World`."""

    read_file: Callable[[str], bytes] | None
    seed: str
    drawn: int

    def value(self, node: Node, names: Mapping[str, Value] = ...) -> Value:
        """Work out an expression."""


#: name -> why Nomad has it and we do not.
REFUSED = {
    "bcrypt": "is another value each time",
    "rsadecrypt": "would put a private key into a job file",
    "timeadd": "works on times, and nothing gives one here",
    "formatdate": "works on times, and nothing gives one here",
    "timestamp": "is another value each time",
    "abspath": "would make a job depend on the machine it is read on",
    "pathexpand": "would make a job depend on the machine it is read on",
    "fileset": "would make a job depend on what lies about in a directory",
}
MODULES = (functions_text, functions_list, functions_number, functions_code)


def find(name: str) -> Function | LazyFunction:
    """Find a function. Raises HclFault that names the nearest one."""
    found = FUNCTIONS.get(name)
    if found is not None:
        return found
    if name in REFUSED:
        raise HclFault(f"{name}() is not offered: it {REFUSED[name]}")
    raise HclFault(f"unknown function {name[:40]}(){hint(name, sorted(FUNCTIONS))}")


def _try(world: World, arguments: tuple[Node, ...], names: Mapping[str, Value]) -> Value:
    """Give the first argument that can be worked out."""
    last = HclFault("try() needs an argument")
    for one in arguments:
        try:
            return world.value(one, names)
        except TooMuch:
            raise
        except HclFault as fault:
            last = fault
    raise last


def _can(world: World, arguments: tuple[Node, ...], names: Mapping[str, Value]) -> Value:
    """Tell whether the argument can be worked out."""
    if len(arguments) != 1:
        raise HclFault("can(expression) takes 1 argument")
    try:
        world.value(arguments[0], names)
    except TooMuch:
        raise
    except HclFault:
        return False
    return True


FUNCTIONS["try"] = LazyFunction("try", _try, "expression…")
FUNCTIONS["can"] = LazyFunction("can", _can, "expression")


def _bytes(world: World, path: Value) -> bytes:
    reader = world.read_file
    name = as_text(path)
    if reader is None:
        raise HclFault(f"{name[:80]!r} cannot be read: no files are read here")
    try:
        content = reader(name)
    except (OSError, ValueError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise HclFault(f"{name[:80]!r} cannot be read: {reason}") from None
    if len(content) > TEXT_MAX:
        raise HclFault(f"{name[:80]!r} has more than {TEXT_MAX} bytes")
    return content


@function("file", needs_world=True)
def _file(world: World, path: Value) -> Value:
    """Give the text of a file beside the job file."""
    try:
        return _bytes(world, path).decode()
    except UnicodeDecodeError:
        raise HclFault(f"{path!r} is not UTF-8; filebase64() reads it") from None


@function("filebase64", needs_world=True)
def _filebase64(world: World, path: Value) -> Value:
    """Give the content of a file in base64."""
    return functions_code.base64_of(_bytes(world, path))


@function("fileexists", needs_world=True)
def _fileexists(world: World, path: Value) -> Value:
    """Tell whether a file can be read."""
    try:
        _bytes(world, path)
    except HclFault:
        return False
    return True


@function("basename")
def _basename(path: Value) -> Value:
    """Give the last part of a path."""
    return basename(as_text(path).rstrip("/"))


@function("dirname")
def _dirname(path: Value) -> Value:
    """Give a path without its last part."""
    return dirname(as_text(path).rstrip("/")) or "."


@function("uuidv4", needs_world=True)
def _uuidv4(world: World) -> Value:
    """Give another UUID at each use and each submission."""
    if not world.seed:
        raise HclFault("is another value each time and not offered here; uuidv5(…) is")
    world.drawn += 1
    return functions_code.uuid_of(f"{world.seed}/{world.drawn}".encode(), version=4)
