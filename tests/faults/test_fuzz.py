"""Standing fuzz: every subject, header and field, on the real bus, for CARAVAN_FUZZ_S seconds; then every role answers.

`just fuzz` takes ten minutes, `just full` one, the gate ten seconds from a fixed seed. The output names the seed;
CARAVAN_FUZZ_SEED repeats it.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from bench.harness.cluster import BenchCluster
from schemas.envelope import AnyCommand
from services.cli.local.cluster import LocalClusterSettings
from shared.bus.connection.nats_client import Login
from shared.bus.jetstream.sender_proof import mark_of
from shared.protocol import subjects
from shared.protocol.contract import SUBJECTS
from shared.protocol.operator_verbs import VERBS
from tests import seeds
from tests.bounds import LONG_S
from tests.faults import fuzz_subjects, poison
from tests.faults.city import City, play, watched
from tests.faults.raw_frames import RawSender
from tests.faults.roll_call import every_role_answers, failed_messages
from tests.not_tested import is_full

SECONDS = float(os.environ.get("CARAVAN_FUZZ_S", "60" if is_full() else "10"))
SEED = int(os.environ.get("CARAVAN_FUZZ_SEED", str(seeds.seed())))
PUBLIC = tuple(
    f"{stem}.".encode() for stem in ("jobs", "api.jobs", "api.operator", "api.node", "query")
)
#: Each row of the contract gets so many header blocks a round, one message each.
BLOCKS = 4


@pytest.fixture
def city_with_agent(tmp_path: Path) -> Iterator[BenchCluster]:
    """Every role and an agent, as processes of their own."""
    settings = LocalClusterSettings(
        data_dir=tmp_path / "data", agents=1, schedulers=1, appliers=2, raw_exec=True
    )
    with BenchCluster(settings) as running:
        running.add_nodes("n1")
        yield running


def public(cluster: BenchCluster) -> Login:
    """The user of all other clients."""
    return cluster.login("public")


async def poison_headers(sender: RawSender, draw: random.Random, subject: bytes) -> None:
    """Every header block on a subject, with some bodies."""
    for block in poison.HEADERS:
        await sender.send(subject, draw.choice(poison.BODIES[:6]), headers=block)
        await sender.send(subject, b"{}", headers=poison.scrambled(draw, block) or b"x")


async def poison_rows(senders: dict[str, RawSender], draw: random.Random) -> None:
    """Every subject of the contract, by a permitted user: messages of its kind with an invalid field or header."""
    for row in fuzz_subjects.rows():
        sender, subject = senders[row.sender], row.subject.encode()
        reply = b"" if row.sender == fuzz_subjects.INSIDE else b"_INBOX.fuzz"
        mark = mark_of(row.subject)
        for body in fuzz_subjects.poisoned(draw, row):
            await sender.send(subject, body, headers=mark, reply=reply)
        for body in draw.sample(poison.BODIES, 2):
            await sender.send(subject, body, headers=mark, reply=reply)
        for _ in range(BLOCKS):
            body = poison.encoded(draw.choice(row.bodies))
            await sender.send(subject, body, headers=fuzz_subjects.block(draw), reply=reply)
    for name in fuzz_subjects.FURTHER:
        await poison_headers(senders[fuzz_subjects.INSIDE], draw, name.encode())
        for body in draw.sample(poison.BODIES, 4):
            await senders[fuzz_subjects.INSIDE].send(name.encode(), body, headers=mark_of(name))
    for sender in senders.values():
        await sender.settle()


async def poison_doors(outside: RawSender, draw: random.Random) -> None:
    """The doors of clients: every header block, every token, every body, and every field of a real job."""
    for stem in PUBLIC:
        for token in poison.TOKENS:
            await outside.send(stem + token, draw.choice(poison.BODIES[:6]), reply=b"_INBOX.fuzz")
    for verb in (*subjects.API_JOB_VERBS, "nonsense"):
        subject = subjects.api_jobs(verb).encode()
        await poison_headers(outside, draw, subject)
        for body in poison.BODIES:
            await outside.send(subject, body, reply=b"_INBOX.fuzz")
    await poison_headers(outside, draw, subjects.jobs("submit").encode())
    for noun in draw.sample(subjects.QUERY_NOUNS, 3):
        await poison_headers(outside, draw, subjects.query(noun).encode())
        await outside.send(subjects.query(noun).encode(), draw.choice(poison.BODIES), reply=b"r.x")
    for token in poison.TOKENS:
        await outside.send(b"hands.node-1." + token, b"{}", reply=b"_INBOX.fuzz")
    for subject, body in poison.request_bodies(draw):
        await outside.send(subject, body, reply=b"_INBOX.fuzz")
        await outside.send(subject, poison.scrambled(draw, body), reply=b"_INBOX.fuzz")
    await outside.settle()


async def make_room(city: City, round_name: str) -> None:
    """Stop every job: hundreds of rounds would fill the node, and then nothing more is placed."""
    for job_id, job in list(city.observer.state.jobs.by_id.items()):
        if not job.stopped:
            body = {"JobID": job_id, "SubmissionID": f"stop-{round_name}-{job_id}"[:100]}
            verdict = await city.submit(json.dumps(body).encode(), "stop")
            assert verdict.status == "accepted", verdict


def test_no_subject_and_no_command_is_forgotten() -> None:
    """Every subject of the contract is fuzzed by a permitted user, and every command is among the bodies."""
    rows = list(fuzz_subjects.rows())
    assert {row.address for row in rows} == {
        one.address for one in SUBJECTS if not one.stream.startswith("LOG")
    }
    assert not [row.subject for row in rows if "{" in row.subject]
    assert all(row.bodies for row in rows)
    told = {
        command["type"]
        for row in rows
        for body in row.bodies
        if row.subject.startswith("cmd.")
        for command in body["commands"]
    }
    assert told == {str(one.__struct_config__.tag) for one in get_args(AnyCommand)}
    assert set(poison.REQUESTS) == {verb.name for verb in VERBS}
    senders = {row.subject.split(".")[0]: row.sender for row in rows}
    assert senders["hb"] == fuzz_subjects.OF_NODE
    assert {row.sender for row in rows if row.address == "cmd.report.{node}"} == {"node"}
    assert {senders[one] for one in ("jobs", "api", "hands", "query")} >= {fuzz_subjects.PUBLIC}


@pytest.mark.timeout(SECONDS + 2 * LONG_S)
def test_no_message_ends_a_role(city_with_agent: BenchCluster) -> None:
    """Whatever is sent on whatever subject, every process continues, answers, and the log is proven."""

    async def story() -> None:
        draw = random.Random(SEED)
        print(f"fuzz: seed {SEED}, {SECONDS:.0f} s")
        async with (
            watched(city_with_agent) as city,
            RawSender(public(city_with_agent)) as outside,
            RawSender(city_with_agent.login("admin")) as inside,
            RawSender(city_with_agent.node_login(fuzz_subjects.NODE)) as node,
        ):
            senders = {
                fuzz_subjects.PUBLIC: outside,
                fuzz_subjects.INSIDE: inside,
                fuzz_subjects.OF_NODE: node,
            }
            await city.lives("first")
            pids, ends, rounds = city_with_agent.pids(), time.monotonic() + SECONDS, 0
            while rounds == 0 or time.monotonic() < ends:
                rounds += 1
                await poison_doors(outside, draw)
                await poison_rows(senders, draw)
                await every_role_answers(city, pids, f"after-round-{rounds}")
                await make_room(city, f"after-round-{rounds}")
            counted = await asyncio.to_thread(failed_messages, city_with_agent)
            sent = {name: sender.sent for name, sender in senders.items()}
            print(f"fuzz: {rounds} rounds, {sum(sent.values())} messages {sent}, {counted}")
            failing = {one for one, count in counted.items() if count}
            assert any(one.startswith("intake") for one in failing), counted
            assert await city.count_buried(subjects.jobs("submit")) >= len(poison.HEADERS) // 2
            await city.proven()

    play(story())
