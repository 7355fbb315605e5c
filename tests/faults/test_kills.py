"""Killed and paused: every process of the product, and the bus, while jobs come in."""

import asyncio
import signal

from bench.harness.cluster import BenchCluster, wait_until
from shared.protocol import subjects
from tests.bounds import LONG_S
from tests.conftest import FULL
from tests.faults.city import City, body_of, metrics, play, watched

JOBS = 2000 if FULL else 200
SUBMITTERS = 8
#: Roles killed one after the other; of the appliers the one that holds the write lease then.
VICTIMS = (
    "eval_broker",
    "scheduler-1",
    "applier",
    "intake",
    "bus",
    "view",
    "heartbeat",
    "timekeeper",
    "keeper",
    "gateway",
    "applier",
)


def test_kill_9_loses_and_doubles_nothing(cluster: BenchCluster) -> None:
    """After kill -9 of each role and of the bus during 200 jobs each has exactly its count, and the log is proven."""

    async def story() -> None:
        async with watched(cluster) as city:
            counts = {f"kill-{number}": number % 5 + 1 for number in range(JOBS)}
            restarts = cluster.restarts
            await _submit_while_killing(city, counts)
            await wait_until(
                lambda: all(city.held(name) >= count for name, count in counts.items()),
                "all are placed",
                LONG_S,
            )
            assert {name: city.held(name) for name in counts} == counts
            await city.proven()
            # The server's own restart is none of a child.
            assert cluster.restarts - restarts >= len(VICTIMS) - 1
            assert any("bus: restarted" in note for note in cluster.notes)

    play(story())


async def _submit_while_killing(city: City, counts: dict[str, int]) -> None:
    """Before each eighth of the jobs a process is killed; the jobs do not wait until it is back."""
    share = -(-len(counts) // len(VICTIMS))
    names = iter(enumerate(counts))
    killed = 0

    async def submitter() -> None:
        nonlocal killed
        for number, name in names:
            while killed < len(VICTIMS) and number >= killed * share:
                victim = VICTIMS[killed]
                killed += 1
                await _kill(city, city.active_applier if victim == "applier" else victim)
            verdict = await city.submit(body_of(name, count=counts[name]))
            assert verdict.status == "accepted", verdict

    await asyncio.gather(*(submitter() for _ in range(SUBMITTERS)))


async def _kill(city: City, name: str) -> None:
    await wait_until(lambda: city.cluster.pids().get(name), f"{name} runs", LONG_S)
    city.cluster.signal(name, signal.SIGKILL)


def test_what_a_stopped_applier_was_sent_goes_to_the_next(cluster: BenchCluster) -> None:
    """Jobs and a request sent to a stopped applier take effect once, through its successor, while it is stopped.

    In what time: tests/sim/test_frozen_applier.py.
    """

    async def story() -> None:
        async with watched(cluster) as city:
            assert await city.dead_letters("none") == [], "the view answers"
            paused = city.active_applier
            epoch = city.observer.replica.chain.epoch
            fleet = city.observer.state.fleet
            node_id = fleet.ids[0]
            subject = subjects.api("node", "set_eligibility")
            names = [f"sent-to-stopped-{number}" for number in range(5)]
            cluster.signal(paused, signal.SIGSTOP)
            try:
                resends = metrics(cluster, "intake")["caravan_intake_resends_total"]
                asked = [asyncio.create_task(city.submit(body_of(name))) for name in names]
                wish = {"node_id": node_id, "eligible": False}
                wished = asyncio.create_task(city.public.request(subject, wish, LONG_S))
                verdicts = await asyncio.gather(*asked)
                assert [one.status for one in verdicts] == ["accepted"] * len(names)
                # Once each: a second registration would be another version.
                assert [one.version for one in verdicts] == [0] * len(names)
                assert (await wished)["status"] == "accepted"
                assert city.observer.replica.chain.epoch > epoch
                assert all(one.seq > epoch for one in verdicts)
                assert metrics(cluster, "intake")["caravan_intake_resends_total"] > resends
                assert not fleet.eligible[fleet.row_of[node_id]]
            finally:
                cluster.signal(paused, signal.SIGCONT)
            wish = {"node_id": node_id, "eligible": True}
            again = await city.public.request(subject, wish, LONG_S)
            assert again["status"] == "accepted"
            await wait_until(
                lambda: [city.held(name) for name in names] == [1] * len(names),
                "all are placed",
                LONG_S,
            )
            await city.proven()

    play(story())


def test_a_paused_applier_comes_back_as_standby(cluster: BenchCluster) -> None:
    """SIGSTOP of the active applier past its lease: the standby takes the lease, and the woken one writes nothing."""

    async def story() -> None:
        async with watched(cluster) as city:
            paused = city.active_applier
            holder = city.observer.replica.chain.holder
            cluster.signal(paused, signal.SIGSTOP)
            try:
                await wait_until(
                    lambda: city.observer.replica.chain.holder != holder, "a takeover", LONG_S
                )
                await city.lives("while-paused")
            finally:
                cluster.signal(paused, signal.SIGCONT)
            active = "caravan_plan_applier_active"
            await wait_until(lambda: metrics(cluster, paused)[active] == 0.0, "it resigned", LONG_S)
            await city.lives("after-pause")
            assert city.observer.replica.chain.holder != holder
            found = await city.proven()
            assert found["head"] and city.held("while-paused") == city.held("after-pause") == 1

    play(story())
