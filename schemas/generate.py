"""Write what other languages and people read: schemas/json/*.json and docs/events.md, both from the Structs alone.

    python -m schemas.generate

Decides how the wire is described; a test generates all of it again and compares. Read `catalogue.py` first.
"""

import functools
import inspect
import json
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import msgspec._json_schema

from schemas import catalogue
from schemas.catalogue import COMMANDS, EVENTS, MESSAGES, Info, info_of, meaning

ROOT = Path(__file__).resolve().parent.parent
JSON_DIR = "schemas/json"
EVENTS_MD = "docs/events.md"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

#: Event tag -> whose command or deed leads to it. All are written by the plan applier and by nobody else.
CAUSES = {
    "cluster.created": "plan_applier: the first one of a new cluster",
    "policy.changed": "an operator, `set_policy`",
    "log.rolled": "an operator, `roll_log`; alone in a record of kind `roll`",
    "operator.refused": "an operator's command that the state speaks against",
    "job.registered": "intake, `register_job`",
    "job.stopped": "intake, `stop_job`",
    "job.evaluated": "intake, `evaluate_job`",
    "submission.refused": "intake, a command that the state speaks against",
    "intake.advanced": "intake, any command with a `jobs_seq`",
    "submissions.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "jobs.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "node.registered": "an agent, `report_node` with `spec`",
    "node.refused": "an agent, `report_node` with `spec`",
    "nodes.status_changed": "heartbeat, `change_liveness`",
    "node.eligibility_changed": "an operator, `set_eligibility`",
    "node.drain_changed": "an operator, `drain_node`",
    "node.meta_changed": "an operator, `set_node_meta`",
    "pool.declared": "an operator, `declare_pool`",
    "nodes.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "capacity.freed": "what made room: an agent's report or registration, liveness, an operator",
    "evaluations.created": "what calls for another look at a job: a submission, a report, liveness, a plan",
    "evaluations.woken": "eval_broker, `wake_evaluations`; a node held back for it that is gone",
    "reservations.changed": "scheduler, `submit_plan`; whatever takes a job, a node or the right to hold nodes away",
    "evaluation.ended": "a scheduler, `submit_plan` with `end`; eval_broker, `end_evaluations`",
    "evaluations.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "plan.committed": "a scheduler, `submit_plan`",
    "plan.refused": "a scheduler, `submit_plan`",
    "allocations.reported": "an agent, `report_node`",
    "allocations.displaced": "an operator, `stop_allocation`",
    "allocations.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
}

#: Command tag -> who sends it, on which subject.
SENDERS = {
    "register_job": "intake, on `cmd.job`",
    "stop_job": "intake, on `cmd.job`",
    "evaluate_job": "intake, on `cmd.job`",
    "skip_submission": "intake, on `cmd.job`",
    "change_liveness": "heartbeat, on `cmd.liveness`",
    "report_node": "an agent, on `cmd.report.<node>`",
    "wake_evaluations": "eval_broker, on `cmd.evaluation`",
    "end_evaluations": "eval_broker, on `cmd.evaluation`",
    "submit_plan": "a scheduler, on `cmd.plan`",
    "set_policy": "an operator, on `cmd.operator`",
    "set_eligibility": "an operator, on `cmd.operator`",
    "declare_pool": "an operator, on `cmd.operator`",
    "stop_allocation": "an operator, on `cmd.operator`",
    "drain_node": "an operator, on `cmd.operator`",
    "set_node_meta": "an operator, on `cmd.operator`",
    "collect_garbage": "an operator, on `cmd.operator`",
    "roll_log": "an operator, on `cmd.operator`",
}


# ---- JSON Schema ----


def components(types: tuple[type[msgspec.Struct], ...], ref: str) -> dict[str, Schema]:
    """Return the schemas of the types and of all their parts by name; `ref` is a template for `$ref`."""
    plain = functools.partial(msgspec.to_builtins, enc_hook=_raw_default)
    # A default of type Raw is unknown to msgspec 0.22's generator; there is no public way in.
    with mock.patch.object(msgspec._json_schema, "to_builtins", plain):  # noqa: SLF001
        found = msgspec.json.schema_components(types, ref_template=ref)[1]
    for name, struct in catalogue.structs().items():
        if name in found:
            said = meaning(struct.cls)
            for field in struct.fields:
                if text := said.get(field.name):
                    _describe(found[name]["properties"], field.encode_name, text)
    return dict(sorted(found.items()))


def _raw_default(value: object) -> object:
    assert isinstance(value, msgspec.Raw)
    return msgspec.json.decode(value)


def _describe(properties: Schema, key: str, text: str) -> None:
    """Give a property its description, before what is there already."""
    properties[key] = {"description": text, **properties[key]}


