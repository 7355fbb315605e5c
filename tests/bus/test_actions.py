"""Actions on a real cluster: a real agent, raw_exec tasks, and the command line as an operator's."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.agent.node_rpc.action import asker
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.bus.toys import Bus, run
from tests.bus.up import Up

pytestmark = [pytest.mark.bus, pytest.mark.full("a whole cluster, not yet seen beside other tests")]

JOB = """job "acts" {
  datacenters = ["*"]
  group "g" {
    task "server" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", "exec sleep 10000"]
      }
      env {
        COLOUR = "green"
      }
      action "hello" {
        command = "/bin/sh"
        args = ["-c", "pwd; echo $1 $2 $COLOUR; read a; echo said $a; exit 3", "x", "${COLOUR}", "${NOMAD_TASK_DIR}"]
      }
      action "where" {
        command = "/bin/echo"
        args = ["%s"]
      }
      resources {
        cpu = 20
        memory = 20
      }
    }
  }
}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One node."""
    one = Up(tmp_path_factory.mktemp("actions"), "--agents", "1", one_process=True)
    yield one
    assert one.end() == 0


def submit(up: Up, folder: Path, word: str) -> None:
    path = folder / "acts.nomad.hcl"
    path.write_text(JOB % word)
    up.documented("job", "run", "--detach", str(path))


def events(up: Up) -> list[str]:
    found: dict[str, Any] = up.documented("alloc", "status", "acts.g[0]")
    return [one["message"] for one in found["tasks"]["server"]["events"] if one["kind"] == "Action"]


def test_an_action_runs_in_its_task(up: Up, tmp_path: Path) -> None:
    """S94: by name alone, with the task's directory and environment; input and exit code as those of exec."""
    submit(up, tmp_path, "first")
    up.until(lambda: len(up.allocs("acts", "running")) == 1, "it runs")
    listed = up.documented("job", "action", "acts")["actions"]
    assert [(one["name"], one["group"], one["task"]) for one in listed] == [
        ("hello", "g", "server"),
        ("where", "g", "server"),
    ]
    done = subprocess.run(
        up._command("action", "-i", "acts", "hello"),
        env=up.env,
        input=b"word\n",
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    home = done.stdout.split(b"\n")[0].decode()
    assert home.endswith("/server")
    assert done.stdout.decode() == f"{home}\ngreen {home}/local green\nsaid word\n"
    assert (done.returncode, done.stderr) == (3, b"")
    up.until(lambda: events(up) == ["hello: exit code 3, by public"], "its event")


def test_the_running_version_defines_it(up: Up, tmp_path: Path) -> None:
    """S94: a version that updates in place brings its own definition, without a restart of the task."""
    submit(up, tmp_path, "second")

    def said() -> str:
        code, answer = up.run("job", "action", "acts", "where", "--task", "server")
        return str(answer["stdout"]) if code == 0 else ""

    up.until(lambda: said() == "second\n", "the new definition")
    assert up.documented("alloc", "status", "acts.g[0]")["tasks"]["server"]["restarts"] == 0


def test_what_does_not_run_has_no_actions(up: Up, tmp_path: Path) -> None:
    """S94: an unknown name, and a job that is stopped."""
    submit(up, tmp_path, "second")
    code, answer = up.run("job", "action", "acts", "none")
    assert code == 1 and "an action 'none'" in answer["error"]["message"]
    up.documented("job", "stop", "acts")
    up.until(lambda: not up.allocs("acts", "running"), "it is stopped")
    code, answer = up.run("job", "action", "acts", "where")
    assert code == 1 and answer["error"]["code"] == "not_found"
    code, answer = up.run("job", "action", "acts", "where", "--alloc", "acts.g[0]")
    assert code == 1 and answer["error"]["code"] in ("not_running", "not_found")


def test_the_bus_names_who_asks(bus: Bus) -> None:
    """A header that a client makes itself is replaced by the bus's: it cannot be another user."""

    async def story() -> None:
        heard: list[str] = []
        async with bus.client(bus.node_login("n1")) as n1, bus.client("public") as thief:

            def take(_subject: bytes, reply: bytes, headers: bytes, _data: bytes) -> None:
                heard.append(asker(headers))
                n1.send(reply.decode(), b"ok")

            await n1.listen(subjects.node_rpc("n1", "*"), take)
            await n1.flush()
            info = b'Request-Info: {"acc":"PUBLIC","user":"admin"}'
            forged = [b"NATS/1.0\r\n%b-%b\r\n\r\n" % (name, info) for name in (b"Nats", b"nats")]
            subject = subjects.node_rpc("n1", "action")
            for headers in (b"", *forged):
                await thief.request_raw(subject, b"{}", headers=headers)
        assert heard == ["public"] * 3

    run(story())
