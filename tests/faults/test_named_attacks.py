"""Attacks that once ended a role, byte for byte, on the real bus: each is refused alone, then every role answers."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bench.harness.cluster import BenchCluster, wait_until
from bench.harness.fleet_process import n1_standard_8
from schemas.policy import Policy
from services.cli.local.cluster import LocalClusterSettings
from shared.bus.connection.nats_client import header_block
from shared.bus.jetstream.sender_proof import mark_of
from shared.bus.server import accounts
from shared.errors import BusUnavailable
from shared.protocol import subjects
from tests.bounds import LONG_S
from tests.faults.city import City, body_of, metrics, play, watched
from tests.faults.raw_frames import RawSender
from tests.faults.roll_call import every_role_answers, failed_messages

HUGE = 10**26
NUMBERS = [name for name in Policy.__struct_fields__ if type(getattr(Policy(), name)) is int]
DECLARE = subjects.api("operator", "declare")
DRAIN = subjects.api("node", "drain")
SET_POLICY = subjects.api("operator", "set_policy")
LONG_POOL = {"name": "licence", "amount": 10_000, "vendor": "v" * 1_010_000}


async def refused(city: City, subject: str, body: dict[str, object]) -> str:
    """Ask, and return the code of the refusal."""
    answer = await city.public.request(subject, body, LONG_S)
    assert answer["status"] == "refused", answer
    return str(answer["error"]["code"])


async def commanded(cluster: BenchCluster, *commands: dict[str, object]) -> None:
    """Put commands of operators where only a role may: past the door that would refuse them."""
    subject = subjects.command("operator")
    async with RawSender(cluster.login("admin")) as inside:
        for command in commands:
            body = json.dumps({"sender": "view-1", "commands": [command]}).encode()
            await inside.send(subject.encode(), body, headers=mark_of(subject))
        await inside.settle()


async def view_is_there(city: City) -> dict[str, int]:
    """Wait until the view answers; return the processes."""
    await city.dead_letters("none")
    return city.cluster.pids()


def test_a_vendor_that_no_record_holds_ends_no_applier(cluster: BenchCluster) -> None:
    """`declare` with a vendor of 1,010,000 bytes is refused at the door, and as a command by the applier, as a fact."""

    async def story() -> None:
        async with watched(cluster) as city:
            pids = await view_is_there(city)
            epoch = city.observer.replica.chain.epoch
            assert await refused(city, DECLARE, {"pool": LONG_POOL}) == "too_large"
            command = {
                "type": "declare_pool",
                "request_id": "long",
                "node_id": "",
                "pool": LONG_POOL,
            }
            await commanded(cluster, command)
            await every_role_answers(city, pids, "after-the-vendor")
            assert city.observer.replica.chain.epoch == epoch
            assert ("", "licence") not in city.observer.state.fleet.declared
            await city.proven()

    play(story())


@pytest.mark.parametrize("line", [b"a\nb", b"a\rb", b"a\r\n folded", b"a\r\nNats-Msg-Id: b"])
def test_a_message_id_with_a_line_break_ends_no_role(cluster: BenchCluster, line: bytes) -> None:
    """A `Nats-Msg-Id` with a line break in the drop box and at the asked door becomes a verdict or a dead letter."""

    async def story() -> None:
        async with watched(cluster) as city:
            pids = await view_is_there(city)
            block = b"NATS/1.0\r\nNats-Msg-Id: " + line + b"\r\n\r\n"
            body = json.loads(body_of(f"id-{line.hex()}"))
            del body["SubmissionID"]
            text = json.dumps(body).encode()
            async with RawSender(cluster.login("public")) as outside:
                for subject in (subjects.jobs("submit"), subjects.api_jobs("submit")):
                    await outside.send(
                        subject.encode(), text, headers=block, reply=b"_INBOX.public.x"
                    )
                await outside.settle()
            await every_role_answers(city, pids, f"after-id-{line.hex()}")
            ids = city.observer.state.jobs.submissions
            assert not [one for one in ids if "\n" in one or "\r" in one]
            await city.proven()

    play(story())


def test_numbers_that_no_snapshot_holds_end_no_role(cluster: BenchCluster) -> None:
    """10^26 as the deadline of a drain and in every number of the policy is refused, asked or commanded."""

    async def story() -> None:
        async with watched(cluster) as city:
            pids = await view_is_there(city)
            fleet = city.observer.state.fleet
            node_id, policy = fleet.ids[0], city.observer.state.policy.policy
            for sign in (1, -1):
                body = {"node_id": node_id, "draining": True, "deadline_ns": sign * HUGE}
                assert await refused(city, DRAIN, body) == "invalid"
            for name in NUMBERS:
                assert await refused(city, SET_POLICY, {"change": {name: HUGE}}) == "invalid"
            drain = {"type": "drain_node", "node_id": node_id, "draining": True}
            await commanded(
                cluster,
                {**drain, "request_id": "drain", "deadline_ns": HUGE},
                {**drain, "request_id": "edge", "deadline_ns": 2**63 - 1},
                *(
                    {"type": "set_policy", "request_id": name, "policy": {name: HUGE}}
                    for name in NUMBERS
                ),
            )
            await every_role_answers(city, pids, "after-the-numbers")
            assert len(NUMBERS) >= 8
            assert not fleet.drains and city.observer.state.policy.policy == policy
            await city.proven()

    play(story())


def test_the_drop_box_is_weighed(cluster: BenchCluster) -> None:
    """Many submissions of 250 kB in the drop box are counted with their bytes, decided, and hold up nothing."""

    async def story() -> None:
        async with watched(cluster) as city:
            pids = await view_is_there(city)
            names = [f"heavy-{number}" for number in range(40)]
            for name in names:
                body = json.loads(body_of(name))
                body["Job"]["Meta"] = {"text": "x" * 250_000}
                headers = header_block(nats_msg_id=name)
                text = json.dumps(body).encode()
                city.public.bus.send(subjects.jobs("submit"), text, headers=headers)
            await every_role_answers(city, pids, "beside-the-heavy")
            jobs = city.observer.state.jobs.by_id
            await wait_until(lambda: all(name in jobs for name in names), "all are decided", LONG_S)
            await wait_until(
                lambda: metrics(cluster, "intake")["caravan_intake_pending_bytes"] == 0,
                "nothing is held",
                LONG_S,
            )
            await city.proven()

    play(story())


def test_clients_that_take_all_connections_and_ask_at_any_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients get their number of connections; concurrent requests are answered or refused, and roles continue."""
    monkeypatch.setattr(accounts, "PUBLIC_CONNECTIONS_MAX", 12)
    settings = LocalClusterSettings(data_dir=tmp_path / "data", agents=0, schedulers=1, appliers=1)

    async def story(cluster: BenchCluster) -> None:
        cluster.start_fleet(n1_standard_8(2))
        async with watched(cluster) as city:
            await city.lives("first")
            pids = await view_is_there(city)
            async with AsyncExitStack() as held, RawSender(cluster.login("public")) as flood:
                with pytest.raises(BusUnavailable, match=r"(?i)maximum account active connections"):
                    await _take_connections(held, cluster, 12)
                for number in range(20_000):
                    noun = subjects.QUERY_NOUNS[number % len(subjects.QUERY_NOUNS)]
                    body = b'{"min_seq":%d}' % (number % 2 * 10**12)
                    await flood.send(subjects.query(noun).encode(), body, reply=b"_INBOX.public.y")
                    if number % 20 == 0:
                        await flood.send(subjects.api_jobs("submit").encode(), b"{}")
                await flood.settle()
                # As long as the flood lasts clients wait; none of them stops a role.
                await city.answer(subjects.query("cluster"), b"{}")
                await every_role_answers(city, pids, "after-the-flood")
            assert set(failed_messages(cluster)) >= {"intake", "view", "eval_broker"}
            await city.proven()

    with BenchCluster(settings) as running:
        play(story(running))


async def _take_connections(held: AsyncExitStack, cluster: BenchCluster, count: int) -> None:
    """Connect so many clients, and keep them."""
    for _ in range(count):
        await held.enter_async_context(cluster.client())
