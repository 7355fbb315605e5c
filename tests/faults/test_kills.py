"""Killed and paused: every process of the product, and the bus, while jobs come in."""

import asyncio
import signal

from bench.harness import Harness, until
from tests.conftest import FULL
from tests.faults.city import PATIENCE_S, City, body_of, metrics, play, watched

JOBS = 2000 if FULL else 200
SUBMITTERS = 8
#: Who is killed, one after the other; the applier is whoever holds the pen then.
VICTIMS = ("eval_broker", "scheduler-1", "applier", "intake", "bus", "view", "heartbeat", "applier")


def test_kill_9_loses_and_doubles_nothing(cluster: Harness) -> None:
    """After kill -9 of each role and of the bus during 200 jobs each has exactly its count, and the log is proven."""

    async def story() -> None:
        async with watched(cluster) as city:
            counts = {f"kill-{number}": number % 5 + 1 for number in range(JOBS)}
            restarts = cluster.restarts
            await _submit_while_killing(city, counts)
            await until(
                lambda: all(city.held(name) >= count for name, count in counts.items()),
                "all are placed",
                PATIENCE_S,
            )
            assert {name: city.held(name) for name in counts} == counts
            await city.proven()
            # The server's own restart is none of a child.
            assert cluster.restarts - restarts >= len(VICTIMS) - 1
            assert any("bus: restarted" in note for note in cluster.notes)

    play(story())


async def _submit_while_killing(city: City, counts: dict[str, int]) -> None:
    """Before each eighth of the jobs somebody dies; the jobs do not wait until it is back."""
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
    await until(lambda: city.cluster.pids().get(name), f"{name} runs", PATIENCE_S)
    city.cluster.signal(name, signal.SIGKILL)


def test_a_paused_applier_comes_back_as_standby(cluster: Harness) -> None:
    """SIGSTOP of the active applier past its lease: the standby takes the pen, and the woken one writes nothing."""

    async def story() -> None:
        async with watched(cluster) as city:
            paused = city.active_applier
            holder = city.observer.replica.chain.holder
            cluster.signal(paused, signal.SIGSTOP)
            try:
                await until(
                    lambda: city.observer.replica.chain.holder != holder, "a takeover", PATIENCE_S
                )
                await city.lives("while-paused")
            finally:
                cluster.signal(paused, signal.SIGCONT)
            active = "caravan_plan_applier_active"
            await until(lambda: metrics(cluster, paused)[active] == 0.0, "it resigned", PATIENCE_S)
            await city.lives("after-pause")
            assert city.observer.replica.chain.holder != holder
            found = await city.proven()
            assert found["head"] and city.held("while-paused") == city.held("after-pause") == 1

    play(story())
