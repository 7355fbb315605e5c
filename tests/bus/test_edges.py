"""Around the shell: the embedded server's one clear error, the client of the command line, health, a whole process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from shared.bus.connection.public_client import Client
from shared.bus.process.health_server import Health, HealthServer, exposition
from shared.bus.process.runner import shell_settings
from shared.bus.process.settings import run_settings
from shared.bus.server import accounts, nats_server
from shared.core.runtime import messages as r
from shared.core.runtime.histogram import Histogram
from shared.errors import BusUnavailable, ConfigInvalid
from shared.protocol import subjects
from tests.bounds import WAIT_S
from tests.bus.toys import Bus, Toy, run, until

pytestmark = pytest.mark.bus

TX = subjects.log(1, "tx")
NAMED_LIKE_A_SERVER = "from pathlib import Path; Path('/proc/self/comm').write_text('nats-server')"


def other_server(folder: Path, port: int = 0) -> nats_server.NatsServer:
    settings = nats_server.ServerSettings(data_dir=folder, port=port)
    return nats_server.NatsServer(settings, accounts.new_credentials())


def test_a_taken_port_is_named(bus: Bus, tmp_path: Path) -> None:
    """A server that finds its port taken says which, and leaves no process."""
    second = other_server(tmp_path / "other", bus.server.port)
    with pytest.raises(BusUnavailable, match=f"port {bus.server.port} on 127"):
        second.start()
    assert second.pid == 0


def test_a_taken_data_directory_is_named(bus: Bus, tmp_path: Path) -> None:
    """Two servers never share a store: the second names the directory and the pid."""
    with pytest.raises(
        BusUnavailable, match=rf"bus is in use by nats-server, pid {bus.server.pid}"
    ):
        other_server(tmp_path / "bus").start()
    assert bus.server.pid


def test_a_server_that_ended_holds_no_directory(tmp_path: Path) -> None:
    """A zombie process is no second owner."""
    folder = tmp_path / "bus"
    folder.mkdir()
    ended = subprocess.Popen([sys.executable, "-c", NAMED_LIKE_A_SERVER])
    try:
        (folder / "nats-server.pid").write_text(str(ended.pid))
        stat = Path(f"/proc/{ended.pid}/stat")
        run(until(lambda: "(nats-server) Z" in stat.read_text(), "an ended process"))
        bus = other_server(folder)
        bus.start()
        bus.stop()
    finally:
        ended.wait()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error for a bad data directory is the server's own."""
    folder = tmp_path / "bus"
    folder.mkdir()
    (folder / "jetstream").write_text("no directory")
    with pytest.raises(BusUnavailable, match=r"did not start: .*not a directory"):
        other_server(folder).start()


def test_a_client_without_a_bus_is_told_within_its_time() -> None:
    """Where nothing listens the client says so, with the address."""

    async def story() -> None:
        with pytest.raises(BusUnavailable, match=r"no bus at nats://127\.0\.0\.1:"):
            async with Client(f"nats://127.0.0.1:{nats_server.free_port()}"):
                pass

    run(story())


def test_the_client_asks_and_reads(bus: Bus) -> None:
    """JSON in, JSON out; the log comes whole; a projection is followed from its present value."""

    async def story() -> None:
        await bus.bootstrap()
        toy = Toy(r.Listen("queries", subjects.QUERIES))
        async with (
            bus.shell(toy, "view") as shell,
            bus.client() as admin,
            Client(bus.server.client_url) as client,
        ):
            for number in range(1, 31):
                await admin.request_raw(TX, b"%d" % number)
            part = [one.seq async for one in client.read_log(5, 20)]
            assert part == list(range(5, 21))
            assert [one.seq async for one in client.read_log()] == list(range(1, 31))
            await until(lambda: shell.is_ready)
            await shell._link.bus.flush()  # type: ignore[union-attr]
            asked = asyncio.create_task(client.request(subjects.query("jobs"), {"limit": 3}))
            await until(lambda: toy.of(r.Message))
            question = toy.of(r.Message)[0]
            assert json.loads(question.data) == {"limit": 3}
            toy.play(shell, r.Reply(question.token, b'{"seq":30}'))
            assert await asked == {"seq": 30}
            with pytest.raises(BusUnavailable, match="no responder on api"):
                await client.request(subjects.api_jobs("submit"), {})
            await admin.request_raw(subjects.view_job("j"), b"one")
            following = client.follow(subjects.view_job("j"))
            assert (await anext(following))[1] == b"one"
            await admin.request_raw(subjects.view_job("j"), b"two")
            assert (await anext(following))[1] == b"two"
            await following.aclose()  # type: ignore[attr-defined]

    run(story())


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as err:
        with err:
            return err.code, err.read().decode()


