"""Profiles of a simulated fleet: its nodes, how long tasks take to start and to run, and which fail.

Every draw is a pure function of (seed, key or node, purpose). A job sets its exact run time and exit code with the
meta keys `sim.run_ms` and `sim.exit_code`, which override the profile.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.base import NodeId
from schemas.jobs import SERVICE_JOB_TYPES
from schemas.nodes import NodeSpec, Pool
from shared.core.columns import Int64s
from shared.errors import ConfigInvalid
from shared.fleet import distributions
from shared.fleet.config_file import duration_ns, read_config
from shared.fleet.distributions import Distribution, purpose_hashes
from shared.numerals import is_digits

#: Meta keys of a job: run time of its tasks in ms (0: they end at once), and exit code.
RUN_MS, EXIT_CODE = "sim.run_ms", "sim.exit_code"
FOREVER = "forever"
NODES_MAX = 1_000_000
DAY_NS = 86_400_000_000_000
#: Purposes of draws.
START, START_FAILS, RUN, RUN_FAILS, STOP, OUTAGE, AWAY, BOOT = range(8)


class DurationSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution of durations like `30s`: exactly one field. In a file a plain text means fixed, or `forever`."""

    fixed: str = ""
    #: lower and upper bound.
    uniform: tuple[str, str] | None = None
    #: the mean.
    exponential: str = ""
    #: the median; needs `p99`.
    lognormal: str = ""
    p99: str = ""
    #: probability -> duration, straight lines between.
    quantiles: dict[str, str] = {}
    #: upper bound of a draw.
    at_most: str = ""


DurationField = str | DurationSpec


class NodeClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A class of equal nodes. Units: MHz, MiB."""

    name: str = "sim"
    #: number of nodes; its share, in a fleet of another size.
    count: int = 1
    node_class: str = msgspec.field(name="class", default="")
    cpu_mhz: int = 20_800
    memory_mib: int = 30_720
    disk_mib: int = 102_400
    core_mhz: int = 0
    datacenter: str = "dc1"
    pool: str = "default"
    attributes: dict[str, str] = {}
    meta: dict[str, str] = {}
    #: devices, cores and custom resources.
    devices: tuple[Pool, ...] = ()


class StartProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tasks start: from the order to the running task."""

    after: DurationField = "0s"
    #: share of starts that fail.
    fail: float = 0.0


class RunProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long allocations of some jobs run. The first matching entry applies."""

    #: a pattern of job ids, with * and ?.
    job: str = "*"
    #: service, batch, system or sysbatch; empty: any.
    job_type: str = msgspec.field(name="type", default="")
    lasts: DurationField = FOREVER
    #: share of runs that end in failure.
    fail: float = 0.0


class NodeFailures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How nodes fail."""

    #: outages per node and day.
    per_node_day: float = 0.0
    #: duration of an outage.
    away: DurationField = "10m"
    #: from the end of the outage to the registration under a new boot.
    boot: DurationField = "30s"


class FleetProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile file."""

    nodes: tuple[NodeClass, ...] = (NodeClass(),)
    starts: StartProfile = StartProfile()
    runs: tuple[RunProfile, ...] = ()
    #: from the stop order to the end.
    stops: DurationField = "0s"
    failures: NodeFailures = NodeFailures()


class RestartRule(msgspec.Struct, frozen=True):
    """A restart policy: attempts within the interval, with a delay before each; without an interval, unlimited."""

    restarts: int = 0
    pause_ns: int = 0
    interval_ns: int = 0


class TaskProfile(msgspec.Struct, frozen=True):
    """How allocations of one kind start, run and stop. Shares are out of `distributions.ONE`.

    `exit_code` is the code of runs that do not fail by chance; any other than 0 is a failure.
    """

    starts: Distribution
    start_fails: int
    runs: Distribution
    run_fails: int
    stops: Distribution
    exit_code: int = 0
    #: how a failed task is restarted in place.
    restarts: int = 0
    pause_ns: int = 0
    interval_ns: int = 0

    def draw_starts(self, seed: int, keys: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Return the time from the order to the start of each, and whether the start fails. Shapes: (K,)."""
        return (
            self.starts.draw(purpose_hashes(seed, START, keys)),
            distributions.happens(purpose_hashes(seed, START_FAILS, keys), self.start_fails),
        )

    def draw_runs(self, seed: int, keys: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Return how long each runs, and whether it ends in failure. Shapes: (K,)."""
        fails = distributions.happens(purpose_hashes(seed, RUN_FAILS, keys), self.run_fails)
        return self.runs.draw(purpose_hashes(seed, RUN, keys)), fails | bool(self.exit_code)

    def draw_stops(self, seed: int, keys: Int64s) -> Int64s:
        """Return the time from the stop order to the end of each. Shapes: (K,)."""
        return self.stops.draw(purpose_hashes(seed, STOP, keys))

    def time_to_final_failure(self, runs_ns: Int64s) -> Int64s:
        """Total time until allocations fail whose runs each fail after `runs_ns`; NEVER_NS: never.

        Shapes: (K,).
        """
        if not self.restarts:
            return runs_ns
        again = (
            np.minimum(runs_ns, distributions.DURATION_MAX_NS // (self.restarts + 1))
            + self.pause_ns
        )
        # Attempts are counted from the first end, and reset when the interval is over.
        gives_up = again * self.restarts < self.interval_ns
        return np.where(gives_up, runs_ns + again * self.restarts, distributions.NEVER_NS)


#: Starts at once and never ends.
RUN_FOREVER = TaskProfile(distributions.fixed(0), 0, distributions.NEVER, 0, distributions.fixed(0))


class NodeProfile:
    """A compiled profile: distributions of nodes, and the task profile of each job."""

    def __init__(self, profile: FleetProfile) -> None:
        self._starts = parse_distribution(profile.starts.after, "starts.after")
        self._start_fails = _share(profile.starts.fail, "starts.fail")
        self._stops = parse_distribution(profile.stops, "stops")
        self._runs = [
            (
                one,
                parse_distribution(one.lasts, f"runs[{at}].lasts"),
                _share(one.fail, f"runs[{at}].fail"),
            )
            for at, one in enumerate(profile.runs)
        ]
        failures = profile.failures
        if not 0 <= failures.per_node_day <= 1000:
            raise ConfigInvalid("failures.per_node_day: must be from 0 to 1000")
        rate = Fraction(failures.per_node_day)
        self._task_profiles: dict[tuple[object, ...], TaskProfile] = {}
        self.has_failures = rate > 0
        self._between = (
            distributions.exponential(int(DAY_NS / rate)) if rate > 0 else distributions.NEVER
        )
        self._away = parse_distribution(failures.away, "failures.away")
        self._boot = parse_distribution(failures.boot, "failures.boot")

    def task_profile(
        self,
        job_id: str,
        job_type: str,
        meta: Mapping[str, str] | None = None,
        again: RestartRule | None = None,
    ) -> TaskProfile:
        """Return the task profile of a job; the same object for equal jobs. Raises ConfigInvalid.

        `meta`: of its group or task. `again`: its restart policy.
        """
        said = meta or {}
        exit_code, run_ms = _number(said, EXIT_CODE), _number(said, RUN_MS)
        # A service must not end: any end is a failure.
        must_go_on = job_type in SERVICE_JOB_TYPES
        at = self._which(job_id, job_type)
        key = (at, run_ms, exit_code, must_go_on, again)
        found = self._task_profiles.get(key)
        if found is None:
            found = self._task_profiles[key] = self._made(
                at, run_ms, exit_code, again, must_go_on=must_go_on
            )
        return found

    def says_run_time(self, job_id: str, job_type: str) -> bool:
        """Tell whether an entry says how long allocations of a job run."""
        return self._which(job_id, job_type) >= 0

    def _which(self, job_id: str, job_type: str) -> int:
        for at, (one, _, _) in enumerate(self._runs):
            if fnmatchcase(job_id, one.job) and one.job_type in ("", job_type):
                return at
        return -1

    def _made(
        self,
        at: int,
        run_ms: int | None,
        exit_code: int | None,
        again: RestartRule | None,
        *,
        must_go_on: bool,
    ) -> TaskProfile:
        # The default: services run on, batch jobs end at once.
        runs, fails = (distributions.NEVER if must_go_on else distributions.fixed(0)), 0
        if at >= 0:
            _, runs, fails = self._runs[at]
        if run_ms is not None:
            runs = distributions.fixed(run_ms * 1_000_000)
        if exit_code is not None:
            fails = 0
        if must_go_on:
            fails = distributions.PROBABILITY_ONE
        again = again or RestartRule()
        return TaskProfile(
            self._starts,
            self._start_fails,
            runs,
            fails,
            self._stops,
            exit_code or 0,
            again.restarts,
            again.pause_ns,
            again.interval_ns,
        )

    def times_to_failure_ns(self, seed: int, nodes: Int64s, nth: Int64s) -> Int64s:
        """Time until the `nth` outage (from 0) of each node; NEVER_NS: never. Shapes: (N,)."""
        return self._between.draw(_of_node(seed, OUTAGE, nodes, nth))

    def outage_times_ns(self, seed: int, nodes: Int64s, nth: Int64s) -> Int64s:
        """Duration of the `nth` outage of each node, before it boots. Shapes: (N,)."""
        return self._away.draw(_of_node(seed, AWAY, nodes, nth))

    def boot_times_ns(self, seed: int, nodes: Int64s, nth: Int64s) -> Int64s:
        """Boot time of each node. Shapes: (N,)."""
        return self._boot.draw(_of_node(seed, BOOT, nodes, nth))


def _of_node(seed: int, purpose: int, nodes: Int64s, nth: Int64s) -> distributions.Hashes:
    return distributions.purpose_hashes(seed, purpose, (nodes << 20) | nth)


# ---- reading ----


def read_profile(text: bytes, name: str = "profile") -> FleetProfile:
    """Read YAML or JSON. Raises FileInvalid."""
    return read_config(text, name, FleetProfile, _checked)


def _checked(profile: FleetProfile) -> FleetProfile:
    if not profile.nodes:
        raise ConfigInvalid("nodes: at least one node class is required")
    for at, one in enumerate(profile.nodes):
        if not 1 <= one.count <= NODES_MAX:
            raise ConfigInvalid(f"nodes[{at}].count: must be from 1 to {NODES_MAX}")
        if min(one.cpu_mhz, one.memory_mib, one.disk_mib) < 0:
            raise ConfigInvalid(f"nodes[{at}]: amounts must not be negative")
    for at, run in enumerate(profile.runs):
        if run.job_type not in ("", "service", "batch", "system", "sysbatch"):
            raise ConfigInvalid(f"runs[{at}].type: unknown job type {run.job_type!r}")
    NodeProfile(profile)
    return profile


def parse_distribution(lasts: DurationField, place: str) -> Distribution:
    """Compile a distribution. Raises ConfigInvalid with the path."""
    spread = DurationSpec(fixed=lasts) if isinstance(lasts, str) else lasts
    said = [
        name
        for name in ("fixed", "uniform", "exponential", "lognormal", "quantiles")
        if getattr(spread, name)
    ]
    if len(said) != 1:
        raise ConfigInvalid(
            f"{place}: exactly one of fixed, uniform, exponential, lognormal and quantiles is required"
        )
    if spread.fixed == FOREVER:
        return distributions.NEVER
    at_most = (
        duration_ns(spread.at_most, f"{place}.at_most")
        if spread.at_most
        else distributions.DURATION_MAX_NS
    )
    where = place if isinstance(lasts, str) else f"{place}.{said[0]}"
    if spread.fixed:
        return distributions.fixed(min(duration_ns(spread.fixed, where), at_most))
    if spread.exponential:
        return distributions.exponential(duration_ns(spread.exponential, where), at_most=at_most)
    if spread.uniform:
        first, last = (duration_ns(one, where) for one in spread.uniform)
        if first > last:
            raise ConfigInvalid(f"{where}: the first duration must not exceed the second")
        return distributions.quantiles([(Fraction(0), first), (Fraction(1), last)], at_most=at_most)
    if spread.lognormal:
        median, p99 = duration_ns(spread.lognormal, where), duration_ns(spread.p99, f"{place}.p99")
        if not 0 < median <= p99:
            raise ConfigInvalid(f"{place}: lognormal requires 0 < lognormal <= p99")
        return distributions.lognormal(median, p99, at_most=at_most)
    return distributions.quantiles(_points(spread.quantiles, where), at_most=at_most)


def _points(quantiles: dict[str, str], place: str) -> list[tuple[Fraction, int]]:
    points = []
    for key, text in quantiles.items():
        try:
            p = Fraction(key)
        except (ValueError, ZeroDivisionError) as err:
            raise ConfigInvalid(f"{place}: {key!r} is not a probability such as 0.99") from err
        if not 0 <= p <= 1:
            raise ConfigInvalid(f"{place}: {key!r} is not a probability such as 0.99")
        points.append((p, duration_ns(text, f"{place}[{key!r}]")))
    points.sort()
    if any(left[1] > right[1] for left, right in pairwise(points)):
        raise ConfigInvalid(f"{place}: durations must increase with probability")
    return points


def _share(value: float, place: str) -> int:
    if not 0 <= value <= 1:
        raise ConfigInvalid(f"{place}: must be a share from 0 to 1")
    return int(Fraction(value) * distributions.PROBABILITY_ONE)


def _number(meta: Mapping[str, str], key: str) -> int | None:
    text = meta.get(key)
    if text is None:
        return None
    if not is_digits(text) or len(text) > 13:
        raise ConfigInvalid(f"meta {key}: {text[:40]!r} is not a whole number")
    return int(text)


# ---- nodes ----


def node_specs(profile: FleetProfile, count: int = 0, *, prefix: str = "sim-") -> list[NodeSpec]:
    """Return the node specs of a profile, classes interleaved; with `count`, that many, each class by its share.

    Ids are `<prefix><number>`, five digits at least.
    """
    total = sum(one.count for one in profile.nodes)
    wanted = count or total
    quota = np.asarray([one.count for one in profile.nodes], dtype=np.int64)
    given = np.zeros(len(quota), dtype=np.int64)
    out = []
    for number in range(wanted):
        # The class furthest behind its share is next, the first of equals.
        which = int(np.argmax(quota * (number + 1) - given * total))
        given[which] += 1
        out.append(node_spec(profile.nodes[which], f"{prefix}{number:05d}"))
    return out


def node_spec(one: NodeClass, node_id: str) -> NodeSpec:
    """Return the spec of one node of a class."""
    attributes = {"driver.raw_exec": "1", "kernel.name": "linux", **one.attributes}
    return NodeSpec(
        node_id=NodeId(node_id),
        name=node_id,
        datacenter=one.datacenter,
        node_pool=one.pool,
        node_class=one.node_class,
        cpu_mhz=one.cpu_mhz,
        memory_mib=one.memory_mib,
        disk_mib=one.disk_mib,
        core_mhz=one.core_mhz,
        pools=one.devices,
        attributes=dict(sorted(attributes.items())),
        meta=one.meta,
    )
