"""Old records stay readable for ever: golden records of every kind, and a summary that may only grow.

`just bless` writes what is new: a golden file for each new kind, a numbered second one (`full-2`) where a Struct got a
field. It never rewrites one and refuses any summary that is not an addition. Only before a first release may files of a
changed mind be deleted; afterwards a changed meaning is a new event type.
"""

import copy
import json
import os
import re
from pathlib import Path

import msgspec
import pytest

from schemas.envelope import ENCODER, RECORD_DECODER, LogRecord
from shared.core.runtime.chain import checksum, decode_record, seal
from tests.golden import records_v1, shapes

HERE = Path(__file__).parent
RECORDS = HERE / "records" / "v1"
SUMMARY = HERE / "schema-summary.json"
BLESS = os.environ.get("CARAVAN_BLESS") == "1"


def made_today() -> dict[str, bytes]:
    return records_v1.records() | {name: body for name, (_, body) in records_v1.messages().items()}


def stored() -> dict[str, bytes]:
    return {
        path.stem: path.read_bytes().removesuffix(b"\n") for path in sorted(RECORDS.glob("*.json"))
    }


def base(name: str) -> str:
    """Strip the number of a later edition: `….full-2` is an edition of `….full`."""
    return re.sub(r"-\d+$", "", name)


def bless_records() -> None:
    """Add what today's code writes and no golden file holds; rewrite nothing."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    old = stored()
    for name, body in made_today().items():
        editions = [body_ for name_, body_ in old.items() if base(name_) == name]
        if body not in editions:
            number = f"-{len(editions) + 1}" if editions else ""
            (RECORDS / f"{name}{number}.json").write_bytes(body + b"\n")


if BLESS:
    before = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {"structs": {}, "orders": {}}
    if not shapes.faults(before, shapes.summary()):
        bless_records()
        SUMMARY.write_text(json.dumps(shapes.summary(), indent=1) + "\n")

GOLDEN = stored()


def only_adds(old: object, new: object) -> bool:
    """Tell whether `new` holds all that `old` holds; Structs written out whole gain the defaults of new fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and only_adds(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(only_adds, old, new))
    return type(old) is type(new) and old == new


def encode_again(name: str, body: bytes) -> bytes:
    value = msgspec.json.decode(body, type=records_v1.type_of(name))
    if isinstance(value, LogRecord):
        return seal(msgspec.structs.replace(value, sum=""))[0]
    return ENCODER.encode(value)


def test_every_kind_has_a_golden_record() -> None:
    """Each event, command, projection and reply of today stands in tests/golden, filled and at its least."""
    written = {(base(name), body) for name, body in GOLDEN.items()}
    missing = [name for name, body in made_today().items() if (name, body) not in written]
    assert missing == [], "`just bless` adds them"


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_records_read_and_write_the_same(name: str) -> None:
    """What any release wrote decodes today and is encoded again to the same bytes, but for fields added since."""
    again = encode_again(name, GOLDEN[name])
    if again != GOLDEN[name]:
        old, new = json.loads(GOLDEN[name]), json.loads(again)
        # The checksum is over bytes: only a record that gained fields may have another.
        old.pop("sum", None)
        assert only_adds(old, new)
        assert len(again) > len(GOLDEN[name])


@pytest.mark.parametrize(
    "name", [one for one in sorted(GOLDEN) if records_v1.type_of(one) is LogRecord]
)
def test_golden_records_are_accepted(name: str) -> None:
    """The checksum of a golden record holds, one flipped bit in it does not, and the log's own reader takes it."""
    body = GOLDEN[name]
    kind = RECORD_DECODER.decode(body).kind
    head, _, tail = body.rpartition(b',"sum":"')
    assert checksum(head) == tail[:32].decode()
    assert checksum(bytes([head[0] ^ 1]) + head[1:]) != tail[:32].decode()
    assert decode_record(1, f"log.1.{kind}", body) is not None


def test_the_wire_only_grows() -> None:
    """No field is removed, retyped or given another default, no new one lacks a default, no tag gets a new meaning."""
    old = json.loads(SUMMARY.read_text())
    assert shapes.faults(old, shapes.summary()) == []
    assert old == json.loads(json.dumps(shapes.summary())), "an addition: `just bless` takes it"


BREAKS = {
    "a field removed": lambda s: s["JobStopped"]["fields"].pop("purge"),
    "a field renamed": lambda s: s["JobStopped"]["fields"].update(
        purged=s["JobStopped"]["fields"].pop("purge")
    ),
    "a type changed": lambda s: s["JobStopped"]["fields"]["purge"].update(type="int"),
    "null allowed": lambda s: s["JobStopped"]["fields"]["digest"].update(
        type=["union", "none", "str"]
    ),
    "a default changed": lambda s: s["Policy"]["fields"]["algorithm"].update(
        default={"value": "spread"}
    ),
    "a default dropped": lambda s: s["JobStopped"]["fields"]["purge"].update(default="required"),
    "a default given": lambda s: s["JobStopped"]["fields"]["digest"].update(default={"value": ""}),
    "a required field added": lambda s: s["JobStopped"]["fields"].update(
        why={"type": "str", "default": "required"}
    ),
    "defaults written out": lambda s: s["JobStopped"].update(omits_defaults=False),
    "a tag changed": lambda s: s["JobStopped"].update(tag="job.halted"),
    "a tag reused": lambda s: s.update(JobHalted=s.pop("JobStopped")),
    "tags swapped": lambda s: (
        s["JobStopped"].update(tag="job.evaluated"),
        s["JobEvaluated"].update(tag="job.stopped"),
    ),
    "an event dropped": lambda s: s["Record"]["fields"]["events"]["type"][1].remove(
        ["struct", "JobStopped"]
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_break_is_found(what: str) -> None:
    """Each way to break the readers or writers of yesterday is named by the comparison."""
    old = json.loads(json.dumps(shapes.summary()))
    new = copy.deepcopy(old)
    BREAKS[what](new["structs"])
    assert shapes.faults(old, new) != []


def test_a_reordered_list_is_found() -> None:
    """Lists whose indexes travel keep their order, and may grow at the end."""
    old = json.loads(json.dumps(shapes.summary()))
    new = copy.deepcopy(old)
    new["orders"]["CLIENT_STATUSES"].append("frozen")
    assert shapes.faults(old, new) == []
    new["orders"]["CLIENT_STATUSES"].insert(0, "new")
    assert shapes.faults(old, new) != []


def test_additions_pass() -> None:
    """A new event, and a new field with a default, are no breaks."""
    old = json.loads(json.dumps(shapes.summary()))
    new = copy.deepcopy(old)
    new["structs"]["JobStopped"]["fields"]["why"] = {"type": "str", "default": {"value": ""}}
    new["structs"]["JobPaused"] = dict(new["structs"]["JobStopped"], tag="job.paused")
    new["structs"]["Record"]["fields"]["events"]["type"][1].append(["struct", "JobPaused"])
    assert shapes.faults(old, new) == []


def test_a_changed_default_changes_what_old_bytes_mean() -> None:
    """Why defaults are held: the same bytes read under another default are another fact."""

    class Then(msgspec.Struct, omit_defaults=True):
        purge: bool = False

    class Now(msgspec.Struct, omit_defaults=True):
        purge: bool = True

    body = msgspec.json.encode(Then())
    assert msgspec.json.decode(body, type=Now).purge is not Then().purge
