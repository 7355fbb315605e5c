"""`/health` and `/metrics` of one process over HTTP on loopback, in the Prometheus text format 0.0.4."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from shared.bus.process.metric_help import METRIC_HELP

_REQUEST_S = 5.0
_HEAD_BYTES_MAX = 8192


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `/health`; `ready` decides between 200 and 503."""

    role: str
    instance: str
    ready: bool
    #: last applied seq of the log.
    seq: int
    #: records that wait at the bus.
    lag: int
    #: problems that prevent its work, by name; not ready while there is one.
    problems: dict[str, str] = {}
    #: what an operator should know although it works, a sentence each.
    alarms: tuple[str, ...] = ()
    #: of a process with several roles: each of them.
    roles: "list[Health]" = []


def exposition(metrics: dict[str, float]) -> str:
    """Render metrics by full name (labels included), families sorted.

    `_total` are counters, families with a `_bucket` histograms (in the order they came: bounds rise), the rest gauges.
    """
    histograms = {name.partition("_bucket{")[0] for name in metrics if "_bucket{" in name}
    families: dict[str, list[str]] = {}
    for name in metrics:
        families.setdefault(_family(name, histograms), []).append(name)
    lines: list[str] = []
    for family, names in sorted(families.items()):
        kind = "histogram" if family in histograms else "gauge"
        kind = "counter" if family.endswith("_total") else kind
        if family in METRIC_HELP:
            lines.append(f"# HELP {family} {METRIC_HELP[family]}")
        lines.append(f"# TYPE {family} {kind}")
        for name in names if family in histograms else sorted(names):
            value = float(metrics[name])
            lines.append(f"{name} {int(value) if value.is_integer() else repr(value)}")
    return "\n".join(lines) + "\n"


def merged_metrics(by_role: dict[str, dict[str, float]]) -> dict[str, float]:
    """Join the metrics of a process's roles; where there are several, each gets the label `role`."""
    if len(by_role) == 1:
        return next(iter(by_role.values()))
    return {
        _labeled(name, f'role="{role}"'): value
        for role, metrics in by_role.items()
        for name, value in metrics.items()
    }


def _labeled(name: str, label: str) -> str:
    bare, _, rest = name.partition("{")
    return f"{bare}{{{label},{rest}" if rest else f"{bare}{{{label}}}"


def _family(name: str, histograms: set[str]) -> str:
    bare = name.partition("{")[0]
    base = bare.rpartition("_")[0]
    return base if base in histograms and bare.endswith(("_bucket", "_sum", "_count")) else bare


class HealthServer:
    """Answers GET on a loopback port until `stop`."""

    def __init__(
        self, health: Callable[[], Health], metrics: Callable[[], dict[str, float]]
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0, *, host: str = "127.0.0.1", port_file: str = "") -> None:
        """Listen; port 0 takes a free one. The chosen one is `port`, and is written to `port_file` if named."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_HEAD_BYTES_MAX)
        self.port = int(self._server.sockets[0].getsockname()[1])
        if port_file:
            await asyncio.to_thread(Path(port_file).write_text, f"{self.port}\n")

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
            writer.write(self._answer(head))
            await writer.drain()
        writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, "text/plain", b"GET only\n")
        if path == b"/health":
            health = self._health()
            return _response(
                200 if health.ready else 503, "application/json", msgspec.json.encode(health)
            )
        if path == b"/metrics":
            return _response(200, "text/plain; version=0.0.4", exposition(self._metrics()).encode())
        return _response(404, "text/plain", b"/health or /metrics\n")


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def _response(code: int, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