def test_health_tells_readiness(tmp_path: Path) -> None:
    """503 until caught up, 200 afterwards, the numbers in the body; metrics by name; the port in a file."""

    async def story() -> None:
        told = {"ready": False}
        http = HealthServer(
            lambda: Health(role="view", instance="v1", ready=told["ready"], seq=7, lag=2),
            lambda: {'caravan_view_rows_total{kind="a"}': 2.0, "caravan_view_age_seconds": 0.5},
        )
        port_file = tmp_path / "port"
        await http.start(port_file=str(port_file))
        assert int(port_file.read_text()) == http.port
        code, body = await asyncio.to_thread(get, http.port, "/health")
        expected = {"role": "view", "instance": "v1", "ready": False, "seq": 7, "lag": 2}
        assert (code, json.loads(body)) == (503, expected)
        told["ready"] = True
        assert (await asyncio.to_thread(get, http.port, "/health"))[0] == 200
        _, shown = await asyncio.to_thread(get, http.port, "/metrics")
        assert 'caravan_view_rows_total{kind="a"} 2\n' in shown
        assert "# TYPE caravan_view_age_seconds gauge\ncaravan_view_age_seconds 0.5\n" in shown
        assert (await asyncio.to_thread(get, http.port, "/"))[0] == 404
        await http.stop()

    run(story())


def test_a_family_is_typed_once() -> None:
    """Labelled metrics of one family stand together under one TYPE line."""
    shown = exposition({'a_total{k="1"}': 1, "a_total_seconds": 3, 'a_total{k="2"}': 2})
    assert shown.count("# TYPE a_total counter") == 1
    assert shown.index('a_total{k="2"}') - shown.index('a_total{k="1"}') < 20


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    """Each service finds its own login, only the applier the system's; nonsense is named."""
    path = tmp_path / "credentials.json"
    credentials = accounts.new_credentials(("n1",))
    accounts.write_credentials(path, credentials)
    settings = run_settings({"CARAVAN_CREDENTIALS": str(path), "CARAVAN_REPLICAS": "3"})
    assert shell_settings(settings, "view").login.password == credentials.users["view"]
    assert shell_settings(settings, "view").sys_login is None
    assert shell_settings(settings, "plan_applier").sys_login is not None
    agent = shell_settings(settings, "agent", "n1")
    assert (agent.login.user, agent.in_core, agent.replicas) == ("node-n1", False, 3)
    with pytest.raises(ConfigInvalid, match="replicas"):
        run_settings({"CARAVAN_REPLICAS": "many"})


PROCESS = """
import sys
from shared.bus.process.runner import run_role
from shared.bus.process.settings import run_settings
from tests.bus.toys import Applier
sys.exit(run_role(Applier("p1"), run_settings()))
"""


def test_a_process_serves_until_it_is_told_to_end(bus: Bus, tmp_path: Path) -> None:
    """A role's process becomes ready, ends with 0 on SIGTERM, and its log lines are JSON."""
    run(bus.bootstrap())
    path, port_file = tmp_path / "credentials.json", tmp_path / "port"
    accounts.write_credentials(path, bus.credentials)
    environ = {
        **os.environ,
        "CARAVAN_NATS_URL": bus.server.url,
        "CARAVAN_CREDENTIALS": str(path),
        "CARAVAN_HEALTH_PORT_FILE": str(port_file),
    }
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS], env=environ, cwd=root, stderr=subprocess.PIPE
    ) as process:
        try:
            run(until(lambda: healthy(port_file), "a ready process"))
            process.send_signal(signal.SIGTERM)
            _, written = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    lines = [json.loads(line) for line in written.splitlines()]
    assert process.returncode == 0, written
    events = [line["event"] for line in lines]
    assert (events[0], events[-1]) == ("service.started", "service.ended")
    assert all(line["service"] == "plan_applier" and line["instance"] == "p1" for line in lines)


