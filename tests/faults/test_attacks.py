"""Attacks on the running product: 31, 32, 33, 35 and 36 of the attack table. tests/bus holds the walls one by one.

Here: with all services at work, what an attacker sends becomes no fact, and others are served meanwhile.
"""

import asyncio
import contextlib
import json
import time

import msgspec

from bench.harness.cluster import BenchCluster, wait_until
from schemas.envelope import CORE_VERSION, ENCODER, SCHEMA_VERSION, CommandBatch, LogRecord
from schemas.nodes import AllocReport, NodeSpec, ReportNode
from schemas.plans import Origin, SubmitPlan
from shared.bus.connection.nats_client import Login, connect
from shared.bus.jetstream import streams
from shared.bus.jetstream.direct_get import direct_get_batch
from shared.bus.jetstream.sender_proof import mark_of
from shared.bus.server import accounts
from shared.core.runtime.chain import seal
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bounds import LONG_S
from tests.conftest import FULL
from tests.faults.city import City, body_of, play, watched

CONNECTIONS = 1000 if FULL else 200
FLOOD_S = 10.0 if FULL else 2.0
OVERSIZE = 1024 * 1024 + 1
MARK = mark_of(subjects.report("n1"))
NOTHING = NodeSpec(node_id="n1", cpu_mhz=1, memory_mib=1, disk_mib=1)


def report(node_id: str, number: int, **more: object) -> bytes:
    """A node's report as its agent writes it."""
    command = ReportNode(
        node_id=node_id, host_id="host-n1", boot_id="boot-n1", number=number, **more
    )
    return ENCODER.encode(CommandBatch(sender=f"agent-{node_id}", commands=(command,)))


async def events_since(city: City, seq: int) -> list[dict[str, object]]:
    """Events of the records behind `seq`."""
    found: list[dict[str, object]] = []
    async for record in city.public.read_log(seq + 1):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            found += msgspec.json.decode(record.data, type=dict).get("events", [])
    return found


def test_a_node_forges_nothing(cluster: BenchCluster) -> None:
    """31: n1 speaks for itself only; as another node, of another's allocation, or with a plan it changes nothing."""

    async def story() -> None:
        async with watched(cluster) as city:
            await city.lives("victim")
            table, fleet = city.observer.state.allocations, city.observer.state.fleet
            row = int(table.rows_of("victim")[0])  # type: ignore[arg-type]
            key, owner = int(table.key[row]), fleet.ids[int(table.node[row])]
            n1 = await connect(cluster.node_login("n1"))
            try:
                n1.send(subjects.report("n1"), report("n1", 1, spec=NOTHING), headers=MARK)
                await wait_until(lambda: "n1" in fleet.row_of, "n1 is registered", LONG_S)
                seq = city.observer.replica.seq
                lie = AllocReport(key=key, row=row, status="failed")
                n1.send(subjects.report(owner), report(owner, 9, states=(lie,)), headers=MARK)
                n1.send(subjects.report("n1"), report(owner, 9, states=(lie,)), headers=MARK)
                n1.send(subjects.report("n1"), report("n1", 2, states=(lie,)), headers=MARK)
                n1.send(subjects.report("n1"), _plan(), headers=MARK)
                n1.send(
                    subjects.heartbeat(owner),
                    b'{"node_id":"%s","boot_id":"boot-1"}' % owner.encode(),
                )
                n1.send(subjects.log(1, "tx"), b"forged")
                await n1.flush()
                await city.lives("after-forgery")
                reasons = await city.dead_letters(subjects.report("n1"))
            finally:
                await n1.end()
            assert int(table.client[row]) == 0 and int(table.key[row]) == key
            jobs = {event["job_id"] for event in await events_since(city, seq) if "job_id" in event}
            assert jobs <= {"after-forgery"}
            assert (
                sum("forbidden" in one or "must not" in one or owner in one for one in reasons) == 2
            )
            await city.proven()

    play(story())


def _plan() -> bytes:
    origin = Origin(worker="thief", number=1, snapshot_seq=1)
    plan = SubmitPlan(key=1, job_id="victim", origin=origin)  # type: ignore[arg-type]
    return ENCODER.encode(CommandBatch(sender="thief", commands=(plan,)))


