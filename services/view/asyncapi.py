"""Describe every subject for other tools: schemas/asyncapi.json, written with FastStream; and docs/subjects.md.

    python -m services.view.asyncapi

Decides how shared/bus/contract.py looks as AsyncAPI 3. FastStream knows channels, operations and messages; schemas come
from msgspec (its own generator fails on Structs), and what it leaves out is put in here: parameters of an address, and
the replies of what is asked. Nothing at run time imports this.
"""

import json
import re
import warnings
from typing import Any

import pydantic
from faststream.nats import NatsBroker
from faststream.specification import AsyncAPI

from schemas import catalogue, generate
from schemas.base import Wire
from schemas.envelope import CORE_VERSION
from shared.bus import contract
from shared.bus.contract import SUBJECTS, Subject

ASYNCAPI_JSON = "schemas/asyncapi.json"
SUBJECTS_MD = "docs/subjects.md"
_TITLE = "Caravan"
_DESCRIPTION = (
    "A workload orchestrator whose log is the product. Actions are seen from Caravan: it receives what anybody may ask "
    "or submit, and sends everything else, to its own services too. All bodies are JSON."
)
_PARAMETERS = {
    "generation": "Number of the log's generation, from 1.",
    "node": "Token of a node's id.",
    "job": "Token of a job's id.",
    "submission": "Token of a submission's id.",
    "worker": "Token of a scheduler worker's instance.",
    "role": "Short name of a role.",
    "instance": "Token of an instance.",
    "subject": "Token of the first 60 characters of the subject it came on.",
}

_REF = "#/components/schemas/"

Json = dict[str, Any]


def produce() -> dict[str, str]:
    """Return the text of every generated file by its path from the top."""
    text = json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
    return {ASYNCAPI_JSON: text, SUBJECTS_MD: contract.markdown()}


def document() -> Json:
    """Return the AsyncAPI document."""
    broker = NatsBroker(description="nats-server 2.15 or newer", protocol_version="1")
    stand_ins = {one.carries: pydantic.create_model(one.carries.__name__) for one in SUBJECTS}
    for one in SUBJECTS:
        broker.publisher(
            one.address, title=_key(one), description=_told(one), schema=stand_ins[one.carries]
        )
    with warnings.catch_warnings():
        # The same message on two subjects is meant.
        warnings.simplefilter("ignore", RuntimeWarning)
        described = AsyncAPI(
            broker, title=_TITLE, version=CORE_VERSION, description=_DESCRIPTION
        ).to_specification()
    made: Json = json.loads(described.to_json())
    return _complete(made)


def _key(one: Subject) -> str:
    """Name the channel: the address without what only separates."""
    return re.sub(r"\W+", "_", one.address).strip("_")


def _told(one: Subject) -> str:
    where = f"Stream {one.stream}: {one.kept}" if one.stream else "Not stored"
    return f"{one.what} Said by: {one.says}. Heard by: {one.hears}. {where}."


def _complete(made: Json) -> Json:
    """Put in the real schemas, parameters and replies."""
    carried = {struct for one in SUBJECTS for struct in (one.carries, *one.answers)}
    types = tuple(sorted(carried, key=lambda struct: struct.__name__))
    parts = made["components"]
    parts["schemas"] = _schemas(types)
    for one in SUBJECTS:
        key = _key(one)
        channel, operation = made["channels"][key], made["operations"][key]
        operation["action"] = "receive" if _is_asked(one) else "send"
        operation["summary"] = one.what
        message = parts["messages"][f"{key}:Message"]
        message["name"] = message["title"] = one.carries.__name__
        # Bodies travel without headers.
        del message["correlationId"]
        message["payload"] = {"$ref": f"{_REF}{one.carries.__name__}"}
        names = re.findall(r"\{(\w+)\}", one.address)
        if names:
            channel["parameters"] = {name: {"description": _PARAMETERS[name]} for name in names}
        if one.answers:
            _reply(made, one)
    # FastStream keeps its publishers in a set.
    for part in (made["channels"], made["operations"], parts["messages"]):
        in_order = sorted(part.items())
        part.clear()
        part.update(in_order)
    return made


def _schemas(types: tuple[type[Wire], ...]) -> Json:
    """Return all schemas; tagged ones go by their tag, as AsyncAPI's discriminator wants it."""
    found = generate.components(types, _REF + "{name}")
    tags = {
        struct.__name__: str(struct.__struct_config__.tag)
        for struct in (*catalogue.EVENTS, *catalogue.COMMANDS)
    }

    def renamed(node: object) -> object:
        if isinstance(node, list):
            return [renamed(one) for one in node]
        if not isinstance(node, dict):
            return node
        out = {key: renamed(value) for key, value in node.items() if key != "discriminator"}
        name = str(node.get("$ref", "")).removeprefix(_REF)
        if name in tags:
            out["$ref"] = _REF + tags[name]
        if "mapping" in node.get("discriminator", {}):
            out["discriminator"] = node["discriminator"]["propertyName"]
        return out

    return {tags.get(name, name): renamed(schema) for name, schema in sorted(found.items())}


def _is_asked(one: Subject) -> bool:
    return one.says.endswith(contract.ANYBODY)


def _reply(made: Json, one: Subject) -> None:
    """Describe the answer: a channel whose address is the one that the asker names."""
    key = _key(one)
    back = f"{key}_reply"
    made["channels"][back] = {
        "address": None,
        "description": f"Answer to {one.address}, on the reply subject that the asker named.",
        "servers": made["channels"][key]["servers"],
        "messages": {struct.__name__: _message(made, struct) for struct in one.answers},
    }
    made["operations"][key]["reply"] = {
        "channel": {"$ref": f"#/channels/{back}"},
        "messages": [
            {"$ref": f"#/channels/{back}/messages/{struct.__name__}"} for struct in one.answers
        ],
    }


def _message(made: Json, struct: type[Wire]) -> Json:
    name = f"{struct.__name__}:Reply"
    made["components"]["messages"][name] = {
        "name": struct.__name__,
        "title": struct.__name__,
        "contentType": "application/json",
        "payload": {"$ref": f"{_REF}{struct.__name__}"},
    }
    return {"$ref": f"#/components/messages/{name}"}


def main() -> None:
    """Write everything."""
    for name, text in produce().items():
        (generate.ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
