"""Arguments that are no text, an output that takes nothing, an input that is closed: one line, never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.cli.command_table import COMMANDS
from services.cli.main import main
from services.cli.runtime.output import CommandOutput, encode_json, one_line
from shared.bus.server.nats_server import free_port
from tests.builders import SECOND

ROOT = Path(__file__).parents[2]
BAD = b"\xff\xfe"


def ran(
    words: Sequence[str | bytes], *, shell: str = "", **streams: int
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line as a process, with bytes as arguments and streams as they are given."""
    line = [sys.executable, "-m", "services.cli", *words]
    if shell:
        line = ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", *line]
    env = {**os.environ, "CARAVAN_NATS_URL": f"nats://127.0.0.1:{free_port()}"}
    given = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **streams}
    return subprocess.run(line, stderr=subprocess.PIPE, check=False, cwd=ROOT, env=env, **given)


@pytest.mark.parametrize(
    "words",
    [
        ("job", "status", BAD),
        ("alloc", "fs", "cat", "a", BAD),
        ("alloc", "exec", "a", "--", "echo", BAD),
        ("alloc", "exec", BAD, "--", "echo"),
        ("node", "meta", "set", "n", b"a=" + BAD),
        ("job", "run", "--var", b"a=" + BAD, "x.hcl"),
        ("sql", BAD),
        ("replay", "--to", BAD),
        ("log", "tail", "--kind", BAD),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused(words: tuple[str | bytes, ...]) -> None:
    """It is named, with its bytes escaped, before a bus is asked."""
    done = ran(words)
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.startswith(b"caravan: argument ") and done.stderr.count(b"\n") == 1
    assert b"is not UTF-8" in done.stderr and rb"\xff\xfe" in done.stderr
    if "--" not in words:
        done = ran((*words, "--json"))
        assert json.loads(done.stdout)["error"]["code"] == "usage"


def test_a_path_may_be_any_bytes(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is read; where it is shown, its bytes are escaped."""
    path = os.fsencode(tmp_path) + b"/" + BAD + b".hcl"
    Path(os.fsdecode(path)).write_text(
        'job "j" { group "g" { task "t" { driver = "raw_exec"\nconfig { command = "/bin/true" } } } }'
    )
    assert ran(("job", "validate", path)).returncode == 0
    done = ran(("job", "run", path + b".none", "--json"))
    assert rb"\\xff\\xfe" in done.stdout and not done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "io"


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("job", "status", "--help"),
        ("completion", "bash"),
        ("job", "validate", "none.hcl", "--json"),
        ("job", "status", "x", "--json"),
    ],
)
def test_a_full_output_is_one_line(words: tuple[str, ...]) -> None:
    """What cannot be printed is an error on stderr, exit 1, also when it is an error itself."""
    with Path("/dev/full").open("wb") as full:
        done = ran(words, stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr.startswith(b"caravan: ") and done.stderr.count(b"\n") == 1, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("sql",),
        ("sql", "-"),
        ("job", "validate", "-"),
        ("job", "run", "-"),
        ("job", "dispatch", "j", "--payload", "-"),
        ("operator", "api", "/v1/jobs", "-X", "PUT", "-d", "-"),
        ("job", "restart", "j"),
        ("top",),
        ("alloc", "exec", "-i", "a", "--", "sh"),
    ],
)
def test_a_closed_input_is_an_empty_one(words: tuple[str, ...]) -> None:
    """`<&-` reads as nothing."""
    done = ran(words, shell="<&-")
    told = done.stdout + done.stderr
    assert done.returncode == 1 and b"Traceback" not in told and told.count(b"\n") == 1, told


@pytest.mark.parametrize("words", [("sql",), ("job", "validate", "-")])
def test_an_input_that_is_not_utf8_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    """Standard input is text where text is wanted."""
    path = tmp_path / "in"
    path.write_bytes(b"a = " + BAD)
    with path.open("rb") as given:
        done = ran(words, stdin=given.fileno())
    assert done.returncode == 1 and b"Traceback" not in done.stderr


def test_every_text_argument_is_held_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command refuses each positional argument that is no text and no path."""
    bad = os.fsdecode(BAD)
    tried = 0
    for command in COMMANDS:
        if command.words == ("run",):
            # Without the name of a role it is short for `job run FILE`.
            continue
        needed = [one for one in command.args if not one.flags and one.default is None]
        for at, arg in enumerate(needed):
            if arg.kind not in {str, list} or arg.complete == "file":
                continue
            words = ["1" if one.kind is int else "x" for one in needed]
            words[at] = bad
            tail = ["--", *words[at:]] if arg.name == "command" else words[at:]
            assert main([*command.words, *words[:at], *tail]) != 0
            assert "is not UTF-8" in capsys.readouterr().err, command.words
            tried += 1
    assert tried > 20


def test_a_cell_of_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A name with a line break is one row, with the break escaped."""
    assert one_line("a\nb\tc\x1b\u2028d") == "a\\nb\\tc??d"
    CommandOutput().table("NAME|SIZE>", [("a\nb", SECOND), ("c\r\n", 1)])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 and "a\\nb" in shown[1] and "c\\r\\n" in shown[2]


def test_json_of_what_is_no_text() -> None:
    """Keys and values that are no UTF-8 are escaped; everything else stays."""
    bad = os.fsdecode(BAD)
    told = json.loads(encode_json({"a": [bad, 1, None], bad: "ü"}))
    assert told == {"a": [r"\xff\xfe", 1, None], r"\xff\xfe": "ü"}
