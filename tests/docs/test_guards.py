"""Pages at a reader's shell, which has no `set -e`: nothing runs behind a failed command that it relies on."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.compose.page import PAGE, ROOT, blocks, commands

#: Blocks in which a line relies on the one before, and how many commands each has.
GUARDED = [
    ("Start", 0, 3),
    ("Start", 1, 5),
    ("A bus of three servers", 0, 4),
    ("Upgrade", 0, 16),
    ("Back up", 0, 6),
    ("Back up", 1, 9),
    ("Upgrade three servers", 0, 21),
    ("Back up three servers", 0, 10),
    ("Back up three servers", 1, 11),
    ("Repair a damaged server", 0, 7),
]
#: Writes down what it was asked for; the call of that number fails.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "$ASKED"
[ "$(wc -l < "$ASKED")" -ne "$FAILS" ] || exit 1
[ "$(basename "$0")" != cat ] || echo nats://h:1
"""
#: What does harm, or never ends, where a command before it failed.
_RELIES = re.compile(r"--wait|(?<!context )\b(rm|cp|kill|until|while)\b")
_SETS = re.compile(r"\w+=\S*\$\(")
_EXPORT = re.compile(r"export( \w+=[^\s$`]+)+")
#: The status of `export` is 0, whatever becomes of the command within.
_HIDES = re.compile(r"^\s*(?:export|readonly|local)\b[^;&|\n]*(?:\$\(|`).*", re.MULTILINE)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Shell:
    """A reader's shell whose programs only write down what they were asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = folder / "asked"
        programs = folder / "bin"
        programs.mkdir()
        for name in ("caravan", "docker", "mkdir", "cp", "rm", "cat"):
            (programs / name).write_text(STUB)
            (programs / name).chmod(0o755)
        self._env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}

    def paste(self, shell: str, block: str, fails: int) -> list[str]:
        """Paste a block as a whole; returns what ran, up to and with the call that failed. 0: none fails."""
        self._asked.write_text("")
        subprocess.run(
            [shell],
            input=block,
            text=True,
            cwd=self._folder,
            env={**self._env, "ASKED": str(self._asked), "FAILS": str(fails)},
            check=False,
        )
        return self._asked.read_text().splitlines()


@pytest.mark.parametrize(("heading", "at", "count"), GUARDED)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_nothing_runs_behind_a_command_that_failed(
    tmp_path: Path, heading: str, at: int, count: int, shell: str
) -> None:
    """Whichever command of the block fails, a wait or another: those before it have run, and none behind it."""
    one = Shell(tmp_path)
    block = blocks(heading)[at]
    whole = one.paste(shell, block, 0)
    assert len(whole) == count
    for fails in range(1, count + 1):
        assert one.paste(shell, block, fails) == whole[:fails]


def test_every_block_that_waits_is_among_them() -> None:
    """A block of the page with a wait, a removed volume or a copied store is tried here."""
    words = ("--wait", "volume rm", " cp nats-", " cp backup/", "$(cat deploy")
    headings = [line[4:] for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    found = [
        (heading, at)
        for heading in headings
        for at, block in enumerate(blocks(heading))
        if any(word in block for word in words)
    ]
    assert len(found) == len(GUARDED) - 1  # The first one only begins.
    assert set(found) <= {(heading, at) for heading, at, _ in GUARDED}
    for heading, at in found:
        lines = [one for one in commands(blocks(heading)[at]) if not _EXPORT.fullmatch(one)]
        assert len(lines) == 1
    assert not [block for heading in headings for block in blocks(heading) if "for " in block]


def unguarded(text: str) -> list[str]:
    """Commands of a page's blocks that run though something before them failed, or that hide a failure."""
    found = []
    for kind, block in _FENCED.findall(text):
        found += _HIDES.findall(block)
        lines = [one for one in commands(block) if not _EXPORT.fullmatch(one)]
        relies = any(_RELIES.search(one) for one in lines[1:])
        # What follows such a variable reads it, perhaps as its environment.
        if kind == "sh" and (relies or any(map(_SETS.match, lines[:-1]))):
            found.append(block)
    return found


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("clients/*/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda one: str(one.relative_to(ROOT)))
def test_no_page_goes_on_where_it_does_harm(page: Path) -> None:
    """What removes, copies, kills or waits is one command with what it relies on; a failed command is not hidden."""
    assert unguarded(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "block",
    [
        "export A=$(cat a)",
        "caravan a &&\nexport A=$(cat a) &&\ncaravan b",
        "A=$(cat a)\ncaravan job run $A",
        "A=$(cat a) && export A\ncaravan job run",
        "caravan a\ncaravan b --wait",
        "caravan a\nuntil caravan b; do sleep 1; done",
        "caravan a\nkill 1",
    ],
)
def test_an_unguarded_block_is_found(block: str) -> None:
    """The rule for pages names what runs on behind a failed command, and what hides it."""
    assert unguarded(f"x\n```sh\n{block}\n```\n")


@pytest.mark.parametrize(
    "block",
    [
        "caravan a\ncaravan b",
        "export A=1 B=c/d\ncaravan a &&\nrm b",
        "A=$(cat a) &&\nexport A &&\ncaravan job run",
        "caravan a &&\nuntil caravan b; do sleep 1; done\ncaravan c",
    ],
)
def test_a_guarded_block_is_not_found(block: str) -> None:
    """Questions may follow one another, and a chain is one command."""
    assert unguarded(f"x\n```sh\n{block}\n```\n") == []
