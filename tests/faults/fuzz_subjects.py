"""Mutated messages for every subject of the contract, and the users that send them.

The rows come from `shared/protocol/contract.py`, so a new subject, verb or command is fuzzed without an entry here.
Only the log is left out: a forged record there is damage, which tests/faults/test_damage.py
covers. What would stop the story for its own reasons stays as it is (`KEPT`).
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from schemas.base import Wire
from schemas.envelope import ENCODER, CommandBatch
from services.plan_applier.command_queue import ALLOWED
from shared.protocol import subjects
from shared.protocol.contract import ANY_CLIENT, SUBJECTS, Subject
from tests.faults import poison
from tests.golden.filled import fill

#: The node without an agent, in whose name the story speaks.
NODE = "n1"
PUBLIC, INSIDE, OF_NODE = "public", "inside", "node"
#: What parameters of an address stand for.
PARAMETERS = {
    "{node}": NODE,
    "{asker}": NODE,
    "{job}": "none",
    "{service}": "none",
    "{path}": "none",
    "{gauge}": "none",
    "{submission}": "none",
    "{worker}": "none",
    "{role}": "scheduler",
    "{instance}": "none",
    "{subject}": subjects.last_token(subjects.dead("none")),
}
#: By name of the field: no roll of the log, no accepted loss, no policy that ends retention, no million allocations.
KEPT: dict[str, Any] = {"generation": 10**6, "first_seq": 10**12, "policy_hash": "none"}
#: Subjects beyond the contract that a role listens on.
FURTHER = (subjects.presence("eval_broker", "backlog"), subjects.snapshot_set(7))


class FuzzRow(NamedTuple):
    """A subject, who may publish there, and messages that its reader understands, as JSON values."""

    address: str
    subject: str
    sender: str
    bodies: tuple[Any, ...]


def rows() -> Iterator[FuzzRow]:
    """Yield every subject of the contract but the log's."""
    for one in SUBJECTS:
        if one.stream.startswith("LOG"):
            continue
        agent = "node-1" if one.made_by == "hands" else NODE
        yield FuzzRow(one.address, _subject(one.address, agent), _sender(one), tuple(_bodies(one)))


def poisoned(draw: random.Random, row: FuzzRow) -> Iterator[bytes]:
    """Yield each message of a row as it is, with one invalid field, and with bytes changed on the way."""
    for body in row.bodies:
        yield poison.encoded(_kept(body, body))
        changed = _kept(poison.mutated(draw, body), body)
        yield poison.encoded(changed)
        yield poison.scrambled(draw, poison.encoded(changed))


def _subject(address: str, agent: str) -> str:
    out = address.replace("{node}", agent)
    for name, token in PARAMETERS.items():
        out = out.replace(name, token)
    return out


def _sender(one: Subject) -> str:
    if ANY_CLIENT in one.says:
        return PUBLIC
    return OF_NODE if one.says.startswith("the agent of ") else INSIDE


def _bodies(one: Subject) -> Iterator[Any]:
    if one.message_type is not CommandBatch:
        yield _plain(fill(one.message_type))
        return
    kind = one.address.split(".")[1]
    for command in ALLOWED[kind]:
        held = _plain(fill(command))
        if "node_id" in held:
            held["node_id"] = NODE
        yield {"sender": "fuzz", "commands": [held]}
    if not ALLOWED[kind]:
        yield {"sender": "fuzz", "commands": []}


def _plain(message: Wire) -> Any:
    return msgspec.json.decode(ENCODER.encode(message))


def _kept(changed: Any, body: Any) -> Any:
    """Put back the fields that would stop the story, wherever they stand, and drop what stands in their place."""
    if isinstance(changed, dict) and isinstance(body, dict):
        out = {key: _kept(value, body.get(key)) for key, value in changed.items()}
        return {**out, **{key: KEPT[key] for key in KEPT if key in body}}
    if isinstance(changed, list) and isinstance(body, list):
        return [_kept(one, body[0] if body else None) for one in changed]
    return changed


def block(draw: random.Random) -> bytes:
    """Draw a header block; it may be scrambled."""
    drawn = draw.choice(poison.HEADERS)
    return drawn if draw.random() < 0.5 else poison.scrambled(draw, drawn) or b"x"
