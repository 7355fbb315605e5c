"""Profiles: what the nodes of a simulated fleet are, how long tasks take to start and to run, and what fails.

Decides the form of the file, its defaults, and which laws hold for a job. Every draw is a pure function of (seed, key
or node, purpose): `lives.py`. Must not know when anything happens. A job says its own exact run time and exit code by
the meta keys `sim.run_ms` and `sim.exit_code`, which go before the profile.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise

import msgspec
import numpy as np

from schemas.base import NodeId
from schemas.nodes import NodeSpec, Pool
from shared.errors import ConfigInvalid
from shared.fleet import laws
from shared.fleet.laws import Int64s, Law
from shared.jobspec.durations import Misread, nanoseconds
from shared.jobspec.structured import StructuredFault, read_yaml

#: Meta keys by which a job says how long its tasks run, in ms (0: they end at once), and with which code.
RUN_MS, EXIT_CODE = "sim.run_ms", "sim.exit_code"
FOREVER = "forever"
NODES_MAX = 1_000_000
DAY_NS = 86_400_000_000_000
#: Purposes of draws.
START, START_FAILS, RUN, RUN_FAILS, STOP, OUTAGE, AWAY, BOOT = range(8)


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A law over durations like `30s`: exactly one of them. In a file a plain text means fixed, or `forever`."""

    fixed: str = ""
    #: from and to.
    uniform: tuple[str, str] | None = None
    #: the mean.
    exponential: str = ""
    #: the median; needs `p99`.
    lognormal: str = ""
    p99: str = ""
    #: probability -> duration, straight lines between.
    quantiles: dict[str, str] = {}
    #: cuts what is drawn.
    at_most: str = ""


Lasts = str | Spread


class NodeClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are alike. Units: MHz, MiB."""

    name: str = "sim"
    #: how many; of a fleet of another size, its share.
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


class Starts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From the order to the running task."""

    after: Lasts = "0s"
    #: share of starts that fail for good.
    fail: float = 0.0


