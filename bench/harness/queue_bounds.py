"""Every queue of a running cluster: its gauges and its bound.

A queue is anything that grows when more comes in than goes out. Each bound follows from constants of its process;
docs/operations.md lists the same bounds. What grows with the state alone (blocked and delayed evaluations, one of a
job) is not a queue. Next: `bench/resilience/overload.py`.
"""

import asyncio
import contextlib
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from bench.harness.cluster import BenchCluster
from services.eval_broker.worker_leases import WINDOW, WINDOW_ALONE
from services.intake.admission import UNCONFIRMED_MAX, WAITING_MAX
from services.intake.role import BATCH_COMMANDS_MAX, PENDING_MAX
from services.scheduler.plan_outbox import PLANS_MAX
from services.view.operator_api import WAITING_MAX as OPERATOR_WAITING_MAX
from shared.bus.connection.nats_client import BusClient
from shared.bus.jetstream import streams
from shared.bus.shell.shell import STEP_INPUTS_MAX
from shared.core.runtime.messages import Read, Work
from shared.errors import BusUnavailable

#: Smallest messages that one turn of the loop reads of a connection (libuv: 32 times 64 KiB).
_A_TURN: Final = (2 << 20) // 100
#: Between two looks.
_PAUSE_S: Final = 0.25
_ANSWER_S: Final = 10.0


class ClusterSize(msgspec.Struct, frozen=True):
    """The numbers that bounds depend on."""

    nodes: int
    #: that were accepted, lone ones included.
    jobs: int
    stops: int
    workers: int


