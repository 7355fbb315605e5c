"""Write what other languages and people read, all from the Structs alone.

    python -m schemas.generate

Files: schemas/json/*.json, docs/events.md, docs/queries.md, and messages.py and queries.py of the Python client.

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

from schemas import bounds, catalogue, python_client, queries
from schemas.answers import ErrorAnswer
from schemas.catalogue import (
    COMMANDS,
    EVENTS,
    MESSAGES,
    Info,
    StructInfo,
    info_of,
    meaning,
    published_name,
)
from schemas.event_readers import READERS
from schemas.jobs import ParsedJob, Verdict
from schemas.operator import OperatorVerdict
from schemas.projections import JobProjection, NodeSummary

ROOT = Path(__file__).resolve().parent.parent
JSON_DIR = "schemas/json"
EVENTS_MD = "docs/events.md"
QUERIES_MD = "docs/queries.md"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

#: What the Python client reads; the log it reads as JSON.
CLIENT_MESSAGES: tuple[type[msgspec.Struct], ...] = (
    *catalogue.ANSWERS.values(),
    *(answer for _, answer in catalogue.NODE_RPCS.values()),
    ErrorAnswer,
    Verdict,
    ParsedJob,
    OperatorVerdict,
    JobProjection,
    NodeSummary,
)

#: Event tag -> whose command leads to it. All are written by the plan applier alone.
CAUSES = {
    "cluster.created": "plan_applier: the first one of a new cluster",
    "policy.changed": "an operator, `set_policy`",
    "log.rolled": "an operator, `roll_log`; alone in a record of kind `roll`",
    "log.loss_accepted": "an operator, `accept_loss`",
    "log.incarnation_began": "plan_applier: another start of the bus; heartbeat, `begin_incarnation`",
    "operator.refused": "an operator's command that is invalid in the current state",
    "job.registered": "intake: `register_job`, `dispatch_job`, `revert_job`, `scale_job`, `start_job`;"
    " timekeeper, `launch_due`",
    "job.stopped": "intake, `stop_job`",
    "job.evaluated": "intake, `evaluate_job`",
    "submission.refused": "intake, a command that is invalid in the current state",
    "intake.advanced": "intake, any command with a `jobs_seq`",
    "submissions.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "jobs.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "job.launched": "timekeeper, `launch_due`; an operator, `force_launch`",
    "launch.skipped": "timekeeper, `launch_due`",
    "job.payload": "intake, `dispatch_job`; timekeeper, `launch_due`",
    "node.registered": "an agent, `report_node` with `spec`",
    "node.refused": "an agent, `report_node` with `spec`",
    "nodes.status_changed": "heartbeat, `change_liveness`",
    "node.eligibility_changed": "an operator, `set_eligibility`",
    "node.drain_changed": "an operator, `drain_node`",
    "node.drained": "an agent, `report_node`; a scheduler, `submit_plan`; an operator, `drain_node`",
    "node.meta_changed": "an operator, `set_node_meta`",
    "node.confirmed_dead": "an operator, `confirm_death`",
    "pool.declared": "an operator, `declare_pool`",
    "nodes.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "capacity.freed": "what made room: an agent's report or registration, liveness, an operator",
    "evaluations.created": "what requires another evaluation of a job: a submission, a report, liveness, a plan",
    "evaluations.woken": "eval_broker, `wake_evaluations`; the loss of a node reserved for it",
    "reservations.changed": "scheduler, `submit_plan`; a command that removes a job, a node or a reservation",
    "evaluation.ended": "a scheduler, `submit_plan` with `end`; eval_broker, `end_evaluations`",
    "evaluations.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
    "plan.committed": "a scheduler, `submit_plan`",
    "plan.refused": "a scheduler, `submit_plan`",
    "allocations.reported": "an agent, `report_node`",
    "allocations.displaced": "an operator, `stop_allocation`",
    "allocations.health_changed": "an agent, `report_node`; an operator, `set_allocation_health`",
    "deployment.started": "what registers a new version of a job: intake, `register_job`; a failed deployment's revert",
    "deployment.sized": "a scheduler, `submit_plan` with `sizes`",
    "deployment.promoted": "an operator, `promote_deployment`; the health of the last canary, with `auto_promote`",
    "deployment.paused": "an operator, `pause_deployment`",
    "deployment.resumed": "an operator, `pause_deployment`",
    "deployment.held": "the plan applier: a gate is closed, or a rollout has not come to this member",
    "deployment.released": "the plan applier: its hold ended; an operator, `pause_deployment` with `ignore_gate`",
    "deployment.gated": "beside `deployment.started`, of a job with gates or windows",
    "deployment.gate_changed": "timekeeper, `gate_due`: a gauge crossed a bound or fell silent, or a gate timed out",
    "deployment.window_changed": "timekeeper, `gate_due`: a window opened or closed",
    "deployment.ended": "the last health or plan, a deadline, an operator, a newer version, a stop of the job",
    "rollout.started": "intake, `register_jobs`",
    "rollout.ended": "the end of a member's deployment; an operator, `fail_rollout`; a member changed alone",
    "job.stability_changed": "an operator, `set_stability`",
    "job.version_tagged": "an operator, `tag_version`",
    "variable.put": "keeper, `put_variable`",
    "variable.deleted": "keeper, `delete_variable`; `put_variable` with `shred_old`",
    "variable.shredded": "keeper, `shred_variables`",
    "variable.refused": "keeper, a command that is invalid in the current state",
    "variable.locked": "keeper, `lock_variable`",
    "variable.lock_released": "keeper, `release_lock`",
    "variable.lock_expired": "keeper, `expire_lock`",
    "key.created": "keeper, `create_key`",
    "signing_key.created": "keeper, `create_signing_key`",
    "signing_key.removed": "keeper, `remove_signing_key`",
    "claim.made": "beside `plan.committed`: the first placement of an index of a group with a sticky volume",
    "claim.released": "an operator, `release_claim`",
    "volume.requested": "an operator, `request_volume`",
    "volume.ready": "an agent, `report_node`",
    "volume.failed": "an agent, `report_node`",
    "volume.deleting": "an operator, `remove_volume`",
    "volume.deleted": "an agent, `report_node`; an operator, `remove_volume` with `force`",
    "remotes.reported": "an agent, `report_node`: what runs elsewhere for a task; a start, before it is made",
    "remote.moved": "beside the end of a tracker of a remote task, or its replacement; an agent, `report_remote_ended`",
    "allocations.collected": "plan_applier, by policy in log time; an operator, `collect_garbage`",
}

#: Command tag -> its sender and subject.
SENDERS = {
    "register_job": "intake, on `cmd.job`",
    "register_jobs": "intake, on `cmd.job`",
    "stop_job": "intake, on `cmd.job`",
    "evaluate_job": "intake, on `cmd.job`",
    "skip_submission": "intake, on `cmd.job`",
    "launch_due": "timekeeper, on `cmd.timer`",
    "gate_due": "timekeeper, on `cmd.timer`",
    "dispatch_job": "intake, on `cmd.job`",
    "revert_job": "intake, on `cmd.job`",
    "scale_job": "intake, on `cmd.job`",
    "start_job": "intake, on `cmd.job`",
    "force_launch": "an operator, on `cmd.operator`",
    "tag_version": "an operator, on `cmd.operator`",
    "set_stability": "an operator, on `cmd.operator`",
    "change_liveness": "heartbeat, on `cmd.liveness`",
    "begin_incarnation": "heartbeat, on `cmd.liveness`",
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
    "confirm_death": "an operator, on `cmd.operator`",
    "collect_garbage": "an operator, on `cmd.operator`",
    "roll_log": "an operator, on `cmd.operator`",
    "accept_loss": "an operator, on `cmd.operator`",
    "fail_rollout": "an operator, on `cmd.operator`",
    "promote_rollout": "an operator, on `cmd.operator`",
    "promote_deployment": "an operator, on `cmd.operator`",
    "fail_deployment": "an operator, on `cmd.operator`",
    "pause_deployment": "an operator, on `cmd.operator`",
    "set_allocation_health": "an operator, on `cmd.operator`",
    "deployment_due": "timekeeper, on `cmd.timer`",
    "put_variable": "keeper, on `cmd.variable`",
    "delete_variable": "keeper, on `cmd.variable`",
    "shred_variables": "keeper, on `cmd.variable`",
    "lock_variable": "keeper, on `cmd.variable`",
    "release_lock": "keeper, on `cmd.variable`",
    "expire_lock": "keeper, on `cmd.variable`",
    "create_key": "keeper, on `cmd.variable`",
    "create_signing_key": "keeper, on `cmd.variable`",
    "remove_signing_key": "keeper, on `cmd.variable`",
    "release_claim": "an operator, on `cmd.operator`",
    "request_volume": "an operator, on `cmd.operator`",
    "remove_volume": "an operator, on `cmd.operator`",
    "report_remote_ended": "an agent, on `cmd.report.<node>`",
}


# ---- JSON Schema ----


def components(types: tuple[type[msgspec.Struct], ...], ref: str) -> dict[str, Schema]:
    """Return the schemas of the types and of all their parts by name; `ref` is a template for `$ref`."""
    plain = functools.partial(msgspec.to_builtins, enc_hook=_raw_default)
    # msgspec 0.22's generator knows no default of type Raw and no other name than the class's: both are patched in.
    patched = mock.patch.multiple(
        msgspec._json_schema,  # noqa: SLF001
        to_builtins=plain,
        _get_class_name=published_name,
    )
    with patched:
        found = msgspec.json.schema_components(types, ref_template=ref)[1]
    for name, struct in catalogue.structs().items():
        if name in found:
            said = meaning(struct.cls)
            for field in struct.fields:
                _bound(found[name], struct, field)
                if text := said.get(field.name):
                    _describe(found[name]["properties"], field.encode_name, text)
    return dict(sorted(found.items()))


def _bound(schema: Schema, struct: StructInfo, field: msgspec.inspect.Field) -> None:
    """Write the bounds of a field's integers and its words into its schema."""
    properties = schema.get("properties")
    if properties is None:
        # An array of values, in the order of the fields.
        at = [one.name for one in struct.fields].index(field.name)
        _bound_integers(schema["prefixItems"][at], struct.cls.__name__, field.name)
        return
    _bound_integers(properties[field.encode_name], struct.cls.__name__, field.name)
    if isinstance(field.type, msgspec.inspect.RawType):
        # Any JSON, as it was submitted or reported.
        properties[field.encode_name]["x-exceeds-double"] = True
    words = bounds.WORDS.get((struct.cls.__name__, field.name))
    if words is not None:
        shown = properties[field.encode_name]
        absent = () if shown.get("default", words[0]) in words else (shown["default"],)
        shown["enum"] = [*absent, *words]


