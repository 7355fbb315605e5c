"""The key-encryption key from a program: run without a shell, bounded, and nothing that it prints is shown."""

import asyncio
import sys
from pathlib import Path

import pytest

from services.keeper import kek
from services.keeper.kek import KekCommand, KekUnreachable, KeyStoreFault

KEY = bytes(range(32))


def program(folder: Path, text: str) -> str:
    """Write a Python program; return the command that runs it, with an argument that a shell would change."""
    path = folder / "print_kek.py"
    path.write_text(text)
    return f"{sys.executable} {path} '$HOME *'"


def read(command: str) -> bytes:
    return asyncio.run(KekCommand(command).read(may_create=True))


def test_a_program_prints_the_key(tmp_path: Path) -> None:
    """The program gets its arguments as they are, and what it prints to stdout is the key."""
    lines = (
        "import sys\nassert sys.argv[1:] == ['$HOME *']\nprint('secret noise', file=sys.stderr)\n"
    )
    assert read(program(tmp_path, f"{lines}print('{KEY.hex()}')")) == KEY


@pytest.mark.parametrize("end", ["", "import sys; sys.exit(3)"])
def test_what_a_program_prints_is_not_shown(tmp_path: Path, end: str) -> None:
    """A program that prints no key, or fails, is named with its exit code; its text is in no error."""
    expected = KekUnreachable if end else KeyStoreFault
    with pytest.raises(expected) as caught:
        read(program(tmp_path, f"print('hunter2', flush=True)\n{end}"))
    assert "hunter" not in str(caught.value)
    assert ("ended with 3" in str(caught.value)) is bool(end)


def test_a_program_that_is_missing_is_a_fault(tmp_path: Path) -> None:
    """A command that cannot be run is a fault with the system's reason: trying again does not help."""
    with pytest.raises(KeyStoreFault, match="cannot be run: No such file"):
        read(f"{tmp_path}/none")


def test_a_program_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not end is killed at its bound, and tried again later."""
    monkeypatch.setattr(kek, "_COMMAND_S", 0.5)
    pid = tmp_path / "pid"
    lines = f"import os, signal\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\nsignal.pause()"
    with pytest.raises(KekUnreachable, match="did not print the KEK within"):
        read(program(tmp_path, lines))
    if pid.exists() and pid.read_text():
        assert not Path(f"/proc/{pid.read_text()}").exists()
