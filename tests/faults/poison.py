"""What no reader of the bus may die of: header blocks, subjects, bodies and values, drawn from a seed."""

import json
import random
from collections.abc import Iterator
from typing import Any

from schemas.policy import Policy
from shared.protocol import subjects
from shared.protocol.operator_verbs import VERBS
from tests.faults.city import body_of

BLOCK = b"NATS/1.0\r\n"
HEADERS = (
    b"garbage",
    b"\r\n",
    b"\x00\xff\xfe",
    b"NATS/1.0",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: x\r\n\r\n",
    b"NATS/1.0 abc\r\n\r\n",
    b"NATS/1.0 100 \xff\r\n\r\n",
    BLOCK + b"Nats-Msg-Id",
    BLOCK + b"Nats-Msg-Id:",
    BLOCK + b"Nats-Msg-Id: no end",
    BLOCK + b"Nats-Msg-Id: \xff\xfe\r\n\r\n",
    BLOCK + b"Nats-Msg-Id: a\nb\r\n\r\n",
    BLOCK + b"Nats-Msg-Id: a\rb\r\n\r\n",
    BLOCK + b"Nats-Msg-Id: a\r\n folded\r\n\r\n",
    BLOCK + b": no name\r\n\r\n",
    BLOCK + b"\r\n\r\n\r\n",
    BLOCK + b"X: " + b"y" * 30_000 + b"\r\n\r\n",
    BLOCK + b"Nats-Expected-Stream: CMD\r\n\r\n",
    BLOCK + b"Nats-Sequence: 99999999999999999999999\r\nNats-Subject: \xff\r\n\r\n",
    b"".join((BLOCK, *(b"X%d: 1\r\n" % n for n in range(500)), b"\r\n")),
)
#: Last tokens that the server takes.
TOKENS = (
    b"submit",
    b"\xff\xfe",
    b"\x0b\x0c\x1c",
    b"\x00",
    "ünïcode".encode() * 12,
    b"~",
    b"x" * 900,
    b"-1",
    b"\xed\xa0\x80",
)
DEEP = b"[" * 2_000 + b"]" * 2_000
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"garbage",
    b"\xff\x00",
    b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    b'{"Job":' * 2_000 + b"1" + b"}" * 2_000,
    b'{"JobHCL":' + DEEP + b"}",
    b'{"commands":' + DEEP + b"}",
    b'{"Unknown":' + DEEP + b"}",
    b'job "x" { a = ' + b"(" * 5_000 + b"1" + b")" * 5_000 + b" }",
    b'job "x" { ' + b"b { " * 3_000 + b"}" * 3_000 + b" }",
    b'{"x":"' + b"y" * 900_000 + b'"}',
    b"\x80" * 200_000,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**64,
    10**26,
    -(10**26),
    0.5,
    1e308,
    "",
    "a\r\nb",
    "\x00",
    "\ud800",
    "*.>",
    "../..",
    "x" * 20_000,
    "x" * 300_000,
    [],
    [[[]]] * 50,
    {},
    {"x": {"x": {"x": 1}}},
    {str(n): str(n) for n in range(3_000)},
)


