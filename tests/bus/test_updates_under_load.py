"""A web service of ten under constant requests goes through twenty updates, and no request fails.

On the way one version is broken and reverted, one canary is promoted by hand, a node is drained, and the leading plan
applier, the scheduler and an agent are killed. The users ask the listing of services where to go, as any client would.
"""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from services.cli.local.processes import processes_using
from shared.bus.connection.public_client import Client
from shared.errors import BusUnavailable
from tests.bounds import LONG_S, WAIT_S
from tests.bus.test_restore import pids_below
from tests.bus.up import Up

pytestmark = [pytest.mark.bus, pytest.mark.full("a long storm, whose requests have a time")]
COUNT = 10
MAX_PARALLEL = 5
UPDATES = 20
#: Which updates are disturbed; BREAK is the version that does not come up.
KILL_APPLIER, KILL_SCHEDULER, KILL_AGENT, BREAK, PROMOTE, DRAIN = 4, 7, 10, 13, 15, 17
#: `job run` ends so while canaries wait for their promotion.
WAITS = 2
PLACED = "SELECT version, count(*) FROM allocations GROUP BY version ORDER BY version"
USERS = 3
#: A listing is used so long. An allocation serves for SHUTDOWN_DELAY after it has left the listing.
LISTING_S = 1.0
SHUTDOWN_DELAY = "3s"
#: Between two requests of a user.
PAUSE_S = 0.02

SERVER = """
import http.server, json, os, socketserver

RELEASE = os.environ["RELEASE"]
BODY = json.dumps({"alloc": os.environ["NOMAD_ALLOC_ID"], "release": RELEASE, "pid": os.getpid()}).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if RELEASE == "broken" else 200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


Server(("", int(os.environ["NOMAD_PORT_http"])), Handler).serve_forever()
"""

JOB = """
variable "release" {}
variable "delay" {}
variable "canaries" {
  type    = number
  default = 0
}
variable "deadline" {
  default = "60s"
}

job "web" {
  type = "service"

  update {
    max_parallel      = MAX_PARALLEL
    canary            = var.canaries
    auto_revert       = true
    min_healthy_time  = "200ms"
    healthy_deadline  = var.deadline
    progress_deadline = "0s"
  }

  group "web" {
    count          = COUNT
    shutdown_delay = var.delay

    migrate {
      max_parallel     = 2
      min_healthy_time = "200ms"
      healthy_deadline = "60s"
    }

    network {
      port "http" {}
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "30s"
      }
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "PYTHON"
        args    = ["-I", "-S", "SERVER"]
      }

      env {
        RELEASE = var.release
      }

      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
"""


