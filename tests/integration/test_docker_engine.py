"""The Docker API version is negotiated: with old and new engines, for calls and streams, and again after an upgrade."""

import asyncio
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import docker
import pytest
from structlog.testing import capture_logs

from services.agent.drivers.docker.container_spec import HostCpu
from services.agent.drivers.docker.driver import DockerDriver
from services.agent.drivers.docker.engine import (
    DockerEngine,
    EngineRefused,
    EngineUnavailable,
)
from services.agent.drivers.docker.settings import DockerSettings


class FakeEngine(socketserver.ThreadingUnixStreamServer):
    """An engine on a Unix socket that serves the API versions `oldest` to `newest` and knows one container."""

    daemon_threads = True

    def __init__(self, path: Path, oldest: str, newest: str) -> None:
        super().__init__(str(path), _Handler)
        self.oldest, self.newest = oldest, newest
        #: request paths in order of arrival.
        self.paths: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeEngine

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.path == "/version":
            version = {"ApiVersion": self.server.newest, "MinAPIVersion": self.server.oldest}
            self._reply(200, version)
            return
        version, _, rest = self.path.removeprefix("/v").partition("/")
        if _number(version) < _number(self.server.oldest):
            text = f"client version {version} is too old. Minimum supported API version is "
            self._reply(400, {"message": text + self.server.oldest})
        elif _number(version) > _number(self.server.newest):
            text = f"client version {version} is too new. Maximum supported API version is "
            self._reply(400, {"message": text + self.server.newest})
        elif rest == "containers/c1/json":
            self._reply(200, {"Id": "c1"})
        elif rest == "info":
            self._reply(200, {"OSType": "linux", "ServerVersion": "29.1"})
        elif rest == "events":
            self._reply(200, {"Action": "die"})
        else:
            self._reply(404, {"message": "no such container"})

    def _reply(self, status: int, body: dict[str, str]) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


pytestmark = pytest.mark.asyncio
Start = Callable[[str, str], tuple[FakeEngine, DockerEngine]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start an engine that serves some versions, and a client of it."""
    closers: list[Callable[[], None]] = []

    def begin(oldest: str, newest: str) -> tuple[FakeEngine, DockerEngine]:
        path = tmp_path / "sock"
        server = FakeEngine(path, oldest, newest)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        client = DockerEngine(f"unix://{path}", call_s=10)
        closers.extend((client.close, server.shutdown, server.server_close))
        return server, client

    yield begin
    for close in closers:
        close()


@pytest.mark.parametrize(
    ("oldest", "newest", "version"),
    [
        ("1.24", "1.41", "1.41"),
        ("1.44", "1.52", "1.45"),
        ("1.44", "1.44", "1.44"),
        ("1.45", "1.100", "1.45"),
    ],
)
async def test_calls_and_streams_use_the_newest_common_version(
    start: Start, oldest: str, newest: str, version: str
) -> None:
    """Old and new engines are asked as they demand, by calls and by streams alike."""
    server, client = start(oldest, newest)
    assert (await client.call(docker.APIClient.inspect_container, "c1"))["Id"] == "c1"
    reader, writer = await client.open("GET", "/events")
    assert json.loads(await reader.readline()) == {"Action": "die"}
    writer.close()
    assert server.paths == ["/version", f"/v{version}/containers/c1/json", f"/v{version}/events"]


async def test_a_stream_negotiates_when_it_comes_first(start: Start) -> None:
    """A stream needs no call before it."""
    server, client = start("1.44", "1.47")
    _, writer = await client.open("GET", "/events")
    writer.close()
    assert server.paths == ["/version", "/v1.45/events"]


@pytest.mark.parametrize(
    ("oldest", "newest", "reason"),
    [
        ("1.12", "1.40", "Docker Engine API 1.40 is too old; at least 1.41 is required"),
        ("1.12", "1.9", "Docker Engine API 1.9 is too old; at least 1.41 is required"),
        ("1.46", "1.60", "Docker Engine requires API 1.46; this release supports up to 1.45"),
        ("", "", "Docker Engine API version '' is not valid"),
    ],
)
async def test_an_engine_without_a_common_version_is_unavailable(
    start: Start, oldest: str, newest: str, reason: str
) -> None:
    """Without a common version nothing is known about a container: it is not reported as removed."""
    server, client = start(oldest, newest)
    with pytest.raises(EngineUnavailable, match=reason):
        await client.call(docker.APIClient.inspect_container, "c1")
    with pytest.raises(EngineUnavailable, match=reason):
        await client.open("GET", "/events")
    assert set(server.paths) == {"/version"}


def driver_on(server: FakeEngine, top: Path) -> DockerDriver:
    """The driver of a node whose engine is this one."""
    return DockerDriver(
        DockerSettings(host=f"unix://{server.server_address!s}"),
        data_dir=top,
        node_id="n1",
        home_id="h1",
        kernel_boot="b1",
        machine=HostCpu(core_mhz=2000, cores=2),
    )


async def test_a_node_offers_an_engine_that_demands_1_44(start: Start, tmp_path: Path) -> None:
    """Releases from 29 on refuse 1.41: the node asks in a version that both know, and offers the driver."""
    server, _ = start("1.44", "1.52")
    driver = driver_on(server, tmp_path)
    found = await asyncio.to_thread(driver.fingerprint)
    driver.close()
    assert (found["driver.docker"], found["driver.docker.version"]) == ("1", "29.1")
    assert set(server.paths) == {"/version", "/v1.45/info"}


async def test_an_engine_that_is_too_old_offers_no_driver(start: Start, tmp_path: Path) -> None:
    """No common version: the node has no driver, and the reason is logged."""
    server, _ = start("1.12", "1.40")
    driver = driver_on(server, tmp_path)
    with capture_logs() as logs:
        found = await asyncio.to_thread(driver.fingerprint)
    driver.close()
    assert found == {}
    (line,) = [one for one in logs if one["event"] == "docker.not_available"]
    assert "API 1.40 is too old" in line["reason"]


async def test_an_upgraded_engine_is_negotiated_with_again(start: Start) -> None:
    """A version that is refused after an upgrade is replaced by the next call."""
    server, client = start("1.24", "1.41")
    await client.call(docker.APIClient.inspect_container, "c1")
    server.oldest, server.newest = "1.44", "1.47"
    with pytest.raises(EngineUnavailable, match=r"client version 1\.41 is too old"):
        await client.call(docker.APIClient.inspect_container, "c1")
    assert (await client.call(docker.APIClient.inspect_container, "c1"))["Id"] == "c1"
    assert server.paths[-1] == "/v1.45/containers/c1/json"


async def test_a_stream_notices_a_downgraded_engine(start: Start) -> None:
    """A version that is refused after a downgrade is replaced by the next stream."""
    server, client = start("1.24", "1.45")
    await client.call(docker.APIClient.inspect_container, "c1")
    server.newest = "1.42"
    with pytest.raises(EngineUnavailable, match=r"client version 1\.45 is too new"):
        await client.open("GET", "/events")
    _, writer = await client.open("GET", "/events")
    writer.close()
    assert server.paths[-1] == "/v1.42/events"


async def test_an_error_status_is_a_refusal_and_keeps_the_version(start: Start) -> None:
    """Other errors are the engine's answer, and cost no further negotiation."""
    server, client = start("1.24", "1.43")
    with pytest.raises(EngineRefused) as refused:
        await client.call(docker.APIClient.inspect_container, "c2")
    assert refused.value.status == 404
    with pytest.raises(EngineRefused, match="no such container"):
        await client.open("GET", "/containers/c2/logs")
    assert server.paths.count("/version") == 1