def mutated(draw: random.Random, value: Any) -> Any:
    """Copy a JSON value with one part of it replaced, taken away, or doubled."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.1:
            return {other: one for other, one in value.items() if other != key}
        if draw.random() < 0.1:
            return {**value, f"{key}x": value[key]}
        return {**value, key: mutated(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], mutated(draw, value[at]), *value[at + 1 :]]
    return draw.choice(VALUES)


def encoded(value: Any) -> bytes:
    """Encode a value; half a surrogate stays an escape."""
    return json.dumps(value).encode()


def scrambled(draw: random.Random, data: bytes) -> bytes:
    """Flip, cut or fill in some bytes."""
    if not data:
        return draw.randbytes(draw.randrange(64))
    at, until = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    middle = draw.randbytes(draw.randrange(8))
    return data[:at] + middle + data[min(until, at + 16) :]


#: Requests of operators that change nothing which the story needs: one node, no roll.
REQUESTS: dict[str, dict[str, Any]] = {
    "operator.set_policy": {"change": {"job_keep_ns": 3_600_000_000_000}, "policy_hash": "none"},
    "operator.declare": {
        "node_id": "",
        "pool": {
            "name": "fuzzed",
            "amount": 10_000,
            "vendor": "v",
            "model": "m",
            "attributes": {"a": "b"},
        },
    },
    "node.set_eligibility": {"node_id": "fuzzed", "eligible": True},
    "node.confirm_dead": {"node_id": "fuzzed"},
    "volume.create": {"spec": {"id": "00000000-0000-0000-0000-000000000000", "name": "v"}},
    "volume.delete": {"volume_id": "none"},
    "volume.release_claim": {"job_id": "none", "group": "group", "index": 0},
    "node.drain": {"node_id": "fuzzed", "draining": True, "deadline_ns": 10**9},
    "node.set_meta": {"node_id": "fuzzed", "change": {"a": "b"}},
    "alloc.stop": {"alloc_id": "none"},
    "job.force_launch": {"job_id": "none"},
    "job.tag": {"job_id": "none", "name": "tag", "description": "text", "version": 0},
    "job.set_stability": {"job_id": "none", "version": 0, "stable": True},
    "deployment.promote": {"deployment_id": "none", "groups": ["group"]},
    "deployment.fail": {"deployment_id": "none"},
    "deployment.pause": {"deployment_id": "none"},
    "deployment.resume": {"deployment_id": "none"},
    "rollout.fail": {"rollout_id": "none"},
    "rollout.promote": {"rollout_id": "none"},
    "deployment.set_health": {
        "deployment_id": "none",
        "healthy": ["none"],
        "unhealthy": ["other"],
    },
    "system.gc": {"request_id": "g"},
    "system.roll": {"generation": 10**6},
    "system.accept_loss": {"first_seq": 10**12, "reason": "r" * 300_000},
}
QUERY = {
    "id": "first",
    "job_id": "",
    "node_id": "",
    "status": "",
    "group": "",
    "version": 0,
    "min_seq": 0,
    "limit": 5,
    "offset": 0,
}


def request_bodies(draw: random.Random) -> Iterator[tuple[bytes, bytes]]:
    """Yield (subject, body) of every request of the public, each with an invalid field."""
    job = json.loads(body_of(f"fuzz-{draw.randrange(10**9)}"))
    for verb in subjects.API_JOB_VERBS:
        yield subjects.api_jobs(verb).encode(), encoded(mutated(draw, job))
    for row in VERBS:
        body = REQUESTS[row.name]
        changed = mutated(draw, body)
        if isinstance(changed, dict):
            # What would stop the story for its own reasons stays as it is.
            kept = {key: body[key] for key in ("policy_hash", "generation") if key in body}
            changed |= kept
            yield subjects.api(row.noun, row.verb).encode(), encoded(changed)
    field = draw.choice(sorted(Policy.__struct_fields__))
    change = {"change": {field: draw.choice(VALUES)}, "policy_hash": "none"}
    yield subjects.api("operator", "set_policy").encode(), encoded(change)
    for noun in subjects.QUERY_NOUNS:
        yield subjects.query(noun).encode(), encoded(mutated(draw, QUERY))
    plan = {"Job": job["Job"], "min_seq": 0}
    yield subjects.query("plan").encode(), encoded(mutated(draw, plan))
    for verb in subjects.DROP_BOX_VERBS:
        yield subjects.jobs(verb).encode(), encoded(mutated(draw, job))
    for verb in subjects.NODE_RPC_VERBS:
        ask = {"alloc_id": "none", "session": "s", "task": "task", "path": "/", "offset": 0}
        yield subjects.node_rpc("node-1", verb).encode(), encoded(mutated(draw, ask))
