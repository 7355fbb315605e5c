"""The page of all subjects, rendered from the AsyncAPI document: no script, no request to another origin."""

from html import escape
from typing import Any

Json = dict[str, Any]
_SCHEMAS = "#/components/schemas/"


def render_page(document: Json) -> str:
    """The page: one section for each channel, and the fields of each message below."""
    channels, operations = document["channels"], document["operations"]
    schemas = document["components"]["schemas"]
    named = [(key, one) for key, one in channels.items() if one.get("address")]
    index = "\n".join(
        f'<li><a href="#{escape(key)}">{_code(one["address"])}</a></li>' for key, one in named
    )
    sections = "\n".join(
        _channel(key, one, operations.get(key, {}), document) for key, one in named
    )
    types = "\n".join(_schema(name, schemas[name]) for name in sorted(schemas))
    info = document["info"]
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}: subjects</title>\n'
        '<link rel="stylesheet" href="/ui/style.css"></head><body><main>\n'
        f"<h1>{escape(info['title'])} {escape(info['version'])}: subjects of the bus</h1>\n"
        f"<p>{escape(info.get('description', ''))}</p>\n"
        '<p>For tools: <a href="/bus/asyncapi.json">asyncapi.json</a></p>\n'
        f"<h2>Subjects</h2>\n<ul>\n{index}\n</ul>\n{sections}\n<h2>Types</h2>\n{types}\n"
        "</main></body></html>\n"
    )


def _channel(key: str, one: Json, operation: Json, document: Json) -> str:
    verb = "Caravan receives" if operation.get("action") == "receive" else "Caravan sends"
    rows = "".join(
        f"<tr><td>{_code(name)}</td><td>{escape(parameter.get('description', ''))}</td></tr>"
        for name, parameter in one.get("parameters", {}).items()
    )
    parameters = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    carried = ", ".join(_message(message, document) for message in one.get("messages", {}).values())
    reply = operation.get("reply", {}).get("messages", ())
    answers = ", ".join(_message(message, document) for message in reply)
    return (
        f'<section><h3 id="{escape(key)}">{_code(one["address"])}</h3>\n'
        f"<p>{escape(one.get('description', ''))}</p>{parameters}\n"
        f"<p>{verb}: {carried}{f'; answered by {answers}' if answers else ''}.</p></section>"
    )


def _message(reference: Json, document: Json) -> str:
    """A message by the type of its payload."""
    found = reference
    while "$ref" in found:
        node: Any = document
        for part in found["$ref"].removeprefix("#/").split("/"):
            node = node[part.replace("~1", "/").replace("~0", "~")]
        if found["$ref"].startswith(_SCHEMAS):
            break
        found = node
    payload = found.get("payload", found)
    return _type(payload)


def _schema(name: str, schema: Json) -> str:
    rows = "".join(
        f"<tr><td>{_code(field)}</td><td>{_type(one)}</td><td>{escape(one.get('description', ''))}</td></tr>"
        for field, one in schema.get("properties", {}).items()
    )
    fields = f"<table><tbody>{rows}</tbody></table>" if rows else f"<p>{_type(schema)}</p>"
    text = escape(schema.get("description", ""))
    return (
        f'<section><h3 id="type-{escape(name)}">{_code(name)}</h3><p>{text}</p>{fields}</section>'
    )


def _type(node: Json) -> str:
    """A type in words, with a link where it has a name."""
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        return f'<a href="#type-{escape(name)}">{_code(name)}</a>'
    if "anyOf" in node:
        return " or ".join(_type(one) for one in node["anyOf"])
    kind = str(node.get("type", "any"))
    inner = node.get("items") if kind == "array" else node.get("additionalProperties")
    if isinstance(inner, dict):
        return f"{'list' if kind == 'array' else 'map'} of {_type(inner)}"
    if "enum" in node:
        return ", ".join(_code(str(one)) for one in node["enum"])
    return escape(kind)


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