def healthy(port_file: Path) -> bool:
    """Tell whether the process whose health port stands in the file is ready."""
    port = port_file.read_text().strip() if port_file.exists() else ""
    return bool(port) and get(int(port), "/health")[0] == 200


def test_two_roles_share_a_process(bus: Bus, tmp_path: Path) -> None:
    """Two roles keep their own logins; health and metrics show each, and SIGTERM ends both."""
    run(bus.bootstrap())
    path, port_file = tmp_path / "credentials.json", tmp_path / "port"
    accounts.write_credentials(path, bus.credentials)
    environ = {
        **os.environ,
        "CARAVAN_NATS_URL": bus.server.url,
        "CARAVAN_CREDENTIALS": str(path),
        "CARAVAN_HEALTH_PORT_FILE": str(port_file),
    }
    command = [sys.executable, "-m", "services.cli", "run", "heartbeat,eval_broker"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, env=environ, cwd=root, stderr=subprocess.PIPE) as process:
        try:
            run(until(lambda: healthy(port_file), "a ready process"))
            port = int(port_file.read_text())
            health = json.loads(get(port, "/health")[1])
            metrics = get(port, "/metrics")[1]
            process.send_signal(signal.SIGTERM)
            _, written = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, written
    assert [one["role"] for one in health["roles"]] == ["heartbeat", "eval_broker"]
    for role in ("heartbeat", "eval_broker"):
        assert f'caravan_shell_ready_info{{role="{role}"}} 1' in metrics
    lines = [json.loads(line) for line in written.splitlines()]
    ended = {line["service"] for line in lines if line["event"] == "service.ended"}
    assert ended == {"heartbeat", "eval_broker"}


def test_a_process_that_must_not_go_on_says_so(bus: Bus, tmp_path: Path) -> None:
    """Without a log the process ends with 1, and its last line names what is missing."""
    environ = {**os.environ, "CARAVAN_NATS_URL": bus.server.url, "CARAVAN_START_TIMEOUT_S": "0.1"}
    user, environ["CARAVAN_NATS_PASSWORD"] = bus.credentials.login("plan_applier")
    environ["CARAVAN_NATS_USER"] = user
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS],
        env=environ,
        cwd=root,
        capture_output=True,
        check=False,
        timeout=WAIT_S,
    )
    last = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 1
    assert (last["event"], last["level"]) == ("service.stopped", "critical")
    assert "JOBS is missing" in last["reason"]


def test_a_histogram_is_one_family_with_rising_bounds() -> None:
    """Buckets, sum and count stand under one TYPE line, bounds in rising order, what is longest in +Inf."""
    took = Histogram("caravan_toy_step_seconds")
    for duration_ns in (0, 3_000_000, 60_000_000_000, -5):
        took.observe(duration_ns)
    shown = exposition({"caravan_toy_step_seconds_else": 1.0, **took.shown()})
    assert shown.count("# TYPE caravan_toy_step_seconds histogram\n") == 1
    bounds = [float(one) for one in re.findall(r'_bucket\{le="([^"]+)"\}', shown)]
    assert bounds == sorted(bounds)
    assert 'caravan_toy_step_seconds_bucket{le="0.005"} 3\n' in shown
    assert 'caravan_toy_step_seconds_bucket{le="+Inf"} 4\n' in shown
    assert "caravan_toy_step_seconds_sum 60.003\n" in shown
    assert "# TYPE caravan_toy_step_seconds_else gauge\n" in shown


def test_a_cancelled_flush_ends_no_reading(bus: Bus) -> None:
    """Its answer still comes and belongs to no call; later messages arrive."""

    async def story() -> None:
        heard: list[bytes] = []
        async with bus.client() as client:
            flush = asyncio.ensure_future(client.flush())
            # The ping is sent in this turn, its answer cannot be here before the next.
            await asyncio.sleep(0)
            flush.cancel()
            await asyncio.gather(flush, return_exceptions=True)
            assert flush.cancelled()
            await client.listen("x", lambda _subject, _reply, _headers, data: heard.append(data))
            client.send("x", b"1")
            await client.flush()
            assert heard == [b"1"]

    run(story())
