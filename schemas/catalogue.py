"""What there is on the wire: every message a reader may meet, and what the sources say about its fields.

Decides which Structs are messages of their own; everything else is part of one. Read by whatever describes or holds the
wire: `generate.py` (JSON Schema and docs/events.md), the AsyncAPI document, the test of the evolution rules.
"""

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from schemas import (
    answers,
    dead,
    envelope,
    evaluations,
    hands,
    jobs,
    nodes,
    operator,
    projections,
    submissions,
)
from schemas.base import Command, Event, Wire

#: Replies of `query.<noun>` by noun.
ANSWERS: dict[str, type[Wire]] = {
    "jobs": answers.JobsAnswer,
    "job": answers.JobAnswer,
    "job_version": answers.JobVersionAnswer,
    "job_versions": answers.JobVersionsAnswer,
    "plan": answers.PlanAnswer,
    "why_not": answers.WhyAnswer,
    "policy": answers.PolicyAnswer,
    "nodes": answers.NodesAnswer,
    "node": answers.NodeAnswer,
    "allocs": answers.AllocsAnswer,
    "alloc": answers.AllocAnswer,
    "evals": answers.EvalsAnswer,
    "eval": answers.EvalAnswer,
    "waiting": answers.WaitingAnswer,
    "cluster": answers.ClusterAnswer,
    "resources": answers.ResourcesAnswer,
    "submission": answers.SubmissionAnswer,
    "dead": answers.DeadAnswer,
}

#: What an agent is asked by `hands.<node>.<verb>`, and what it answers, by verb.
HANDS: dict[str, tuple[type[Wire], type[Wire]]] = {
    "logs": (hands.LogsAsk, hands.Frame),
    "exec": (hands.ExecAsk, hands.Frame),
    "session": (hands.SessionInput, hands.SessionAnswer),
    "fs_list": (hands.FilesAsk, hands.FilesAnswer),
    "fs_stat": (hands.FilesAsk, hands.FilesAnswer),
    "fs_read": (hands.FilesAsk, hands.FilePart),
    "stats": (hands.StatsAsk, hands.StatsAnswer),
    "restart": (hands.TaskAsk, hands.TaskAnswer),
    "signal": (hands.TaskAsk, hands.TaskAnswer),
}

#: Messages of their own: each gets a file in schemas/json.
MESSAGES: tuple[type[Wire], ...] = (
    envelope.Record,
    envelope.CommandBatch,
    evaluations.Leases,
    evaluations.Presence,
    nodes.Heartbeat,
    projections.NodeProjection,
    projections.JobProjection,
    projections.NodeSummary,
    submissions.JobSubmission,
    submissions.JobNamed,
    submissions.JobText,
    submissions.KeptAck,
    jobs.Verdict,
    jobs.ParsedJob,
    projections.Query,
    projections.PlanQuery,
    *ANSWERS.values(),
    operator.PolicyWish,
    operator.EligibilityWish,
    operator.DrainWish,
    operator.MetaWish,
    operator.StopWish,
    operator.PoolWish,
    operator.CollectWish,
    operator.RollWish,
    operator.OperatorVerdict,
    *dict.fromkeys(struct for pair in HANDS.values() for struct in pair),
    answers.ErrorAnswer,
    dead.DeadLetter,
)

EVENTS: tuple[type[Event], ...] = get_args(envelope.AnyEvent)
COMMANDS: tuple[type[Command], ...] = get_args(envelope.AnyCommand)

Info = msgspec.inspect.Type
StructInfo = msgspec.inspect.StructType


def info_of(struct: type[msgspec.Struct]) -> StructInfo:
    """Describe a Struct as msgspec sees it."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, StructInfo)
    return info


def structs() -> dict[str, StructInfo]:
    """Every Struct that a message is made of, by name, sorted."""
    found: dict[str, StructInfo] = {}
    waiting: list[StructInfo] = [info_of(message) for message in MESSAGES]
    while waiting:
        one = waiting.pop()
        known = found.setdefault(one.cls.__name__, one)
        assert known.cls is one.cls, f"two Structs are called {one.cls.__name__}"
        if known is one:
            waiting += [part for field in one.fields for part in parts(field.type)]
    return dict(sorted(found.items()))


def parts(info: Info) -> Iterator[StructInfo]:
    """Find the Structs that a type names, not those inside them."""
    match info:
        case msgspec.inspect.StructType():
            yield info
        case msgspec.inspect.UnionType():
            for one in info.types:
                yield from parts(one)
        case msgspec.inspect.VarTupleType():
            yield from parts(info.item_type)
        case msgspec.inspect.DictType():
            yield from parts(info.value_type)
        case _:
            pass


def default(field: msgspec.inspect.Field) -> tuple[bool, Any]:
    """Return (True, value) where a field that is not required has one; without it the field is absent."""
    if field.default is not msgspec.NODEFAULT:
        return True, field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return True, field.default_factory()
    return False, None


def meaning(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the `#:` comments say about the fields of a Struct and of its bases, by Python name."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith("schemas."):
            found.update(_comments(base.__module__).get(base.__name__, {}))
    return found


@functools.cache
def _comments(module: str) -> dict[str, dict[str, str]]:
    source = inspect.getsource(importlib.import_module(module))
    lines = source.splitlines()
    return {
        node.name: {
            field.target.id: said
            for field in node.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if (said := _above(lines, field.lineno - 1))
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def _above(lines: list[str], at: int) -> str:
    """Join the `#:` lines that end just above line `at`."""
    said: list[str] = []
    while at > 0 and lines[at - 1].strip().startswith("#:"):
        at -= 1
        said.insert(0, lines[at].strip().removeprefix("#:").strip())
    return " ".join(said)
