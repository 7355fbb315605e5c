"""A balancer by template: Debian's HAProxy in front of a service that grows, and loses an instance."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests import not_tested
from tests.bounds import WAIT_S
from tests.bus.up import Up

pytestmark = [pytest.mark.bus, pytest.mark.full("needs HAProxy, which is a program of Debian")]

JOB = Path(__file__).parents[2] / "examples" / "balancer.nomad.hcl"
#: More than each of three gets in turn, several times.
REQUESTS = 30


class Balanced:
    """The example in a cluster of one node."""

    def __init__(self, up: Up) -> None:
        self.up = up
        up.documented("job", "run", str(JOB))
        up.until(lambda: bool(self.instances("front")), "the balancer runs")
        (front,) = self.instances("front")
        self.url = f"http://{front['address']}:{front['port']}/"

    def instances(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.up.ask("service", id=name).get("instances", [])
        return found

    def get(self) -> str:
        """What a server says. Raises OSError for a status of failure, too."""
        with urlopen(self.url, timeout=WAIT_S) as answer:
            return answer.read().decode().strip()

    def round(self) -> set[str]:
        """Who answered, of as many requests as reach every one."""
        return {self.get() for _ in range(REQUESTS)}

    def settles(self, names: set[str]) -> None:
        """Wait until these answer, and no others."""

        def holds() -> bool:
            try:
                return self.round() == names
            except OSError:
                # Before the first worker listens, or the first instance runs.
                return False

        self.up.until(holds, f"{sorted(names)} answer")

    def haproxy(self) -> tuple[str, int]:
        """The state of the balancer's task, and how often it was started again."""
        (one,) = [each for each in self.up.allocs("balanced") if each["group"] == "balancer"]
        task = self.up.documented("alloc", "status", one["id"])["tasks"]["haproxy"]
        return task["state"], task["restarts"]


@pytest.fixture
def balanced(tmp_path: Path) -> Iterator[Balanced]:
    """HAProxy in front of one instance."""
    if not Path("/usr/sbin/haproxy").exists() or shutil.which("python3") is None:
        not_tested.missing_tool("no haproxy: install Debian's package haproxy")
    up = Up(tmp_path, one_process=True)
    try:
        yield Balanced(up)
    finally:
        up.end()


def server_pid(port: int) -> int:
    """The process that listens on a port, by its command."""
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = one.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"http.server" in words and str(port).encode() in words:
            return int(one.parent.name)
    raise AssertionError(f"no server on port {port}")


def test_requests_reach_each_instance_and_none_fails(balanced: Balanced) -> None:
    """From one to three without a failed request; one that dies costs none, and it is back with its own next run."""
    names = [f"balanced.web[{at}]" for at in range(3)]
    balanced.settles({names[0]})
    balanced.up.documented("job", "scale", "balanced", "web", "3")
    balanced.settles(set(names))
    answered = [balanced.get() for _ in range(REQUESTS)]
    assert {answered.count(name) for name in names} == {REQUESTS // 3}
    victim = next(one for one in balanced.instances("web") if one["index"] == 1)
    died = server_pid(victim["port"])
    os.kill(died, signal.SIGKILL)
    # Also while the balancer has not heard of it: another server is tried.
    seen: list[set[str]] = []
    balanced.up.until(
        lambda: bool(seen.append(balanced.round()) or (len(seen) > 1 and seen[-1] == set(names))),
        "the next run answers",
    )
    assert all(one <= set(names) for one in seen)
    assert server_pid(victim["port"]) != died
    balanced.up.documented("job", "scale", "balanced", "web", "1")
    balanced.settles({names[0]})
    assert balanced.haproxy() == ("running", 0), json.dumps(balanced.up.allocs("balanced"))
