"""Describe every subject for other tools: schemas/asyncapi.json, written with FastStream; and docs/subjects.md.

    python -m services.gateway.edge.bus.asyncapi

Decides how shared/protocol/contract.py looks as AsyncAPI 3. FastStream knows channels, operations and messages;
schemas come
from msgspec (its own generator fails on Structs), and what it leaves out is put in here: parameters of an address, and
the replies of what is asked. The gateway serves the same document (`page.py`).
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
from schemas.catalogue import published_name
from shared.protocol import contract
from shared.protocol.contract import SUBJECTS, Subject
from shared.release import RELEASE

ASYNCAPI_JSON = "schemas/asyncapi.json"
SUBJECTS_MD = "docs/subjects.md"
_TITLE = "Caravan"
_DESCRIPTION = (
    "A workload orchestrator whose log is the product. Actions are seen from Caravan: it receives what clients may ask "
    "or submit, and sends everything else, to its own services too. All bodies are JSON."
)
_PARAMETERS = {
    "gauge": "The name of a gauge; it may have dots.",
    "generation": "Number of the log's generation, from 1.",
    "node": "Token of a node's id.",
    "asker": "Token of the id of the node that asks.",
    "job": "Token of a job's id.",
    "alloc": "Token of an allocation's id.",
    "task": "Token of a task's name.",
    "path": "Token of a variable's path, or `~h` and its SHA-256 where that is longer than 240 bytes.",
    "service": "Token of a service's name.",
    "submission": "Token of a submission's id.",
    "worker": "Token of a scheduler worker's instance.",
    "role": "Short name of a role.",
    "instance": "Token of an instance.",
    "subject": "Token of the first 60 characters of the subject it came on.",
}

_LOGIN = (
    "User and password of NATS. The server's accounts "
    "decide what each user may publish and subscribe: docs/any-language.md."
)
#: Unions of more types have a name of their own.
_UNION_NAMES_MAX = 6
_REF = "#/components/schemas/"

Json = dict[str, Any]


def produce() -> dict[str, str]:
    """Return the text of every generated file by its path from the top."""
    return {ASYNCAPI_JSON: document_text(), SUBJECTS_MD: contract.markdown()}


def document_text() -> str:
    """Return the AsyncAPI document as it is stored and served."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def document() -> Json:
    """Return the AsyncAPI document."""
    broker = NatsBroker(description="nats-server 2.15 or newer", protocol_version="1")
    stand_ins = {
        one.message_type: pydantic.create_model(published_name(one.message_type))
        for one in SUBJECTS
    }
    for one in SUBJECTS:
        broker.publisher(
            one.address,
            title=_key(one),
            description=_description(one),
            schema=stand_ins[one.message_type],
        )
    with warnings.catch_warnings():
        # The same message on two subjects is meant.
        warnings.simplefilter("ignore", RuntimeWarning)
        described = AsyncAPI(
            broker, title=_TITLE, version=RELEASE, description=_DESCRIPTION
        ).to_specification()
    made: Json = json.loads(described.to_json())
    return _complete(made)


def _key(one: Subject) -> str:
    """Name the channel: the address without what only separates."""
    return re.sub(r"\W+", "_", one.address).strip("_")


def _description(one: Subject) -> str:
    where = f"Stream {one.stream}: {one.kept}" if one.stream else "Not stored"
    return f"{one.what} Published by: {one.says}. Subscribed by: {one.subscriber}. {where}."


