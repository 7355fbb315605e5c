"""Whole lives on a real node while the agent is killed -9 again and again: no step is done twice, none is left out."""

from pathlib import Path
from typing import Any

import pytest

from shared.core.state.ids import alloc_id
from tests.bounds import level
from tests.integration.agent_node import job, projection, sh
from tests.integration.test_agent_adoption import an_agent
from tests.integration.test_agent_directories import node_at

STEPS = ("one", "two", "three")


def step(name: str, hook: str = "") -> dict[str, Any]:
    """A task that notes that it began, takes a moment, and notes that it is done."""
    order = '"$NOMAD_ALLOC_DIR/data/order"'
    life = {"Lifecycle": {"Hook": hook}} if hook else {}
    return sh(f"echo +{name} >> {order}; sleep 0.15; echo -{name} >> {order}", name, **life)


def proxy() -> dict[str, Any]:
    """A sidecar."""
    life = {"Hook": "prestart", "Sidecar": True}
    return sh("exec sleep 300", "proxy", Lifecycle=life)


@pytest.mark.asyncio
async def test_a_life_survives_every_kill(tmp_path: Path) -> None:
    """The agent is killed whenever a step begins or ends: the file that all steps write to has each once, in order."""
    spec = job(
        *(step(name, "prestart") for name in STEPS),
        proxy(),
        step("main"),
        step("bye", "poststop"),
        kind="batch",
        RestartFrom="failed",
    )
    order = tmp_path / "alloc" / alloc_id(1) / "alloc" / "data" / "order"
    words = [f"{sign}{name}" for name in (*STEPS, "main", "bye") for sign in "+-"]

    def lines() -> list[str]:
        return order.read_text().split() if order.exists() else []

    for kill in range(len(words) - 1):
        async with an_agent(tmp_path, spec) as agent:
            agent.hear(projection(5 + kill, 1))
            await level(lambda least=kill: len(lines()) > least)
            await agent.kill()
        assert lines() == words[: len(lines())]
    async with node_at(tmp_path, spec) as node:
        node.hear(projection(50, 1))
        await node.until(lambda: node.status() == "complete")
        assert lines() == words
        assert all(task.restarts == 0 for task in node.states[1].tasks.values())
        assert node.task(name="proxy").state == "dead"


@pytest.mark.asyncio
async def test_inputs_survive_every_kill(tmp_path: Path) -> None:
    """A file is rendered before the first start and not again; variables are there at each start, in each life."""
    policy = {"Attempts": 100, "Interval": 600_000_000_000, "Delay": 10_000_000, "Mode": "fail"}
    when = {"EmbeddedTmpl": '{{ timestamp "15:04:05.000000000" }}', "DestPath": "local/when"}
    word = {"EmbeddedTmpl": "WORD=said", "DestPath": "local/env", "Envvars": True}
    script = 'echo "$WORD $(cat local/when)" >> "$NOMAD_ALLOC_DIR/data/order"; sleep 0.2; exit 1'
    spec = job(sh(script, Templates=[when, word], RestartPolicy=policy))
    top = tmp_path / "alloc" / alloc_id(1)
    order = top / "alloc" / "data" / "order"

    def lines() -> list[str]:
        return order.read_text().splitlines() if order.exists() else []

    async with an_agent(tmp_path, spec) as agent:
        agent.hear(projection(5, 1))
        # Its directories are there: it is rendering, or has rendered and not started.
        await level((top / "main" / "local").exists)
        await agent.kill()
    for kill in range(4):
        seen = len(lines())
        async with an_agent(tmp_path, spec) as agent:
            agent.hear(projection(6 + kill, 1))
            await level(lambda seen=seen: len(lines()) > seen)
            await agent.kill()
    async with node_at(tmp_path, spec) as node:
        seen = len(lines())
        node.hear(projection(50, 1))
        await level(lambda: len(lines()) > seen + 1)
        node.hear(projection(51))
        await node.until(lambda: node.status() in {"complete", "failed"})
    assert set(lines()) == {f"said {(top / 'main' / 'local' / 'when').read_text()}"}
