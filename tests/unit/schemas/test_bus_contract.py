"""The contract of the bus: its AsyncAPI document and docs/subjects.md are current, whole and agree with the code."""

import re
from collections.abc import Callable

from schemas import generate
from services.gateway.edge.bus import asyncapi
from shared.bus.jetstream import streams
from shared.protocol import contract, subjects
from shared.protocol.subject_patterns import PATTERNS


def test_generated_files_are_current() -> None:
    """schemas/asyncapi.json and docs/subjects.md are what the contract says; `just schemas` writes them again."""
    made = asyncapi.produce()
    stale = [
        name
        for name, text in made.items()
        if (generate.ROOT / name).read_text(encoding="utf-8") != text
    ]
    assert stale == []


def test_every_subject_is_described() -> None:
    """Every function and constant of subjects.py stands in docs/subjects.md, and nothing that is not there."""
    listed = (subjects.LOG_KINDS, subjects.COMMAND_KINDS, subjects.DROP_BOX_VERBS)
    listed += (subjects.API_JOB_VERBS, subjects.QUERY_NOUNS)
    there = {
        name
        for name, value in vars(subjects).items()
        if not name.startswith("_")
        and value not in listed
        and (isinstance(value, str) or getattr(value, "__module__", "") == subjects.__name__)
    }
    described = {one.made_by for one in contract.SUBJECTS} | {one.name for one in PATTERNS}
    assert described == there
    page = (generate.ROOT / asyncapi.SUBJECTS_MD).read_text(encoding="utf-8")
    assert [name for name in sorted(there) if f"`{name}`" not in page] == []


def test_every_kind_is_described() -> None:
    """Every verb, noun and kind that subjects.py lists has a row of its own."""
    addresses = [one.address for one in contract.SUBJECTS]
    assert len(addresses) == len(set(addresses))
    wanted = {
        *(subjects.jobs(verb) for verb in subjects.DROP_BOX_VERBS),
        *(subjects.api_jobs(verb) for verb in subjects.API_JOB_VERBS),
        *(subjects.query(noun) for noun in subjects.QUERY_NOUNS),
        *(subjects.command(kind) for kind in subjects.COMMAND_KINDS if kind != "report"),
    }
    assert wanted <= set(addresses)
    assert len([one for one in contract.SUBJECTS if one.made_by == "log"]) == 4


def test_streams_hold_what_the_contract_says() -> None:
    """A subject's stream in the contract is the one whose declaration takes it, and core subjects have none."""
    declared = {
        one.name.replace("_1", "_{generation}"): [
            wanted.replace("log.1.", "log.{generation}.") for wanted in one.subjects
        ]
        for one in (streams.log_config(1), streams.JOBS, *streams.OF_NODES, *streams.ENSURED)
    }
    for row in contract.SUBJECTS:
        takes = [name for name, wanted in declared.items() if any(map(fits(row), wanted))]
        assert takes == ([row.stream] if row.stream else []), row.address


def fits(row: contract.Subject) -> Callable[[str], bool]:
    """Tell whether a stream's pattern takes the subjects of a row."""

    def taken(pattern: str) -> bool:
        text = re.escape(pattern).replace(r"\*", r"[^.]+").replace(">", ".+")
        return re.fullmatch(text, row.address) is not None

    return taken


def test_every_reference_leads_somewhere() -> None:
    """Every $ref of the document names a part of it."""
    document = asyncapi.document()

    def refs(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [one for value in node.values() for one in refs(value)]
        return [one for value in node for one in refs(value)] if isinstance(node, list) else []

    found = refs(document)
    assert found
    for ref in found:
        at = document
        for token in ref.removeprefix("#/").split("/"):
            assert token in at, ref
            at = at[token]


def test_every_type_has_a_name_and_every_server_a_login() -> None:
    """No map, object or union stands inside another schema, where generators would call it anonymous."""
    document = asyncapi.document()

    def anonymous(node: object, path: str) -> list[str]:
        if isinstance(node, list):
            return [one for at, part in enumerate(node) for one in anonymous(part, f"{path}/{at}")]
        if not isinstance(node, dict):
            return []
        own = [path] if node.get("type") == "object" or "anyOf" in node else []
        inner = [(key, part) for key, part in node.items() if key != "default"]
        return own + [one for key, part in inner for one in anonymous(part, f"{path}/{key}")]

    for name, schema in document["components"]["schemas"].items():
        assert schema.get("title"), name
        assert [one for one in anonymous(schema, name) if one != name] == []
    for server in document["servers"].values():
        (login,) = server["security"]
        assert login["$ref"].rpartition("/")[2] in document["components"]["securitySchemes"]
