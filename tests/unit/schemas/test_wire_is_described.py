"""What describes the wire: generated from the Structs, whole, and true for real messages."""

import gzip
import importlib
import json
import pkgutil
from typing import Any

import jsonschema_rs
import msgspec
import pytest

import schemas
from schemas import catalogue, generate
from schemas.base import Command, Event, Wire
from schemas.envelope import LogRecord
from tests.golden.filled import fill, least


def every_struct() -> set[type[msgspec.Struct]]:
    found = set()
    for info in pkgutil.iter_modules(schemas.__path__, "schemas."):
        module = importlib.import_module(info.name)
        found |= {
            one
            for one in vars(module).values()
            if isinstance(one, type)
            and issubclass(one, msgspec.Struct)
            and one.__module__ == info.name
        }
    return found - {Wire, Event, Command}


def test_generated_files_are_current() -> None:
    """schemas/json and docs/events.md are what the Structs say; `just schemas` writes them again."""
    made = generate.produce()
    stored = {
        name: (generate.ROOT / name).read_text(encoding="utf-8")
        for name in made
        if (generate.ROOT / name).exists()
    }
    assert sorted(stored) == sorted(made)
    assert [name for name in made if made[name] != stored[name]] == []
    files = {
        f"{generate.JSON_DIR}/{one.name}" for one in (generate.ROOT / generate.JSON_DIR).iterdir()
    }
    assert files == {name for name in made if name.startswith(generate.JSON_DIR)}


def test_every_struct_is_part_of_a_message() -> None:
    """No Struct of schemas/ escapes the catalogue: new messages are added to it."""
    known = {info.cls for info in catalogue.structs().values()}
    bases = {base for one in known for base in one.__mro__}
    assert {one.__name__ for one in every_struct() - known - bases} == set()


def test_every_event_and_command_says_who() -> None:
    """Every event tag names who causes it and every command tag who sends it, and no other tag does."""
    assert set(generate.CAUSES) == {one.__struct_config__.tag for one in catalogue.EVENTS}
    assert set(generate.SENDERS) == {one.__struct_config__.tag for one in catalogue.COMMANDS}


def without_words(node: Any) -> Any:
    """A schema without its enums: filled Structs have words of their own."""
    if isinstance(node, list):
        return [without_words(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {key: without_words(value) for key, value in node.items() if key != "enum"}


def test_schemas_fit_recorded_logs() -> None:
    """Every record of the golden logs is inside the bounds and words of its schema, and a wrong word is not."""
    checker = jsonschema_rs.Draft202012Validator(generate.document(LogRecord))
    lines = [
        json.loads(line)[1]
        for path in sorted((generate.ROOT / "tests/golden/logs").glob("*.jsonl.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
        if '"{\\"kind' in line.decode()
    ]
    assert len(lines) > 200
    for line in lines:
        assert [str(err) for err in checker.iter_errors(json.loads(line))] == []
    wrong = json.loads(lines[0])
    assert not checker.is_valid({**wrong, "kind": "word"})
    assert not checker.is_valid({**wrong, "t_ns": 2**63})


@pytest.mark.parametrize("message", catalogue.MESSAGES, ids=lambda one: one.__name__)
def test_schemas_fit_the_messages(message: type[msgspec.Struct]) -> None:
    """A foreign JSON Schema validator takes what we write, whole and at its least, and refuses a missing field."""
    checker = jsonschema_rs.Draft202012Validator(without_words(generate.document(message)))
    for made in (fill(message), least(message)):
        value = json.loads(msgspec.json.encode(made))
        assert [str(err) for err in checker.iter_errors(value)] == []
    required = [one.encode_name for one in catalogue.info_of(message).fields if one.required]
    if required:
        value = json.loads(msgspec.json.encode(fill(message)))
        del value[required[0]]
        assert not checker.is_valid(value)
