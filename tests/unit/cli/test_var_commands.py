"""`caravan var`: what it reads, what it sends, and where it prints values."""

import asyncio
import io
import json
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.cli.completion import candidates
from services.cli.main import main
from services.cli.runtime import bus_client
from services.cli.runtime.output import CliError
from services.cli.variable import keeper
from services.cli.variable.spec import read_spec
from shared import variable_client
from shared.protocol import subjects
from tests.variable_door import FakeDoor

SECRET = "s3cret"
PUT = subjects.api("variable", "put")


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> FakeDoor:
    """A keeper that commands talk to; pauses take no time."""
    made = FakeDoor()

    def with_bus(work: Callable[[Any], Awaitable[Any]], **_: object) -> Any:
        async def run() -> Any:
            return await work(SimpleNamespace(request_bytes=made.ask))

        return asyncio.run(run())

    monkeypatch.setattr(keeper, "with_bus", with_bus)
    monkeypatch.setattr(bus_client, "with_bus", with_bus)
    monkeypatch.setattr(bus_client, "announce_target", lambda _note: None)
    monkeypatch.setattr(variable_client, "RETRY_S", 0.0)
    return made


def give_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let standard input be a text."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def put(door: FakeDoor, path: str = "app/db", **items: str) -> int:
    """A variable that exists; returns its revision."""
    client = variable_client.VariableClient(door.ask)
    revision = asyncio.run(client.put(path, items or {"password": SECRET}))
    door.asked.clear()
    return revision