class Users:
    """Users of the service: each asks one instance after the other, at addresses of a listing that is fresh."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ended = threading.Event()
        self._is_new = threading.Condition()
        #: when the listing was asked for, and the instances that pass.
        self._asked_s = 0.0
        self.listing: list[dict[str, Any]] = []
        self.fewest = COUNT
        self.requests = 0
        self.failures: list[str] = []
        #: allocation -> processes that answered in its name.
        self.pids: dict[str, set[int]] = {}
        self._threads = [threading.Thread(target=lambda: asyncio.run(self._list()))]
        self._threads += [threading.Thread(target=self._ask, args=(n,)) for n in range(USERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def versions(self) -> set[int]:
        """Return the versions that are listed now."""
        return {one["version"] for one in self.listing}

    async def _list(self) -> None:
        async with Client(self._url) as client:
            while not self._ended.is_set():
                asked_s = time.monotonic()
                with contextlib.suppress(BusUnavailable):
                    query = {"id": "web", "status": "passing"}
                    answer = await client.request("query.service", query)
                    with self._is_new:
                        self._asked_s = asked_s
                        self.listing = answer.get("instances", [])
                        self.fewest = min(self.fewest, len(self.listing))
                        self._is_new.notify_all()
                await asyncio.sleep(LISTING_S / 10)

    def _fresh(self) -> list[dict[str, Any]]:
        is_fresh = lambda: time.monotonic() - self._asked_s < LISTING_S  # noqa: E731
        with self._is_new:
            return self.listing if self._is_new.wait_for(is_fresh, WAIT_S) else []

    def _ask(self, number: int) -> None:
        turn = number
        while not self._ended.wait(PAUSE_S):
            turn += 1
            instances = self._fresh()
            fault = "no instance is listed"
            if instances:
                fault = self._request(instances[turn % len(instances)])
            with self._is_new:
                self.requests += 1
                if fault:
                    self.failures.append(fault)

    def _request(self, one: dict[str, Any]) -> str:
        """Ask one instance; returns what went wrong."""
        connection = http.client.HTTPConnection(one["address"], one["port"], timeout=WAIT_S)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            body = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as err:
            return f"{one['alloc']} of version {one['version']}: {err!r}"
        finally:
            connection.close()
        if answer.status != http.client.OK or body["alloc"] != one["alloc"]:
            return f"{one['alloc']} of version {one['version']}: {answer.status} {body}"
        with self._is_new:
            self.pids.setdefault(body["alloc"], set()).add(body["pid"])
        return ""


class Web:
    """The service on a cluster of three nodes."""

    def __init__(self, up: Up, folder: Path, delay: str = SHUTDOWN_DELAY) -> None:
        self.up = up
        self._delay = delay
        self._server = folder / "server.py"
        self._server.write_text(SERVER)
        self._job = folder / "web.nomad.hcl"
        text = JOB.replace("MAX_PARALLEL", str(MAX_PARALLEL)).replace("COUNT", str(COUNT))
        self._job.write_text(
            text.replace("PYTHON", sys.executable).replace("SERVER", str(self._server))
        )
        self._aside = ThreadPoolExecutor(1)

    def update(self, release: str, *words: str) -> tuple[int, dict[str, Any]]:
        """Run a release and follow its deployment."""
        values = ("--var", f"release={release}", "--var", f"delay={self._delay}")
        return self.up.run("job", "run", *values, *words, str(self._job))

    def kill_during(self, users: Users, release: int, victim: int) -> None:
        """Update, and kill -9 a process once the first allocation of the new version is listed."""
        before = max(users.versions())
        under_way = self.begin(str(release))
        is_seen = lambda: max(users.versions(), default=0) > before or under_way.done()  # noqa: E731
        self.up.until(is_seen, "the new version is listed")
        os.kill(victim, signal.SIGKILL)
        assert under_way.result()[0] == 0

    def begin(self, release: str) -> Future[tuple[int, dict[str, Any]]]:
        """Do that in another thread."""
        return self._aside.submit(self.update, release)

    def allocs(self) -> list[dict[str, Any]]:
        """List the allocations of all versions."""
        return self.up.run("job", "status", "web")[1]["allocations"]

    def latest_deployment(self) -> str:
        """Return the status of the newest deployment."""
        return str(self.up.run("job", "deployments", "web")[1]["deployments"][0]["status"])

    def pid_of(self, name: str) -> int:
        """Find a process of the cluster."""
        return int(json.loads((self.up.data_dir / "up.json").read_text())["services"][name])

    def sql(self, query: str) -> list[list[Any]]:
        """Ask the log."""
        code, answer = self.up.run("sql", query)
        assert code == 0, answer
        return [list(row.values()) for row in answer["rows"]]

    def processes(self) -> int:
        """Count the servers that are alive, whatever is known of them."""
        found = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found += words[1:4] == [b"-I", b"-S", str(self._server).encode()]
        return found


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Three nodes; nothing of them is left."""
    one = Up(tmp_path, "--agents", "3", CARAVAN_AGENT_CPU_MHZ="6000")
    yield one
    if one.process.poll() is None:
        one.end()
    assert not processes_using(one.data_dir)
    assert not pids_below(tmp_path)


def leading_applier(up: Up) -> int:
    """Find the process that writes the log: its pid is in the name of the lease's holder."""
    return int(asyncio.run(_holder(up.client_url)).split("-")[1])


async def _holder(url: str) -> str:
    async with Client(url) as client:
        return str((await client.request("query.cluster", {}))["holder"])


