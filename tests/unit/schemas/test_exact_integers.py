"""Integers above 2^53 are marked in the schemas, and are text beside the number in view.* and query.*."""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect as mi

from schemas import bounds
from schemas.answers import ClusterAnswer, DeadLine, PolicyAnswer
from schemas.envelope import LogRecord
from schemas.generate import document
from schemas.policy import Policy
from schemas.projections import AllocSummary, EvalSummary, NodeSummary
from shared.protocol.contract import SUBJECTS
from tests.golden.filled import fill

#: Its numbers stand in `PolicyAnswer.policy_text`: it is part of the log, too.
ELSEWHERE = {"Policy"}
LARGE = 2**53 + 1
#: Fields of answers that tell how something stands, by a word.
STATUSES = {"status", "client_status", "desired_status", "rollout_status", "eligibility", "state"}
STATUSES |= {"health", "wait_class", "cause"}


def structs(of: type, seen: set[type] | None = None) -> set[type]:
    """Return a Struct and all inside it."""
    seen = set() if seen is None else seen

    def visit(info: object) -> None:
        if isinstance(info, mi.StructType) and info.cls not in seen:
            seen.add(info.cls)
            for field in info.fields:
                visit(field.type)
        for part in ("item_type", "value_type", "types", "item_types"):
            inner = getattr(info, part, ())
            for one in inner if isinstance(inner, tuple) else (inner,):
                visit(one)

    visit(mi.type_info(of))
    return seen


def told() -> set[type]:
    """Every Struct that a reader gets on view.* or as an answer of query.*."""
    found: set[type] = set()
    for one in SUBJECTS:
        if one.address.startswith("view."):
            found |= structs(one.message_type)
        if one.address.startswith("query."):
            for answer in one.answers:
                found |= structs(answer)
    return found


def large_fields(struct: type) -> Iterator[str]:
    """Integers of a Struct that a double may not hold."""
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    for field in info.fields:
        if isinstance(field.type, mi.IntType) and bounds.may_exceed_double(
            struct.__name__, field.name
        ):
            yield field.name


def test_every_large_integer_has_its_text() -> None:
    """No answer has an integer that may exceed 2^53 without a text; no record of the log has such texts."""
    missing = [
        f"{struct.__name__}.{name}"
        for struct in told()
        if struct.__name__ not in ELSEWHERE
        for name in large_fields(struct)
        if f"{name}_text" not in struct.__struct_fields__  # type: ignore[attr-defined]
    ]
    assert missing == []
    assert len([name for struct in told() for name in large_fields(struct)]) > 10
    logged = structs(LogRecord)
    assert not [one for one in logged if hasattr(one, "__post_init__")]


@pytest.mark.parametrize(
    "struct", [AllocSummary, EvalSummary, NodeSummary, ClusterAnswer, DeadLine]
)
def test_a_large_integer_is_told_as_text(struct: type[msgspec.Struct]) -> None:
    """Beyond 2^53 the text is there, exact; below it is empty; the number stays what it was."""
    for name in large_fields(struct):
        for value, text in ((LARGE, str(LARGE)), (-LARGE, str(-LARGE)), (2**53 - 1, "")):
            made = msgspec.structs.replace(fill(struct), **{name: value, f"{name}_text": ""})
            sent = msgspec.json.decode(msgspec.json.encode(made))
            assert (sent[name], sent[f"{name}_text"]) == (value, text)
            # A reader of doubles would have had another number.
            assert not text or int(float(value)) != int(text)


def test_numbers_of_the_policy_are_told_as_text() -> None:
    """Retention of more than 104 days exceeds 2^53 ns."""
    policy = Policy(job_keep_ns=LARGE)
    answer = msgspec.json.encode(PolicyAnswer(cluster_id="c", seq=1, policy=policy))
    assert msgspec.json.decode(answer)["policy_text"] == {"job_keep_ns": str(LARGE)}


def test_statuses_are_enums() -> None:
    """Every status of an answer, in whatever words, lists them in the JSON Schema, and large integers are marked."""
    missing, seen = [], set()
    for struct in told():
        properties = document(struct)["$defs"][document(struct)["title"]]["properties"]
        for field in mi.type_info(struct).fields:  # type: ignore[attr-defined]
            if field.name in STATUSES and isinstance(field.type, mi.StrType):
                seen.add(field.name)
                if not properties[field.encode_name].get("enum"):
                    missing.append(f"{struct.__name__}.{field.name}")
    assert missing == []
    assert seen == STATUSES
    schema = document(AllocSummary)["$defs"]["AllocSummary"]["properties"]
    assert schema["key"]["x-exceeds-double"] and schema["key_text"]["type"] == "string"


def test_any_json_is_marked_as_large() -> None:
    """A field of any JSON, such as the text of a job, may hold any integer: its schema says so."""
    raw = 0
    for struct in told():
        properties = document(struct)["$defs"][document(struct)["title"]]["properties"]
        for field in mi.type_info(struct).fields:  # type: ignore[attr-defined]
            if isinstance(field.type, mi.RawType):
                raw += 1
                assert properties[field.encode_name]["x-exceeds-double"], field.name
    assert raw