def _bound_integers(node: object, struct: str, field: str) -> None:
    if isinstance(node, list):
        for one in node:
            _bound_integers(one, struct, field)
    elif isinstance(node, dict):
        if node.get("type") == "integer":
            low, high = bounds.bounds(struct, field)
            kind = "int64" if high < bounds.UINT64[1] else "uint64"
            node.update(format=kind, minimum=low, maximum=high)
            if bounds.may_exceed_double(struct, field):
                node["x-exceeds-double"] = True
        for key, value in node.items():
            if key != "default":
                _bound_integers(value, struct, field)


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
        "title": published_name(message),
        "$ref": f"#/$defs/{published_name(message)}",
        "$defs": components((message,), "#/$defs/{name}"),
    }


# ---- docs/events.md ----


def type_text(info: Info) -> str:
    """Name a type for people: JSON's own words, parts as links."""
    match info:
        case msgspec.inspect.StructType():
            return f"[{_title(info.cls)}](#{_title(info.cls).lower().replace('.', '')})"
        case msgspec.inspect.UnionType():
            shown = [type_text(one) for one in info.types if not _is_unset(one)]
            if len(shown) > 10:
                return f"any of {len(shown)}"
            return " or ".join(shown)
        case msgspec.inspect.VarTupleType():
            return f"list of {type_text(info.item_type)}"
        case msgspec.inspect.DictType():
            return f"object of {type_text(info.value_type)}"
        case _:
            name = type(info).__name__.removesuffix("Type")
            return {"Int": "integer", "Str": "text", "Bool": "boolean", "None": "null"}.get(
                name, "any JSON"
            )


