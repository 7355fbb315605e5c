"""docs/any-language.md says what is so: its exchanges are held with a real cluster."""

import asyncio
import json
import re
import time
from typing import Any, NamedTuple

import nats
import pytest
from nats.aio.client import Client

from tests.bounds import WAIT_S
from tests.clients.conftest import PAGE, inbox_prefix

#: Values that differ from cluster to cluster; their types do not.
PASSING = {
    "id",
    "alloc",
    "node",
    "key",
    "create_seq",
    "modify_seq",
    "require_by_ns",
    "require_by_ns_text",
    "cluster_id",
    "seq",
    "modify_index",
    "eval_id",
    "t_ns",
    "holder",
    "sum",
    "core",
}


class Exchange(NamedTuple):
    """One request of the page, and the answer that it shows."""

    subject: str
    body: bytes
    answer: dict[str, Any]


def exchanges() -> list[Exchange]:
    """Read the page's arrows, in order."""
    found: list[Exchange] = []
    for block in re.findall(
        r"^```exchange\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        pairs = re.findall(r"^→ (\S+)(.*?)^← (.*?)(?=^→|\Z)", block, re.DOTALL | re.MULTILINE)
        assert len(pairs) == block.count("→"), block
        for subject, *texts in pairs:
            body, answer = (re.sub(r"\n +", " ", text).strip() for text in texts)
            found.append(Exchange(subject, body.encode(), json.loads(answer)))
    return found


def difference(shown: Any, real: Any, key: str = "") -> str:
    """Say where a real answer is not as the page shows it; empty: it is."""
    if type(shown) is not type(real):
        return f"{key}: {real!r}"
    if isinstance(shown, dict):
        if shown.keys() != real.keys():
            return f"{key} has the keys {sorted(real)}, not {sorted(shown)}"
        return next(filter(None, (difference(shown[k], real[k], k) for k in shown)), "")
    if isinstance(shown, list):
        pairs = zip(shown, real, strict=False)
        if len(shown) != len(real):
            return f"{key} has {len(real)} entries, not {len(shown)}"
        return next(filter(None, (difference(a, b, key) for a, b in pairs)), "")
    return "" if key in PASSING or shown == real else f"{key}: {real!r}, not {shown!r}"


async def hold(nc: Client, one: Exchange) -> None:
    """Ask until the answer is as shown: numbers follow the tasks, which settle for 10 s."""
    deadline = time.monotonic() + WAIT_S
    while True:
        reply = await nc.request(one.subject, one.body, timeout=WAIT_S)
        fault = difference(one.answer, json.loads(reply.data or b"{}"))
        if not fault:
            return
        assert time.monotonic() < deadline, f"{one.subject}: {fault}"
        await asyncio.sleep(0.05)


@pytest.mark.bus
def test_exchanges_are_as_shown(bus: str) -> None:
    """Every request of the page gets the answer beside it: the same keys, and the same values where they can be."""

    async def talk() -> None:
        async with await nats.connect(bus, inbox_prefix=inbox_prefix(bus)) as nc:
            for one in exchanges():
                await hold(nc, one)

    assert len(exchanges()) >= 8
    asyncio.run(talk())


@pytest.mark.bus
def test_a_batch_is_as_shown(bus: str) -> None:
    """A batched direct get gives its records with their seqs and ends with status 204; behind the end it is 404."""

    async def talk(request: bytes) -> list[dict[str, str]]:
        async with await nats.connect(bus, inbox_prefix=inbox_prefix(bus)) as nc:
            inbox = nc.new_inbox()
            answers = await nc.subscribe(inbox)
            await nc.publish("$JS.API.DIRECT.GET.LOG_1", request, reply=inbox)
            found: list[dict[str, str]] = []
            while not found or "Status" not in found[-1]:
                found.append(dict((await answers.next_msg(timeout=WAIT_S)).headers or {}))
            return found

    headers = asyncio.run(talk(b'{"seq": 1, "batch": 3}'))
    assert [one.get("Nats-Sequence") for one in headers] == ["1", "2", "3", None]
    assert headers[0]["Nats-Subject"] == "log.1.lease"
    assert int(headers[0]["Nats-Num-Pending"]) > int(headers[2]["Nats-Num-Pending"])
    assert headers[-1]["Status"] == "204"
    assert asyncio.run(talk(b'{"seq": 1000000, "batch": 3}'))[0]["Status"] == "404"
    assert asyncio.run(talk(b'{"seq": "one"}'))[0]["Status"] == "408"
