"""Devices of a plugin on a running cluster: scheduled, reserved, unhealthy under a task, and healthy again."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.local.processes import processes_using
from tests.bus.up import Up

pytestmark = [pytest.mark.bus, pytest.mark.full("a whole cluster, not yet seen beside other tests")]
PLUGIN = """#!/bin/sh
case "$1" in
  fingerprint) while :; do cat STATE; sleep 0.5; done ;;
  reserve) printf '{"env": {"CARDS": "%s"}}' "$2" ;;
esac
"""
JOB = """
job "cards" {
  update { min_healthy_time = "1s" }
  group "g" {
    count = COUNT
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo has $CARDS; exec sleep 100000"]
      }
      resources {
        cpu    = 20
        memory = 16
        device "acme/card" {
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "4 GiB"
          }
        }
      }
    }
  }
}
"""


class Cards:
    """A plugin whose cards a test changes."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state.json"
        self.folder = folder / "devices"
        self.folder.mkdir()
        self.set("", "")
        path = self.folder / "cards"
        path.write_text(PLUGIN.replace("STATE", str(self._state)), encoding="utf-8")
        path.chmod(0o755)

    def set(self, *reasons: str) -> None:
        """Say of each card why it is unhealthy; empty: it is healthy."""
        found = [
            {"id": f"c{at}", "healthy": not reason, "reason": reason}
            for at, reason in enumerate(reasons)
        ]
        group = {"vendor": "acme", "type": "card", "name": "x1", "instances": found}
        line = {"devices": [{**group, "attributes": {"memory": {"value": 8192, "unit": "MiB"}}}]}
        part = self._state.with_suffix(".part")
        part.write_text(json.dumps(line) + "\n", encoding="utf-8")
        part.replace(self._state)


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    """Two cards."""
    return Cards(tmp_path)


@pytest.fixture
def up(tmp_path: Path, cards: Cards) -> Iterator[Up]:
    """A node with the plugin."""
    one = Up(tmp_path, one_process=True, CARAVAN_AGENT_DEVICE_PLUGINS=str(cards.folder))
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)


def test_a_device_that_becomes_unhealthy_is_not_offered_and_its_holder_runs_on(
    up: Up, cards: Cards, tmp_path: Path
) -> None:
    """One card is held; both become unhealthy: its task has an event and runs, a second waits until one is healthy."""
    path = tmp_path / "cards.nomad.hcl"
    path.write_text(JOB.replace("COUNT", "1"), encoding="utf-8")
    assert up.run("job", "run", "--detach", str(path))[0] == 0
    up.until(lambda: len(up.allocs("cards", "running")) == 1, "the first runs")
    first = up.allocs("cards", "running")[0]["id"]
    up.until(lambda: "has c" in up.run("alloc", "logs", first)[1].get("text", ""), "it has a card")
    cards.set("link is down", "link is down")

    def said() -> str:
        return json.dumps(up.run("alloc", "status", first)[1])

    up.until(lambda: "Device Unhealthy" in said(), "its event")
    assert "link is down" in said()
    node = up.run("node", "status", "node-1")[1]["nodes"][0]["pools"]["device.card"]
    assert (node["capacity"], node["excess"]) == (0, 10_000)
    assert {one["unhealthy"] for one in node["instances"]} == {"link is down"}
    path.write_text(JOB.replace("COUNT", "2"), encoding="utf-8")
    assert up.run("job", "run", "--detach", str(path))[0] == 0
    words = ("eval", "list", "--job", "cards", "--status", "blocked")
    up.until(lambda: up.run(*words)[1]["total"] == 1, "the second waits")
    assert [one["id"] for one in up.allocs("cards", "running")] == [first]
    cards.set("", "")
    up.until(lambda: len(up.allocs("cards", "running")) == 2, "the second runs")
    up.until(lambda: "Device Healthy" in said(), "the first hears of it")
    assert up.allocs("cards", "failed") == []