class Runs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long allocations of some jobs run. The first entry that matches counts."""

    #: a pattern of job ids, with * and ?.
    job: str = "*"
    #: service, batch, system or sysbatch; empty: any.
    job_type: str = msgspec.field(name="type", default="")
    lasts: Lasts = FOREVER
    #: share of runs that end in failure.
    fail: float = 0.0


class Failures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of the nodes."""

    #: how often a node falls silent, a day.
    per_node_day: float = 0.0
    #: how long it is away.
    away: Lasts = "10m"
    #: from there to its registration under a new boot.
    boot: Lasts = "30s"


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole profile, as a file has it."""

    nodes: tuple[NodeClass, ...] = (NodeClass(),)
    starts: Starts = Starts()
    runs: tuple[Runs, ...] = ()
    #: from the order to stop to the end.
    stops: Lasts = "0s"
    failures: Failures = Failures()


class Again(msgspec.Struct, frozen=True):
    """A restart policy: so often within the interval, each time after a pause; without an interval for ever."""

    restarts: int = 0
    pause_ns: int = 0
    interval_ns: int = 0


class Manner(msgspec.Struct, frozen=True):
    """How allocations of one kind live. Shares are out of `laws.ONE`.

    `exit_code` is that of runs that do not fail otherwise; with one that is not 0 they do.
    """

    starts: Law
    start_fails: int
    runs: Law
    run_fails: int
    stops: Law
    exit_code: int = 0
    #: a task that fails is started again in place so often within the interval, each time after a pause.
    restarts: int = 0
    pause_ns: int = 0
    interval_ns: int = 0

    def until_failed(self, runs_ns: Int64s) -> Int64s:
        """How long allocations whose runs fail after `runs_ns` go on in all; NEVER_NS: they never give up.

        Shapes: (K,).
        """
        if not self.restarts:
            return runs_ns
        again = np.minimum(runs_ns, laws.DURATION_MAX_NS // (self.restarts + 1)) + self.pause_ns
        # Attempts are counted from the first end on, and anew once the interval is over.
        gives_up = again * self.restarts < self.interval_ns
        return np.where(gives_up, runs_ns + again * self.restarts, laws.NEVER_NS)


#: Lives that begin at once and never end.
STEADY = Manner(laws.fixed(0), 0, laws.NEVER, 0, laws.fixed(0))


class Habits:
    """A profile made ready: laws of nodes, and the manner of each job."""

    def __init__(self, profile: Profile) -> None:
        self._starts = law_of(profile.starts.after, "starts.after")
        self._start_fails = _share(profile.starts.fail, "starts.fail")
        self._stops = law_of(profile.stops, "stops")
        self._runs = [
            (one, law_of(one.lasts, f"runs[{at}].lasts"), _share(one.fail, f"runs[{at}].fail"))
            for at, one in enumerate(profile.runs)
        ]
        failures = profile.failures
        if not 0 <= failures.per_node_day <= 1000:
            raise ConfigInvalid("failures.per_node_day: a number from 0 to 1000 is needed")
        rate = Fraction(failures.per_node_day)
        self._manners: dict[tuple[object, ...], Manner] = {}
        self.has_outages = rate > 0
        self._between = laws.exponential(int(DAY_NS / rate)) if rate > 0 else laws.NEVER
        self._away = law_of(failures.away, "failures.away")
        self._boot = law_of(failures.boot, "failures.boot")

    def manner(
        self,
        job_id: str,
        job_type: str,
        meta: Mapping[str, str] | None = None,
        again: Again | None = None,
    ) -> Manner:
        """Say how allocations of a job live; the same object for jobs that live alike. Raises ConfigInvalid.

        `meta`: that of its group or task. `again`: how often a task that fails is started again.
        """
        said = meta or {}
        exit_code, run_ms = _number(said, EXIT_CODE), _number(said, RUN_MS)
        # They shall go on: whatever ends one is a failure.
        must_go_on = job_type in ("service", "system")
        at = self._which(job_id, job_type)
        key = (at, run_ms, exit_code, must_go_on, again)
        found = self._manners.get(key)
        if found is None:
            found = self._manners[key] = self._made(
                at, run_ms, exit_code, again, must_go_on=must_go_on
            )
        return found

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
        again: Again | None,
        *,
        must_go_on: bool,
    ) -> Manner:
        # What nobody spoke of: services go on, batches are over at once.
        runs, fails = (laws.NEVER if must_go_on else laws.fixed(0)), 0
        if at >= 0:
            _, runs, fails = self._runs[at]
        if run_ms is not None:
            runs = laws.fixed(run_ms * 1_000_000)
        if exit_code is not None:
            fails = 0
        if must_go_on:
            fails = laws.ONE
        again = again or Again()
        return Manner(
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

    def outages_after_ns(self, seed: int, nodes: Int64s, nth: Int64s) -> Int64s:
        """How long each node is well before its `nth` outage (from 0); NEVER_NS: for ever. Shapes: (N,)."""
        return self._between.draw(_of_node(seed, OUTAGE, nodes, nth))

    def aways_ns(self, seed: int, nodes: Int64s, nth: Int64s) -> Int64s:
        """How long each node is away the `nth` time, before it boots. Shapes: (N,)."""
        return self._away.draw(_of_node(seed, AWAY, nodes, nth))

    def boots_ns(self, seed: int, nodes: Int64s, nth: Int64s) -> Int64s:
        """How long each node takes to boot. Shapes: (N,)."""
        return self._boot.draw(_of_node(seed, BOOT, nodes, nth))


def _of_node(seed: int, purpose: int, nodes: Int64s, nth: Int64s) -> laws.Hashes:
    return laws.hashes(seed, purpose, (nodes << 20) | nth)


# ---- reading ----


def read_profile(text: bytes, name: str = "profile") -> Profile:
    """Read YAML or JSON. Raises ConfigInvalid, which names the file, the place in it and what is wrong there."""
    try:
        found, _ = read_yaml(text.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise ConfigInvalid(f"{name}: it is no UTF-8 text") from err
    except StructuredFault as err:
        raise ConfigInvalid(f"{name}:{err.line}: {err.message}") from err
    try:
        profile = msgspec.convert({} if found is None else found, Profile)
        _check(profile)
        Habits(profile)
    except msgspec.ValidationError as err:
        what, _, where = str(err).partition(" - at ")
        place = where.strip("`").removeprefix("$").removeprefix(".") or "the whole file"
        raise ConfigInvalid(f"{name}: {place}: {what}") from err
    except ConfigInvalid as err:
        raise ConfigInvalid(f"{name}: {err}") from err
    return profile


def _check(profile: Profile) -> None:
    if not profile.nodes:
        raise ConfigInvalid("nodes: at least one class of nodes is needed")
    for at, one in enumerate(profile.nodes):
        if not 1 <= one.count <= NODES_MAX:
            raise ConfigInvalid(f"nodes[{at}].count: 1 to {NODES_MAX} are possible")
        if min(one.cpu_mhz, one.memory_mib, one.disk_mib) < 0:
            raise ConfigInvalid(f"nodes[{at}]: no amount may be negative")
    for at, run in enumerate(profile.runs):
        if run.job_type not in ("", "service", "batch", "system", "sysbatch"):
            raise ConfigInvalid(f"runs[{at}].type: {run.job_type!r} is no type of job")


def law_of(lasts: Lasts, place: str) -> Law:
    """Make a law of what a file says. Raises ConfigInvalid, which names the place."""
    spread = Spread(fixed=lasts) if isinstance(lasts, str) else lasts
    said = [
        name
        for name in ("fixed", "uniform", "exponential", "lognormal", "quantiles")
        if getattr(spread, name)
    ]
    if len(said) != 1:
        raise ConfigInvalid(
            f"{place}: one of fixed, uniform, exponential, lognormal and quantiles is needed"
        )
    if spread.fixed == FOREVER:
        return laws.NEVER
    at_most = _ns(spread.at_most, f"{place}.at_most") if spread.at_most else laws.DURATION_MAX_NS
    where = place if isinstance(lasts, str) else f"{place}.{said[0]}"
    if spread.fixed:
        return laws.fixed(min(_ns(spread.fixed, where), at_most))
    if spread.exponential:
        return laws.exponential(_ns(spread.exponential, where), at_most=at_most)
    if spread.uniform:
        first, last = (_ns(one, where) for one in spread.uniform)
        if first > last:
            raise ConfigInvalid(f"{where}: the first must not be longer than the last")
        return laws.quantiles([(Fraction(0), first), (Fraction(1), last)], at_most=at_most)
    if spread.lognormal:
        median, p99 = _ns(spread.lognormal, where), _ns(spread.p99, f"{place}.p99")
        if not 0 < median <= p99:
            raise ConfigInvalid(f"{place}: a lognormal law needs 0 < lognormal <= p99")
        return laws.lognormal(median, p99, at_most=at_most)
    return laws.quantiles(_points(spread.quantiles, where), at_most=at_most)


def _points(quantiles: dict[str, str], place: str) -> list[tuple[Fraction, int]]:
    points = []
    for key, text in quantiles.items():
        try:
            p = Fraction(key)
        except (ValueError, ZeroDivisionError) as err:
            raise ConfigInvalid(f"{place}: {key!r} is no probability like 0.99") from err
        if not 0 <= p <= 1:
            raise ConfigInvalid(f"{place}: {key!r} is no probability like 0.99")
        points.append((p, _ns(text, f"{place}[{key!r}]")))
    points.sort()
    if any(left[1] > right[1] for left, right in pairwise(points)):
        raise ConfigInvalid(f"{place}: durations must grow with their probability")
    return points


def _ns(text: str, place: str) -> int:
    try:
        found = nanoseconds(text)
    except Misread as err:
        raise ConfigInvalid(f"{place}: {err}") from err
    if not 0 <= found <= laws.DURATION_MAX_NS:
        raise ConfigInvalid(f"{place}: {text!r} is out of range")
    return found


def _share(value: float, place: str) -> int:
    if not 0 <= value <= 1:
        raise ConfigInvalid(f"{place}: a share from 0 to 1 is needed")
    return int(Fraction(value) * laws.ONE)


def _number(meta: Mapping[str, str], key: str) -> int | None:
    text = meta.get(key)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 13:
        raise ConfigInvalid(f"meta {key}: {text[:40]!r} is no whole number")
    return int(text)


# ---- nodes ----


def node_specs(profile: Profile, count: int = 0, *, prefix: str = "sim-") -> list[NodeSpec]:
    """Make the nodes of a profile, classes by turns; with `count`, so many, each class by its share.

    Ids are `<prefix><number>`, five digits at least.
    """
    total = sum(one.count for one in profile.nodes)
    wanted = count or total
    quota = np.asarray([one.count for one in profile.nodes], dtype=np.int64)
    given = np.zeros(len(quota), dtype=np.int64)
    out = []
    for number in range(wanted):
        # Whoever is furthest behind its share is next, the first of equals.
        which = int(np.argmax(quota * (number + 1) - given * total))
        given[which] += 1
        out.append(_spec(profile.nodes[which], f"{prefix}{number:05d}"))
    return out


def _spec(one: NodeClass, node_id: str) -> NodeSpec:
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