def update(web: Web, users: Users, release: int) -> None:
    """One of the twenty, with what happens to it."""
    up = web.up
    if release == KILL_APPLIER:
        web.kill_during(users, release, leading_applier(up))
    elif release == KILL_SCHEDULER:
        web.kill_during(users, release, web.pid_of("scheduler"))
    elif release == KILL_AGENT:
        web.kill_during(users, release, web.pid_of("agent-node-2"))
    elif release == BREAK:
        code, answer = web.update("broken", "--var", "deadline=4s")
        assert (code, answer["deployment"]["status"]) == (1, "failed")
        # The next update would cancel the deployment of the revert.
        up.until(lambda: web.latest_deployment() == "successful", "the revert is done")
    elif release == PROMOTE:
        assert web.update(str(release), "--var", "canaries=2")[0] == WAITS
        assert up.run("job", "promote", "web")[0] == 0
    elif release == DRAIN:
        under_way = web.begin(str(release))
        assert up.run("node", "drain", "--enable", "--monitor", "--yes", "node-1")[0] == 0
        assert under_way.result()[0] == 0
        assert "node-1" not in {one["node"] for one in users.listing}
        assert up.run("node", "drain", "--disable", "node-1")[0] == 0
    else:
        assert web.update(str(release))[0] == 0


# A minute on a machine that has nothing else to do.
@pytest.mark.timeout(3 * LONG_S)
def test_no_request_fails_in_twenty_updates(up: Up, tmp_path: Path) -> None:
    """Requests failed 0, never too few listed; versions and counts exact; no allocation lost or doubled."""
    web = Web(up, tmp_path)
    # A node is lost after three seconds: a busy machine may take longer to start the killed agent again.
    assert up.run("operator", "scheduler", "set", "heartbeats_missed=60")[0] == 0
    assert web.update("0")[0] == 0
    with Users(up.client_url) as users:
        up.until(lambda: users.requests > 0, "the users have begun")
        for release in range(1, UPDATES + 1):
            update(web, users, release)
    assert users.failures == []
    assert users.requests > UPDATES * COUNT
    assert users.fewest >= COUNT - MAX_PARALLEL
    # An allocation is one process: also of those whose agent was killed.
    assert {len(pids) for pids in users.pids.values()} == {1}
    up.until(lambda: web.processes() == COUNT, "the old ones have ended")
    assert_all_is_counted(web)
    code, proof = up.run("log", "verify", "--decisions")
    assert (code, proof["problem"]) == (0, ""), proof


def assert_all_is_counted(web: Web) -> None:
    """Compare versions, deployments and allocations with what was asked for."""
    # The broken one is reverted by one version more.
    last = UPDATES + 1
    alive = [one for one in web.allocs() if one["client_status"] != "complete"]
    assert sorted((one["index"], one["version"], one["client_status"]) for one in alive) == [
        (index, last, "running") for index in range(COUNT)
    ]
    rows = web.sql("SELECT version, status, cause FROM deployments ORDER BY started_seq")
    statuses = ["failed" if version == BREAK else "successful" for version in range(last + 1)]
    causes = ["revert" if version == BREAK + 1 else "submit" for version in range(last + 1)]
    assert rows == [list(one) for one in zip(range(last + 1), statuses, causes, strict=True)]
    rows = web.sql("SELECT DISTINCT client_status FROM allocations ORDER BY client_status")
    assert rows == [["complete"], ["running"]]
    placed = {int(version): int(n) for version, n in web.sql(PLACED)}
    expected = dict.fromkeys(range(last + 1), COUNT)
    # The broken version came to its first step. The revert replaced that, and took over the others in place.
    expected |= {BREAK - 1: COUNT - MAX_PARALLEL, BREAK: MAX_PARALLEL}
    # What was drained was placed once more.
    moved = {version for version in placed if placed[version] > expected[version]}
    assert moved <= {DRAIN, DRAIN + 1}
    assert {version: n for version, n in placed.items() if version not in moved} == {
        version: n for version, n in expected.items() if version not in moved
    }
    drained = web.sql("SELECT count(*) FROM allocations WHERE reason = 'its node is drained'")
    assert sum(placed.values()) == sum(expected.values()) + int(drained[0][0])


def test_requests_fail_without_a_shutdown_delay(up: Up, tmp_path: Path) -> None:
    """The same users notice when allocations end while they are still listed: their count of failures can fail."""
    web = Web(up, tmp_path, delay="0s")
    assert web.update("0")[0] == 0
    with Users(up.client_url) as users:
        for release in range(1, UPDATES + 1):
            assert web.update(str(release))[0] == 0
            if users.failures:
                break
    assert users.failures