def test_a_smuggled_reply_is_foreign(cluster: BenchCluster) -> None:
    """32: naming the log as reply subject does nothing from outside; from a stolen role it leaves a foreign record."""

    async def story() -> None:
        async with watched(cluster) as city:
            foreign = city.observer.replica.chain.foreign
            log = subjects.log(1, "tx").encode()
            for verb in ("submit", "stop", "validate"):
                city.public.bus.send(subjects.api_jobs(verb), b"{}", log)
            city.public.bus.send(subjects.query("jobs"), b"{}", log)
            city.public.bus.send(subjects.js_direct_get("LOG_1"), b'{"seq":1,"batch":3}', log)
            await city.public.bus.flush()
            await city.lives("after-smuggling")
            assert city.observer.replica.chain.foreign == foreign
            async with cluster.connection("view") as stolen:
                stolen.send(subjects.view_job("nobody"), b"{}", log)
                await stolen.flush()
            await wait_until(
                lambda: city.observer.replica.chain.foreign == foreign + 1, "one foreign record"
            )
            await city.lives("after-the-stolen-role")
            assert (await city.proven())["foreign"] == foreign + 1

    play(story())


def test_a_forged_record_is_foreign(cluster: BenchCluster) -> None:
    """32: a stolen role has the server copy a perfect record into the log; it is foreign to all, and work continues."""

    async def story() -> None:
        async with watched(cluster) as city, cluster.connection("view") as stolen:
            await city.lives("before-the-forgery")
            chain = city.observer.replica.chain
            foreign, place = chain.foreign, subjects.view_job("nobody")
            while chain.foreign == foreign:
                # Others may write between our look at the head and the copy: then it is the next one.
                record = LogRecord(
                    kind="checkpoint",
                    schema=SCHEMA_VERSION,
                    core=CORE_VERSION,
                    epoch=chain.epoch,
                    prev=chain.head,
                    t_ns=chain.t_ns,
                    tables={"jobs": "0" * 16},
                )
                await stolen.request_raw(place, seal(record)[0])
                ask = subjects.js_direct_get("VIEW", place)
                stolen.send(ask, b"", subjects.log(1, "checkpoint").encode())
                await stolen.flush()
                await asyncio.sleep(0.1)
            await city.lives("after-the-forgery")
            assert (await city.proven())["foreign"] == chain.foreign
            assert all(cluster.pids().values())

    play(story())


def test_a_node_reads_nothing_foreign(cluster: BenchCluster) -> None:
    """33: n2 gets no other node's projection, and no job that it does not need for its own work by listening."""

    async def story() -> None:
        async with watched(cluster) as city:
            await city.lives("secret")
            owner = city.observer.state.fleet.ids[0]
            heard: list[bytes] = []
            n2 = await connect(cluster.node_login("n2"))
            try:
                for subject in (subjects.NODES, subjects.VIEWS, subjects.node(owner), ">"):
                    await n2.listen(subject, lambda name, *_: heard.append(name))
                try:
                    ask = subjects.js_direct_get("NODE", subjects.node(owner))
                    answer = (await n2.request_raw(ask, b"", timeout_s=1.0))[1]
                except BusUnavailable:
                    answer = b""
                await city.lives("while-listening")
                await n2.flush()
            finally:
                await n2.end()
            assert answer == b"" and heard == []

    play(story())


def test_nobody_drops_the_log(cluster: BenchCluster) -> None:
    """35: with the services at work no account deletes, purges or empties the log or the drop box."""

    async def story() -> None:
        async with watched(cluster) as city:
            before = await cluster.log_state()
            logins = [Login(url=cluster.client_url), cluster.node_login("n1")]
            logins += [cluster.login(name) for name in ("view", "plan_applier", "intake")]
            for login in logins:
                thief = await connect(login)
                for stream in ("LOG_1", "JOBS"):
                    thief.send(f"$JS.API.STREAM.DELETE.{stream}", b"")
                    thief.send(f"$JS.API.STREAM.UPDATE.{stream}", b'{"name":"LOG_1","max_msgs":1}')
                thief.send(subjects.js_stream_purge("LOG_1"), b"")
                thief.send(subjects.js_message_delete("LOG_1"), b'{"seq":1}')
                await thief.flush()
                await thief.end()
            await city.lives("after-the-thieves")
            after = await cluster.log_state()
            assert (after.first_seq, after.missing) == (1, 0) and after.last_seq > before.last_seq
            await city.proven()

    play(story())