def _is_unset(info: Info) -> bool:
    return isinstance(info, msgspec.inspect.CustomType) and info.cls is msgspec.UnsetType


def _title(struct: type[msgspec.Struct]) -> str:
    tag = struct.__struct_config__.tag
    return str(tag) if tag is not None else published_name(struct)


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
    """Describe one Struct: title, docstring, `line`, table of fields."""
    out = [f"### {_title(struct)}", "", inspect.getdoc(struct) or "", ""]
    if line:
        out += [line, ""]
    said = meaning(struct)
    rows = [
        f"| `{field.encode_name}` | {type_text(field.type)} | {_default(field)} |"
        f" {_said(struct, field, said.get(field.name, ''))} |"
        for field in info_of(struct).fields
    ]
    if rows:
        out += ["| field | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    return out


def _said(struct: type[msgspec.Struct], field: msgspec.inspect.Field, said: str) -> str:
    """What the page says of a field: its comment, its words, and bounds other than those of 64 bits."""
    parts = [said.replace("|", ",")] if said else []
    words = bounds.WORDS.get((struct.__name__, field.name))
    if words is not None and not all(word in said for word in words):
        parts.append(f"One of {', '.join(f'`{word}`' for word in words)}.")
    low, high = bounds.bounds(struct.__name__, field.name)
    if (low, high) != bounds.INT64:
        parts.append(f"From {low} to {high}.")
    return " ".join(parts)


def _event_line(tag: str) -> str:
    """Say what leads to an event, and which code reads it."""
    readers = [f"`{one.path}`" for one in READERS if tag not in one.ignored()]
    return f"Written for: {CAUSES[tag]}.\\\nRead by: {', '.join(readers)}."


def _readers() -> list[str]:
    """Describe the readers of events, and what each ignores."""
    out = ["| code | purpose | ignores |", "|---|---|---|"]
    for one in READERS:
        ignored = "; ".join(
            f"{reason}: {', '.join(f'`{tag}`' for tag in tags.split())}"
            for reason, tags in one.ignores.items()
        )
        out.append(f"| `{one.path}` | {one.purpose} | {ignored} |")
    return [*out, ""]


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
        "Integers are signed, with 64 bits, where a field names no other bounds; what comes from outside them is",
        "refused. Keys, and times and spans in nanoseconds, may exceed 2^53 (`x-exceeds-double` in the JSON Schema):",
        "a reader whose numbers are doubles needs a decoder of big integers. Answers of `query.*` and values of",
        "`view.*` have them as text, too: `<field>_text` beside `<field>` is not empty where it exceeds 2^53. Fields",
        "of any JSON, such as the text of a job, have none.",
        "",
        "## Events",
        "",
        "One fact each, inside a [Record](#record) of the log; `type` holds the tag. All of them are written by the",
        "plan applier alone; the lines below a tag say whose command leads to it, and which code reads it.",
        "",
        *(line for struct in EVENTS for line in _section(struct, _event_line(_title(struct)))),
        "## Readers of events",
        "",
        "Each reader handles an event or ignores it for a reason (schemas/event_readers.py); a test compares this",
        "with the code.",
        "",
        *_readers(),
        "## Commands",
        "",
        "Requests to the plan applier, inside a [CommandBatch](#commandbatch); `type` holds the tag.",
        "",
        *(
            line
            for struct in COMMANDS
            for line in _section(struct, f"Sent by: {SENDERS[_title(struct)]}.")
        ),
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
        f"{JSON_DIR}/{published_name(message)}.json": json.dumps(
            document(message), indent=1, ensure_ascii=False
        )
        + "\n"
        for message in MESSAGES
    }
    client = {
        python_client.MESSAGES_PY: python_client.messages_source(
            [document(message) for message in CLIENT_MESSAGES]
        ),
        python_client.QUERIES_PY: python_client.queries_source(
            {noun: published_name(answer) for noun, answer in catalogue.ANSWERS.items()}
        ),
    }
    return {**made, **client, EVENTS_MD: events_md(), QUERIES_MD: queries.markdown()}


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