class QueueBound(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of a role, or of the server (`role` empty, `gauges`: stream and field)."""

    role: str
    name: str
    #: sums of these, without the part in braces unless it is given.
    gauges: tuple[str, ...]
    #: None: the log, which is on disk; it must be read to its end afterwards.
    bound: Callable[[ClusterSize], float] | None
    #: length in an idle cluster.
    idle: float = 0

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.role or 'bus'}.{self.name}"


def _commands(kind: str, a_message: int) -> QueueBound:
    most = Work(name="", stream="", subject="", durable="").credit * a_message
    gauge = f'caravan_plan_applier_queue_depth{{kind="{kind}"}}'
    return QueueBound(role="plan_applier", name=kind, gauges=(gauge,), bound=lambda _: most)


def _leases(cluster: ClusterSize) -> float:
    return WINDOW_ALONE if cluster.workers == 1 else WINDOW * cluster.workers


_ROLES: Final = (
    "intake",
    "plan_applier",
    "eval_broker",
    "scheduler",
    "view",
    "heartbeat",
    "timekeeper",
)
QUEUE_BOUNDS: Final = (
    QueueBound(
        role="", name="jobs_bytes", gauges=("JOBS",), bound=lambda _: streams.JOBS.max_bytes
    ),
    QueueBound(role="", name="cmd_bytes", gauges=("CMD",), bound=lambda _: streams.CMD.max_bytes),
    QueueBound(
        role="", name="eval_bytes", gauges=("EVAL",), bound=lambda _: streams.EVAL.max_bytes
    ),
    QueueBound(
        role="intake",
        name="pending",
        gauges=("caravan_intake_pending_submissions",),
        # Stops come in beside them.
        bound=lambda cluster: PENDING_MAX + cluster.stops,
    ),
    QueueBound(
        role="intake",
        name="drop_box",
        gauges=("caravan_intake_drop_box_outstanding_messages",),
        bound=lambda _: Read("", "", "").credit,
    ),
    _commands("job", BATCH_COMMANDS_MAX),
    _commands("plan", PLANS_MAX),
    _commands("evaluation", 4),
    _commands("operator", 1),
    _commands("liveness", 1),
    _commands("report", 1),
    QueueBound(
        role="eval_broker",
        name="waiting",
        gauges=tuple(
            f"caravan_eval_broker_{one}_evaluations" for one in ("ready", "pending", "parked")
        ),
        bound=lambda _: WAITING_MAX + UNCONFIRMED_MAX,
    ),
    QueueBound(
        role="eval_broker",
        name="leased",
        gauges=("caravan_eval_broker_unacked_evaluations",),
        bound=_leases,
    ),
    QueueBound(
        role="eval_broker",
        name="to_end",
        gauges=("caravan_eval_broker_cancelable_evaluations",),
        bound=lambda _: WAITING_MAX + UNCONFIRMED_MAX,
    ),
    QueueBound(
        role="scheduler",
        name="leases",
        gauges=("caravan_scheduler_leases_waiting",),
        bound=lambda cluster: _leases(cluster) / cluster.workers,
    ),
    QueueBound(
        role="scheduler",
        name="plans",
        gauges=("caravan_scheduler_plans_outstanding",),
        # One of each lease; the broker may have read of ends, and leased again, that the worker has not read yet.
        bound=lambda cluster: 2 * _leases(cluster) / cluster.workers,
    ),
    # One of each node, its summary, each job and each verdict: what changes again is not there twice.
    QueueBound(
        role="view",
        name="marks",
        gauges=("caravan_view_marks_waiting",),
        bound=lambda cluster: 2 * (cluster.nodes + cluster.jobs),
    ),
    QueueBound(
        role="view",
        name="wishes",
        gauges=("caravan_view_operator_wishes_waiting",),
        bound=lambda _: OPERATOR_WAITING_MAX,
    ),
    *(
        QueueBound(
            role=role,
            name="inputs",
            gauges=("caravan_shell_waiting_inputs",),
            bound=lambda _: STEP_INPUTS_MAX + _A_TURN,
            # Heartbeats of a moment.
            idle=1_000,
        )
        for role in _ROLES
    ),
    *(
        QueueBound(role=role, name="log_lag", gauges=("caravan_shell_lag_records",), bound=None)
        for role in _ROLES
    ),
)


class QueueWatermarks:
    """The highest and the current length of each queue."""

    def __init__(self, cluster: BenchCluster) -> None:
        self._cluster = cluster
        #: by key of the queue.
        self.highest: dict[str, float] = {}
        self._now: dict[str, float] = {}
        #: of each process: how often it connected, and times from lease to plan, cumulated by bound.
        self.connects: dict[str, float] = {}
        self.planned: dict[float, float] = {}

    async def watch(self) -> None:
        """Poll forever."""
        async with self._cluster.connection() as bus:
            while True:
                await self._look(bus)
                await asyncio.sleep(_PAUSE_S)

    async def look(self) -> None:
        """Check once."""
        async with self._cluster.connection() as bus:
            await self._look(bus)

    def over(self, cluster: ClusterSize) -> list[str]:
        """List the queues above their bounds."""
        bounds = {one.key: one.bound(cluster) for one in QUEUE_BOUNDS if one.bound is not None}
        highest = ((key, self.highest.get(key, 0), bound) for key, bound in bounds.items())
        return [f"{key} {most:g} above {bound:g}" for key, most, bound in highest if most > bound]

    def unseen(self) -> list[str]:
        """List the queues that were never read: their bounds are not proven."""
        return [f"{one.key} never seen" for one in QUEUE_BOUNDS if one.key not in self.highest]

    def standing(self) -> list[str]:
        """Name what is not empty."""
        idle = {one.key: one.idle for one in QUEUE_BOUNDS}
        return sorted(key for key, value in self._now.items() if value > idle[key])

    async def _look(self, bus: BusClient) -> None:
        for one in QUEUE_BOUNDS:
            # A server that does not answer is read next time.
            with contextlib.suppress(BusUnavailable):
                found = None if one.role else await streams.info(bus, one.gauges[0])
                if found is not None:
                    self._note(one.key, found.state.bytes)
        # At once, so that a slow process does not delay the others.
        children = [(child.role, child.name) for child in self._cluster.children]
        await asyncio.gather(*(asyncio.to_thread(self._read, *one) for one in children))

    def _read(self, role: str, name: str) -> None:
        # A process that does not run is read next time.
        with contextlib.suppress(OSError):
            shown = _metrics(self._cluster, name)
            for one in QUEUE_BOUNDS:
                if one.role == role:
                    self._note(one.key, sum(shown[gauge] for gauge in one.gauges))
            self.connects[name] = shown["caravan_shell_connects_total"]
            if role == "eval_broker":
                self.planned = _buckets(shown, "caravan_eval_broker_process_seconds")

    def _note(self, key: str, value: float) -> None:
        self._now[key] = value
        self.highest[key] = max(self.highest.get(key, 0), value)


def high_water(marks: QueueWatermarks) -> dict[str, float]:
    """The highest of each queue, as parts of a result."""
    return {f"high_water.{key}": value for key, value in sorted(marks.highest.items())}


def quantile_of(before: dict[float, float], after: dict[float, float], part: float) -> float:
    """Upper bound, s, below which a part of what a histogram counted in between lies; infinite: above all bounds."""
    grown = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    total = max(grown.values(), default=0.0)
    return min((bound for bound, count in grown.items() if count >= part * total), default=0.0)


def _buckets(shown: Counter[str], name: str) -> dict[float, float]:
    head = f'{name}_bucket{{le="'
    return {
        float(key.removeprefix(head)[:-2]): value
        for key, value in shown.items()
        if key.startswith(head)
    }


def _metrics(cluster: BenchCluster, name: str) -> Counter[str]:
    """Everything that a process shows, by its full name, and summed over labels by its bare one."""
    port = int((cluster.data_dir / "logs" / f"{name}.port").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_ANSWER_S) as answer:
        lines = answer.read().decode().splitlines()
    found: Counter[str] = Counter()
    for line in lines:
        if not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            found[key] += float(value)  # type: ignore[assignment]
            if "{" in key:
                found[key.partition("{")[0]] += float(value)  # type: ignore[assignment]
    return found
