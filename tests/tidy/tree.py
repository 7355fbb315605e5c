"""What the tidy tests look at: the files of this tree, parsed once. Knows no rule itself."""

import ast
import functools
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Source(NamedTuple):
    """One Python file: its path from the top, its text, its syntax tree."""

    path: str
    text: str
    tree: ast.Module


@functools.cache
def files() -> tuple[str, ...]:
    """Name every file that is, or could be, committed, in order."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    names = sorted({name for name in listed.decode().split("\0") if name})
    return tuple(name for name in names if (ROOT / name).is_file())


@functools.cache
def sources() -> tuple[Source, ...]:
    """Parse every Python file."""
    found = []
    for name in files():
        if name.endswith(".py"):
            text = (ROOT / name).read_text(encoding="utf-8")
            found.append(Source(name, text, ast.parse(text, filename=name)))
    return tuple(found)


def shipped() -> list[Source]:
    """Take the sources of the three packages."""
    return [one for one in sources() if one.path.startswith(("schemas/", "shared/", "services/"))]


def report(faults: list[str]) -> str:
    """Join faults into what a failing test shows: one a line, sorted."""
    return "\n" + "\n".join(sorted(faults))