def test_items_of_arguments(
    door: FakeDoor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NAME=VALUE, NAME=@FILE as it is, NAME=@ behind a backslash as a text; only a shown value is warned of."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert main(["var", "put", "/app/db/", f"password=@{file}"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert door.rows["app/db"].items == {"password": f"{SECRET}\n"}
    assert main(["var", "put", "app/two", "a=b=c", "at=\\@x"]) == 0
    told = capsys.readouterr()
    assert "other users of this machine can read the arguments" in told.err
    assert told.out == "stored app/two, check-index 12\n"
    assert door.rows["app/two"].items == {"a": "b=c", "at": "@x"}


def test_a_value_of_stdin(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NAME=- takes all of standard input, once, and is no argument that others can read."""
    give_stdin(monkeypatch, SECRET)
    assert main(["var", "put", "app/db", "password=-", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"path": "app/db", "namespace": "default", "modify_index": 11}
    assert "warning" not in told.err and door.rows["app/db"].items == {"password": SECRET}
    assert main(["var", "put", "app/x", "a=-", "b=-"]) == 1
    assert "standard input is named twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"Path": "app/db", "Items": {"user": "u", "port": "5432"}}'),
        ("a.json", '{"path": "/app/db/", "items": {"user": "u", "port": "5432"}, "Namespace": ""}'),
        ("a.nv.hcl", 'path = "app/db"\nitems {\n  user = "u"\n  port = 5432\n}\n'),
        ("a.hcl", 'path = "app/db"\nitems = { "user" = "u", port = "5432" }\n'),
    ],
)
def test_a_specification(door: FakeDoor, tmp_path: Path, name: str, text: str) -> None:
    """JSON and HCL as Nomad's: by the end of the name, names of JSON in any case, numbers of HCL as texts."""
    file = tmp_path / name
    file.write_text(text)
    assert main(["var", "put", f"@{file}"]) == 0
    assert door.rows["app/db"].items == {"user": "u", "port": "5432"}


def test_arguments_take_precedence(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path among them, items over those of the specification, and an empty value removes one."""
    give_stdin(monkeypatch, 'path = "a"\nmodify_index = 7\nitems {\n x = "1"\n y = "2"\n}\n')
    assert main(["var", "put", "b", "-", "x=", "z=3", "--in", "hcl"]) == 0
    assert door.rows.keys() == {"b"} and door.rows["b"].items == {"y": "2", "z": "3"}
    # Read at revision 7 of another path: there it says nothing.
    assert door.sent("put")[0]["cas"] == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "cas"), [((), 0), (("--check-index", "12"), 12), (("-force",), -1)]
)
def test_what_a_put_is_compared_with(
    door: FakeDoor, flags: tuple[str, ...], cas: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in Nomad: a path must not exist, unless a check-index is given or nothing is compared."""
    revision = put(door)
    code = main(["var", "put", *flags, "app/db", "a=b"])
    sent = door.sent("put")[0]
    assert sent.get("cas", -1) == cas
    assert code == (0 if cas == -1 else 1)
    if code:
        text = f"--check-index {revision} or --force stores it over that one"
        assert text in capsys.readouterr().err
        assert door.rows["app/db"].items == {"password": SECRET}


def test_what_was_written_by_get_is_put_over_that_revision(
    door: FakeDoor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`get --out` writes a specification, readable by its owner alone; a put of it fails once the path has changed."""
    file = tmp_path / "app.json"
    file.write_text("before")
    file.chmod(0o644)
    revision = put(door)
    assert main(["var", "get", "app/db", "--out", str(file), "--json"]) == 0
    told = capsys.readouterr().out
    assert json.loads(told)["modify_index"] == revision and SECRET not in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["app.json"]
    assert main(["var", "put", f"@{file}", "user=u"]) == 0
    assert door.rows["app/db"].items == {"password": SECRET, "user": "u"}
    assert main(["var", "put", f"@{file}"]) == 1
    assert "present revision is 12" in capsys.readouterr().err


def test_shred_old(door: FakeDoor) -> None:
    """The flag is in the request."""
    assert main(["var", "put", "a", "b=c", "--shred-old"]) == 0
    assert door.sent("put")[0]["shred_old"] is True


def test_values_are_not_printed_by_accident(
    door: FakeDoor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where standard output is no terminal they have to be asked for; the keeper is not asked before."""
    put(door)
    assert main(["var", "get", "app/db"]) == 1
    assert not door.asked and "no terminal" in capsys.readouterr().err
    assert main(["var", "get", "app/db", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "path": "app/db",
        "namespace": "default",
        "items": {"password": SECRET},
        "modify_index": 11,
    }


def test_one_item(
    door: FakeDoor, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """Its value as it is, in UTF-8 whatever the locale, without a line break of ours; to a file the same."""
    put(door, password="geheim-ä\n", user="u")
    assert main(["var", "get", "app/db", "--item", "password"]) == 0
    assert capfdbinary.readouterr().out == "geheim-ä\n".encode()
    assert main(["var", "get", "app/db", "--item", "user", "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["items"] == {"user": "u"}
    assert main(["var", "get", "app/db", "--item", "user", "--out", str(tmp_path / "u")]) == 0
    assert (tmp_path / "u").read_bytes() == b"u"
    assert main(["var", "get", "app/db", "--item", "none"]) == 1
    assert b"no item of this name" in capfdbinary.readouterr().err


def test_a_terminal_shows_all(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Path, check-index and items by name."""
    put(door, password=SECRET, user="u")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["var", "get", "app/db"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["Path", "app/db"] and lines[1].split() == ["Check", "index", "11"]
    assert [line.split() for line in lines[-2:]] == [["password", SECRET], ["user", "u"]]


def test_purge(door: FakeDoor, capsys: pytest.CaptureFixture[str]) -> None:
    """With check-index only that revision; what does not exist is erased already."""
    revision = put(door)
    assert main(["var", "purge", "app/db", "--check-index", "3"]) == 1
    assert f"present revision is {revision}" in capsys.readouterr().err and door.rows
    assert main(["var", "purge", "app/db", "-check-index", str(revision)]) == 0
    assert main(["var", "purge", "app/db", "--json"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "erased app/db" and json.loads(told[1])["path"] == "app/db"
    assert door.rows == {}


def test_a_command_under_a_lock_changes_its_path(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`var put` and `var purge` take the lock from the environment, for its path alone."""
    client, mine = variable_client.VariableClient(door.ask), variable_client.new_lock_id()
    asyncio.run(client.lock("app/db", mine, ttl_ns=15_000_000_000, delay_ns=0))
    assert main(["var", "put", "app/db", "a=b"]) == 1
    assert "is locked" in capsys.readouterr().err
    monkeypatch.setenv(keeper.LOCK_ID_ENV, mine)
    monkeypatch.setenv(keeper.LOCK_PATH_ENV, "app/db")
    assert main(["var", "put", "/app/db/", "a=b"]) == 0
    assert main(["var", "put", "app/other", "a=b"]) == 0
    assert [one.get("lock_id", "") for one in door.sent("put")] == ["", mine, ""]
    assert main(["var", "purge", "app/db"]) == 0
    assert door.rows.keys() == {"app/other"}
    door.locks.clear()
    assert main(["var", "put", "app/db", "a=b"]) == 1
    told = capsys.readouterr()
    assert "is not locked" in told.err and mine not in told.err + told.out


def test_the_list_shows_no_items(door: FakeDoor, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths that begin so, with revision, count of items, size and lock; names and texts are not asked for."""
    put(door)
    put(door, "app/web", a="b")
    put(door, "other", a="b")
    client, mine = variable_client.VariableClient(door.ask), variable_client.new_lock_id()
    asyncio.run(client.lock("app/web", mine, ttl_ns=15_000_000_000, delay_ns=0))
    door.asked.clear()
    assert main(["var", "list", "app/"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["app/db", "11", "1"],
        ["app/web", "12", "1"],
    ]
    assert [line.endswith("since seq 1") for line in lines[1:]] == [False, True]
    assert mine not in out
    assert [subject for subject, _ in door.asked] == [subjects.query("variables")]
    assert main(["var", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == 3 and "cipher" not in str(found)


def test_without_a_keeper(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so, and where to look."""
    monkeypatch.setattr(variable_client, "ATTEMPT_S", 0.0)
    door.absent = True
    assert main(["var", "get", "app/db", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "unavailable" and error["message"].startswith("no keeper answers; ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("var", "lock", "a"), "the following arguments are required: CMD"),
        (("var", "lock", "a", "--ttl", "soon", "true"), "--ttl 'soon' is not a duration"),
        (("var", "lock", "a", "--ttl", "5s", "true"), "ttl must be 10 to 86400 s"),
        (("var", "put", "a"), "no items are given"),
        (("var", "put", "a=b"), "the first argument is the path"),
        (("var", "put", "a", "-", "--in", "yaml"), "--in must be hcl or json"),
        (("var", "put", "a", "b=c", "--check-index", "-1"), "must be a number"),
        (("var", "put", "a", "b=c", "--check-index", "x"), "--check-index must be a number"),
        (("var", "put", "a", "b=c", "--check-index", "1", "--force"), "exclude each other"),
        (("var", "put", "a", "b="), "at least one item"),
        (("var", "put", "a", "@values.txt"), "must end with .hcl or .json"),
        (("var", "put", "@none.json"), "No such file"),
        (("var", "get", "a", "--out", "json"), "--out is a file, no format"),
        (("var", "get", "a", "--item", "b", "--out", "/dev/null"), "is no regular file"),
    ],
)
def test_what_makes_no_sense(
    door: FakeDoor, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 with one line that says what is wrong; nothing is stored."""
    put(door, "a", b="c")
    assert main([*words]) == 1
    assert says in capsys.readouterr().err
    assert door.rows["a"].items == {"b": "c"}


def test_a_word_that_is_no_pair_is_not_shown(
    door: FakeDoor, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a value whose name was forgotten: standard error may be kept."""
    assert main(["var", "put", "a", SECRET]) == 1
    assert SECRET not in capsys.readouterr().err and not door.asked


@pytest.mark.parametrize(
    ("spec_format", "text", "line"),
    [
        ("json", '{"Items": {"a": "s3cret"}', 1),
        ("json", '{"Items": {"a": 5, "b": "s3cret"}}', 0),
        ("json", '{"Items": {"a": "s3cret", "a": "s3cret"}}', 0),
        ("json", '["s3cret"]', 0),
        ("json", '{"Namespace": "ops", "Items": {"a": "s3cret"}}', 0),
        ("json", '{"Lock": {"TTL": "15s"}, "Items": {"a": "s3cret"}}', 0),
        ("json", '{"ModifyIndex": -1, "Items": {"a": "s3cret"}}', 0),
        ("hcl", 'items {\n  a = "s3cret\n}\n', 2),
        ("hcl", 'items {\n  a = "s3cret"\n  b = "${s3cret}"\n}\n', 3),
        ("hcl", 'items {\n  a = "s3cret"\n  b = true\n}\n', 3),
        ("hcl", 'items {\n  a = "s3cret"\n}\npassword = "s3cret"\n', 4),
        ("hcl", 'item {\n  a = "s3cret"\n}\n', 1),
    ],
)
def test_a_specification_that_is_refused(spec_format: str, text: str, line: int) -> None:
    """The error has the file, and the line where that is known, and no piece of the text."""
    with pytest.raises(CliError) as fault:
        read_spec(text.encode(), spec_format, "spec")
    assert (fault.value.code, fault.value.file, fault.value.line) == ("invalid", "spec", line)
    assert SECRET not in fault.value.message


def test_a_text_with_a_dollar_and_a_brace() -> None:
    """HCL writes it with two signs, as everywhere in HCL."""
    assert read_spec(b'items { a = "$${b}" }', "hcl").items == {"a": "${b}"}


@pytest.mark.parametrize("name", ["spec.nv.hcl", "spec.nv.json"])
def test_the_example_can_be_put(
    door: FakeDoor, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`var init` writes what `var put` takes, and overwrites nothing."""
    file = tmp_path / name
    assert main(["var", "init", str(file)]) == 0
    assert main(["var", "put", f"@{file}"]) == 0
    assert door.rows["app/database"].items == {"user": "app", "password": "change me"}
    assert main(["var", "init", str(file)]) == 1
    assert "not overwritten" in capsys.readouterr().err


def test_paths_are_completed(door: FakeDoor) -> None:
    """For every command that takes one."""
    put(door)
    put(door, "other")
    for command in ("get", "purge", "put", "list"):
        assert [name for name, _ in candidates(["var", command, "a"])] == ["app/db"]