def test_only_the_keeper_reaches_wrapped_keys(cluster: BenchCluster) -> None:
    """No other service, node, fleet or client reads, writes, erases or smuggles a key, or hears of a variable."""
    entry, keys = subjects.key_entry("data.victim"), streams.KEYS.name
    ask = {"config": msgspec.json.decode(msgspec.json.encode(streams.KEYS)), "stream_name": keys}
    verbs = ("DELETE", "PURGE", "UPDATE", "SNAPSHOT", "CREATE", "MSG.DELETE", "MSG.GET")
    asked = {f"$JS.API.STREAM.{verb}.{keys}": b'{"last_by_subj":"x","seq":1}' for verb in verbs}
    asked |= {subjects.js_direct_get(keys): b'{"seq":1,"batch":9}'}
    asked |= {subjects.js_direct_get(keys, entry): b""}
    asked |= {subjects.js_consumer_create(keys, "x"): msgspec.json.encode(ask)}
    asked |= {subjects.js_consumer_next(keys, "x"): b"1", entry: b"forged"}
    asked |= {subjects.key_entry("data.new"): b"forged", subjects.command("variable"): b"forged"}

    async def robs(login: Login, heard: list[bytes]) -> None:
        thief = await connect(login)
        try:
            for subject in (
                subjects.KEYS,
                subjects.API_VARIABLES,
                subjects.API_KEYRING,
                subjects.API_ALL,
                "cmd.variable",
            ):
                await thief.listen(subject, lambda *got: heard.append(got[3]))
            await thief.listen(inbox := thief.new_inbox(), lambda *got: heard.append(got[3]))
            for subject, body in asked.items():
                thief.send(subject, body, inbox.encode())
            await thief.flush()
            async with cluster.connection(accounts.PUBLIC) as client:
                client.send(subjects.api("variable", "put"), b"sealed")
                await client.flush()
            await thief.flush()
        finally:
            await thief.end()

    async def story() -> None:
        names = [*(one for one in accounts.ROLES if one != "keeper"), "fleet", accounts.PUBLIC]
        logins = [*(cluster.login(name) for name in names), cluster.node_login("n1")]
        async with cluster.connection() as admin:
            await streams.create(admin, streams.KEYS)
            await admin.request_raw(entry, b"wrapped")
            ordered: list[bytes] = []
            await admin.listen(subjects.command("variable"), lambda *got: ordered.append(got[3]))
            heard: list[bytes] = []
            for login in logins:
                await robs(login, heard)
            async with cluster.connection(accounts.PUBLIC) as client:
                smuggled = subjects.key_entry("data.smuggled").encode()
                client.send(subjects.js_direct_get("LOG_1"), b'{"seq":1,"batch":1}', smuggled)
                await client.flush()
            await admin.flush()
            found = await direct_get_batch(admin, keys, 1, subject=subjects.key_entry("data.*"))
            assert [(one.subject, one.data) for one in found] == [(entry, b"wrapped")]
            assert (heard, ordered) == ([], [])

    play(story())


def test_a_flood_leaves_others_served(cluster: BenchCluster) -> None:
    """36: under hundreds of connections that send garbage and too much, a well-behaved submitter gets its verdicts."""

    async def story() -> None:
        async with watched(cluster) as city:
            ends = time.monotonic() + FLOOD_S
            floods = [asyncio.create_task(_flood(cluster, ends, n)) for n in range(CONNECTIONS)]
            served = 0
            while time.monotonic() < ends:
                verdict = await city.submit(body_of(f"flood-{served}"))
                assert verdict.status == "accepted", verdict
                served += 1
            sent = sum(await asyncio.gather(*floods))
            assert served and sent >= CONNECTIONS
            names = [f"flood-{number}" for number in range(served)]
            await wait_until(lambda: all(city.held(n) == 1 for n in names), "all placed", LONG_S)
            await city.proven()

    play(story())


async def _flood(cluster: BenchCluster, ends: float, number: int) -> int:
    """Connect as PUBLIC and send what no service can read, again when the server hangs up."""
    host, port = cluster.url.removeprefix("nats://").split(":")
    user, password = cluster.credentials.login(accounts.PUBLIC)
    garbage = b'{"Job":{"ID":"x"'
    submit, kept = subjects.api_jobs("submit").encode(), subjects.jobs("submit").encode()
    calls = b"PUB %s r.1 %d\r\n%s\r\n" % (submit, len(garbage), garbage)
    calls += b"PUB %s %d\r\n%s\r\n" % (subjects.query("jobs").encode(), len(garbage), garbage)
    if number % 20 == 0:
        calls += b"PUB %s %d\r\n%s\r\n" % (kept, len(garbage), garbage)
    if number % 10 == 0:
        calls += b"PUB %s %d\r\n" % (submit, OVERSIZE) + b"y" * OVERSIZE
    sent = 0
    # Each sends something, however slow the machine.
    while time.monotonic() < ends or not sent:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            try:
                login = {"verbose": False, "user": user, "pass": password}
                writer.write(b"CONNECT %s\r\n" % json.dumps(login).encode())
                while (time.monotonic() < ends or not sent) and not writer.is_closing():
                    writer.write(calls)
                    sent += 1
                    await asyncio.sleep(0.1)
            finally:
                writer.transport.abort()
                await asyncio.sleep(0)
    return sent