def document(message: type[msgspec.Struct]) -> Schema:
    """Return the self-contained JSON Schema of one message."""
    return {
        "$schema": _DIALECT,
        "title": message.__name__,
        "$ref": f"#/$defs/{message.__name__}",
        "$defs": components((message,), "#/$defs/{name}"),
    }


# ---- docs/events.md ----


def words(info: Info) -> str:
    """Name a type for people: JSON's own words, parts as links."""
    match info:
        case msgspec.inspect.StructType():
            return f"[{_title(info.cls)}](#{_title(info.cls).lower().replace('.', '')})"
        case msgspec.inspect.UnionType():
            shown = [words(one) for one in info.types if not _is_unset(one)]
            if len(shown) > 10:
                return f"any of {len(shown)}"
            return " or ".join(shown)
        case msgspec.inspect.VarTupleType():
            return f"list of {words(info.item_type)}"
        case msgspec.inspect.DictType():
            return f"object of {words(info.value_type)}"
        case _:
            name = type(info).__name__.removesuffix("Type")
            return {"Int": "integer", "Str": "text", "Bool": "boolean", "None": "null"}.get(
                name, "any JSON"
            )


def _is_unset(info: Info) -> bool:
    return isinstance(info, msgspec.inspect.CustomType) and info.cls is msgspec.UnsetType


def _title(struct: type[msgspec.Struct]) -> str:
    tag = struct.__struct_config__.tag
    return str(tag) if tag is not None else struct.__name__


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return "required"
    found, value = catalogue.default(field)
    if not found:
        return "absent"
    if isinstance(value, msgspec.Struct) and value == type(value)():
        return "its defaults"
    return f"`{msgspec.json.encode(value).decode()}`"


def _section(struct: type[msgspec.Struct], line: str = "") -> list[str]:
    """Describe one Struct: title, docstring, who, table of fields."""
    out = [f"### {_title(struct)}", "", inspect.getdoc(struct) or "", ""]
    if line:
        out += [line, ""]
    said = meaning(struct)
    rows = [
        f"| `{field.encode_name}` | {words(field.type)} | {_default(field)} |"
        f" {said.get(field.name, '').replace('|', ',')} |"
        for field in info_of(struct).fields
    ]
    if rows:
        out += ["| field | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    return out


def _families(
    tagged: tuple[type[msgspec.Struct], ...], who: dict[str, str], before: str
) -> list[str]:
    out: list[str] = []
    for struct in tagged:
        out += _section(struct, f"{before}{who[_title(struct)]}.")
    return out


def events_md() -> str:
    """Return docs/events.md."""
    tagged = {*EVENTS, *COMMANDS}
    rest = [info.cls for info in catalogue.structs().values() if info.cls not in tagged]
    roots = [struct for struct in MESSAGES if struct in rest]
    within = [struct for struct in rest if struct not in roots]
    out = [
        "# Events, commands and messages",
        "",
        "<!-- Written by `python -m schemas.generate` from schemas/*.py; a test compares. -->",
        "",
        "Everything on the wire is JSON. A field with its default value may be absent, a reader ignores fields",
        "it does not know. The same as JSON Schema: [schemas/json](../schemas/json). Which subject carries what:",
        "[subjects.md](subjects.md).",
        "",
        "## Events",
        "",
        "One fact each, inside a [Record](#record) of the log; `type` holds the tag. All of them are written by the",
        "plan applier alone; the line below a tag says whose command or deed leads to it.",
        "",
        *_families(EVENTS, CAUSES, "Written for: "),
        "## Commands",
        "",
        "Requests to the plan applier, inside a [CommandBatch](#commandbatch); `type` holds the tag.",
        "",
        *_families(COMMANDS, SENDERS, "Sent by: "),
        "## Messages",
        "",
        *(line for struct in roots for line in _section(struct)),
        "## Parts",
        "",
        "What events, commands and messages are made of.",
        "",
        *(line for struct in within for line in _section(struct)),
    ]
    return "\n".join(out).rstrip() + "\n"


# ---- all of it ----


def produce() -> dict[str, str]:
    """Return the text of every generated file by its path from the top."""
    made = {
        f"{JSON_DIR}/{message.__name__}.json": json.dumps(
            document(message), indent=1, ensure_ascii=False
        )
        + "\n"
        for message in MESSAGES
    }
    return {**made, EVENTS_MD: events_md()}


def main() -> None:
    """Write everything, and remove schemas of messages that are no more."""
    made = produce()
    (ROOT / JSON_DIR).mkdir(exist_ok=True)
    for old in (ROOT / JSON_DIR).glob("*.json"):
        if f"{JSON_DIR}/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
