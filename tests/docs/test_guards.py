"""docs/operations.md at a reader's shell, which has no `set -e`: nothing of a block runs behind a failed command."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.compose.page import PAGE, blocks, commands

#: Blocks in which a line relies on the one before, and how many commands each has.
GUARDED = [
    ("Start", 0, 3),
    ("A bus of three servers", 0, 3),
    ("Upgrade", 0, 15),
    ("Back up", 0, 5),
    ("Back up", 1, 7),
    ("Upgrade three servers", 0, 7),
    ("Back up three servers", 0, 9),
    ("Back up three servers", 1, 9),
    ("Repair a damaged server", 0, 7),
]
#: Writes down what it was asked for; the call of that number fails.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "$ASKED"
[ "$(wc -l < "$ASKED")" -ne "$FAILS" ]
"""


class Shell:
    """A reader's shell whose programs only write down what they were asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = folder / "asked"
        programs = folder / "bin"
        programs.mkdir()
        for name in ("caravan", "docker", "mkdir", "cp", "rm"):
            (programs / name).write_text(STUB)
            (programs / name).chmod(0o755)
        (folder / "deploy" / "secrets").mkdir(parents=True)
        (folder / "deploy" / "secrets" / "url").write_text("nats://h:1\n")
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
    """A block of the page with a wait, a removed volume or a copied store is one command, and is tried here."""
    words = ("--wait", "volume rm", " cp nats-", " cp backup/")
    headings = [line[4:] for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    found = [
        (heading, at)
        for heading in headings
        for at, block in enumerate(blocks(heading))
        if any(word in block for word in words)
    ]
    assert set(found) <= {(heading, at) for heading, at, _ in GUARDED}
    for heading, at in found:
        exports = [one for one in commands(blocks(heading)[at]) if one.startswith("export ")]
        assert len(commands(blocks(heading)[at])) == len(exports) + 1
    assert not [block for heading in headings for block in blocks(heading) if "for " in block]