def _complete(made: Json) -> Json:
    """Put in the real schemas, parameters and replies."""
    carried = {struct for one in SUBJECTS for struct in (one.message_type, *one.answers)}
    types = tuple(sorted(carried, key=published_name))
    parts = made["components"]
    parts["schemas"] = _schemas(types)
    parts["securitySchemes"] = {"login": {"type": "userPassword", "description": _LOGIN}}
    for server in made["servers"].values():
        server["security"] = [{"$ref": "#/components/securitySchemes/login"}]
    for one in SUBJECTS:
        key = _key(one)
        channel, operation = made["channels"][key], made["operations"][key]
        operation["action"] = "receive" if _is_request(one) else "send"
        operation["summary"] = one.what
        message = parts["messages"][f"{key}:Message"]
        message["name"] = message["title"] = published_name(one.message_type)
        # Bodies travel without headers.
        del message["correlationId"]
        message["payload"] = {"$ref": f"{_REF}{published_name(one.message_type)}"}
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
        published_name(struct): str(struct.__struct_config__.tag)
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

    parts: Json = {tags.get(name, name): renamed(schema) for name, schema in sorted(found.items())}
    named: Json = {}
    for schema in parts.values():
        for key, inner in schema.get("properties", {}).items():
            schema["properties"][key] = _hoisted(inner, named)
        if "prefixItems" in schema:
            schema["prefixItems"] = [_hoisted(one, named) for one in schema["prefixItems"]]
    return dict(sorted({**parts, **named}.items()))


def _hoisted(node: Json, named: Json) -> Json:
    """Give a map or a union within a schema a name of its own in `named`; return what stands in its place."""
    said: Json = {key: node[key] for key in ("description", "default") if key in node}
    bare = {key: value for key, value in node.items() if key not in said}
    for key in ("additionalProperties", "items"):
        if isinstance(bare.get(key), dict):
            bare[key] = _hoisted(bare[key], named)
    if "anyOf" in bare:
        bare["anyOf"] = [_hoisted(one, named) for one in bare["anyOf"]]
    if "anyOf" not in bare and bare.get("type") != "object":
        return {**said, **bare}
    name = _type_name(bare)
    while named.setdefault(name, {"title": name, **bare}) != {"title": name, **bare}:
        name += "Other"
    return {**said, "$ref": _REF + name}


def _type_name(node: Json) -> str:
    """Name a type after its parts: MapOfInteger, TextOrNull."""
    if "$ref" in node:
        return str(node["$ref"]).removeprefix(_REF)
    if "anyOf" in node:
        names = [_type_name(one) for one in node["anyOf"]]
        if len(names) > _UNION_NAMES_MAX:
            return "AnyEvent" if "cluster.created" in names else "AnyCommand"
        return "Or".join(name[:1].upper() + name[1:] for name in names)
    kind = str(node.get("type", "any"))
    inner = node.get("additionalProperties") if kind == "object" else node.get("items")
    if isinstance(inner, dict):
        prefix = "MapOf" if kind == "object" else "ListOf"
        name = _type_name(inner)
        return prefix + name[:1].upper() + name[1:]
    return {"string": "Text"}.get(kind, kind.capitalize())


def _is_request(one: Subject) -> bool:
    return one.says.endswith(contract.ANY_CLIENT)


def _reply(made: Json, one: Subject) -> None:
    """Describe the answer: a channel whose address is the one that the asker names."""
    key = _key(one)
    back = f"{key}_reply"
    made["channels"][back] = {
        "address": None,
        "description": f"Answer to {one.address}, on the reply subject that the asker named.",
        "servers": made["channels"][key]["servers"],
        "messages": {published_name(struct): _message(made, struct) for struct in one.answers},
    }
    made["operations"][key]["reply"] = {
        "channel": {"$ref": f"#/channels/{back}"},
        "messages": [
            {"$ref": f"#/channels/{back}/messages/{published_name(struct)}"}
            for struct in one.answers
        ],
    }


def _message(made: Json, struct: type[Wire]) -> Json:
    name = f"{published_name(struct)}:Reply"
    made["components"]["messages"][name] = {
        "name": published_name(struct),
        "title": published_name(struct),
        "contentType": "application/json",
        "payload": {"$ref": f"{_REF}{published_name(struct)}"},
    }
    return {"$ref": f"#/components/messages/{name}"}


def main() -> None:
    """Write everything."""
    for name, text in produce().items():
        (generate.ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
