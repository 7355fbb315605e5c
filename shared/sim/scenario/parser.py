"""Scenario parser: YAML or JSON to a checked plan, or errors with file, path and line."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from schemas.jobs import JOB_TYPES
from schemas.nodes import NodeSpec
from schemas.policy import ALGORITHMS, CANDIDATES, SPREAD_TARGETS, Policy
from shared.core.resources.offers import invalid_pools
from shared.errors import ConfigInvalid
from shared.fleet.config_file import duration_ns, read_config, split_type_error
from shared.fleet.profile import (
    FleetProfile,
    NodeClass,
    NodeProfile,
    node_specs,
    parse_distribution,
)
from shared.numerals import is_digits
from shared.sim.scenario import traces
from shared.sim.scenario.schema import (
    DrawnNumber,
    JobTemplate,
    NodeSelection,
    NumberOrDraw,
    Scenario,
    ScenarioArrivals,
    ScenarioFault,
    ScenarioNodes,
)

#: The bounds of the plan applier: 2 EHz and 2 PiB.
CAPACITY_MAX = 2**31 - 1
NODES_MAX = 200_000
WORKERS_MAX = 64
#: Jobs of one entry in an hour.
JOBS_MAX = 10_000_000
#: Times of one fault.
FAULTS_MAX = 1_000_000
_HOUR_NS = 3_600_000_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class ScenarioPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A checked scenario, with derived values. Times are ns from its start."""

    scenario: Scenario
    folder: Path
    #: folder of traces and exports.
    data: Path
    #: policy of a cluster built by the scenario.
    policy: Policy
    #: changed policy fields of a recorded cluster.
    changes: dict[str, object]
    profile: FleetProfile
    duration_ns: int
    settle_ns: int
    #: (node, name of its class), in order.
    nodes: tuple[tuple[NodeSpec, str], ...]


def read_scenario(text: bytes, file: str, folder: Path, data: Path | None = None) -> ScenarioPlan:
    """Parse a scenario. Paths of job files are relative to `folder`, those of traces and exports to `data` or `folder`.

    Raises FileInvalid.
    """
    return read_config(text, file, Scenario, lambda one: _checked(one, folder, data or folder))


# ---- checks: what is wrong is raised as ConfigInvalid("path: message") ----


def _checked(scenario: Scenario, folder: Path, data: Path) -> ScenarioPlan:
    if not 1 <= scenario.schedulers <= WORKERS_MAX:
        raise ConfigInvalid(f"schedulers: must be from 1 to {WORKERS_MAX}")
    lasts_ns = duration_ns(scenario.duration, "duration")
    if not 0 < lasts_ns <= 400 * 86_400_000_000_000:
        raise ConfigInvalid("duration: must be more than 0 and at most 400 days")
    if not scenario.nodes and scenario.cluster is None:
        raise ConfigInvalid("nodes: at least one node class, or a cluster, is required")
    times = scenario.times
    for name in times.__struct_fields__:
        if not 0 <= getattr(times, name) <= 3_600_000_000_000:
            raise ConfigInvalid(f"times.{name}: must be from 0 to one hour, in ns")
    names = [one.name for one in (*scenario.before, *scenario.arrivals)]
    for kind, some in (("before", scenario.before), ("arrivals", scenario.arrivals)):
        for at, one in enumerate(some):
            _arrivals(one, f"{kind}[{at}]", names=names, folder=folder, data=data)
            _bounded(one, f"{kind}[{at}]", lasts_ns)
    for at, fault in enumerate(scenario.faults):
        _fault(fault, f"faults[{at}]", lasts_ns)
    # The profile's own classes are ignored: `nodes` lists the nodes.
    profile = FleetProfile(
        nodes=(NodeClass(),),
        starts=scenario.starts,
        runs=scenario.runs,
        stops=scenario.stops,
        failures=scenario.failures,
    )
    NodeProfile(profile)
    return ScenarioPlan(
        scenario=scenario,
        folder=folder,
        data=data,
        policy=policy_of(scenario.policy, Policy(), "policy"),
        changes=dict(scenario.policy),
        profile=profile,
        duration_ns=lasts_ns,
        settle_ns=duration_ns(scenario.settle, "settle"),
        nodes=tuple(_nodes(scenario, data)),
    )


def policy_of(change: Mapping[str, object], base: Policy, path: str) -> Policy:
    """Override fields of a policy. Raises ConfigInvalid."""
    value: dict[str, Any] = msgspec.to_builtins(base)
    for key, said in change.items():
        if key not in value:
            raise ConfigInvalid(f"{path}.{key}: unknown key")
        if isinstance(said, Mapping) and key == "preemption":
            unknown = sorted(set(said) - set(value[key]))
            if unknown:
                raise ConfigInvalid(f"{path}.{key}.{unknown[0]}: unknown key")
            value[key] = {**value[key], **said}
        else:
            value[key] = said
    try:
        found = msgspec.convert(value, Policy)
    except msgspec.ValidationError as err:
        where, message = split_type_error(str(err))
        raise ConfigInvalid(f"{path}.{where}: {message}") from err
    algorithms = {"algorithm": found.algorithm, **found.pool_algorithms}
    for key, word in algorithms.items():
        if word not in ALGORITHMS:
            where = key if key == "algorithm" else f"pool_algorithms.{key}"
            raise ConfigInvalid(
                f"{path}.{where}: must be binpack, spread or fragmentation, not {word!r}"
            )
    if found.candidates not in CANDIDATES:
        raise ConfigInvalid(f"{path}.candidates: must be all, two_choices or log2")
    if found.spread_targets not in SPREAD_TARGETS:
        raise ConfigInvalid(f"{path}.spread_targets: must be exact or scored")
    return found


def _arrivals(
    one: ScenarioArrivals, path: str, *, names: list[str], folder: Path, data: Path
) -> None:
    if not _NAME.fullmatch(one.name) or names.count(one.name) > 1:
        raise ConfigInvalid(f"{path}.name: must be unique, of letters, digits, _ and -")
    if (one.job is None) == (one.trace is None):
        raise ConfigInvalid(f"{path}: exactly one of job and trace is required")
    often = [name for name in ("every", "per_hour", "uniform") if getattr(one, name)]
    if len(often) > 1:
        raise ConfigInvalid(
            f"{path}.{often[1]}: at most one of every, per_hour and uniform is allowed"
        )
    for name in ("per_hour", "uniform", "most"):
        if getattr(one, name) < 0:
            raise ConfigInvalid(f"{path}.{name}: negative")
    if one.burst < 1:
        raise ConfigInvalid(f"{path}.burst: must be at least 1")
    duration_ns(one.at, f"{path}.at")
    if one.until:
        duration_ns(one.until, f"{path}.until")
    if one.every and duration_ns(one.every, f"{path}.every") == 0:
        raise ConfigInvalid(f"{path}.every: must be more than 0")
    if one.job is not None:
        _template(one.job, f"{path}.job", folder)
    if one.trace is not None:
        traces.check_trace(one.trace, f"{path}.trace", data)


def _bounded(one: ScenarioArrivals, path: str, lasts_ns: int) -> None:
    """Refuse an entry that submits more jobs than a run can hold, whatever says how often."""
    if one.job is None:
        return
    until = min(duration_ns(one.until, f"{path}.until"), lasts_ns) if one.until else lasts_ns
    span = max(0, min(until - duration_ns(one.at, f"{path}.at"), _HOUR_NS))
    name, times = "burst", 1.0
    if one.every:
        name, times = "every", span / duration_ns(one.every, f"{path}.every")
    elif one.per_hour:
        name, times = "per_hour", one.per_hour
    elif one.uniform:
        name, times = "uniform", one.uniform
    jobs = times * one.burst
    if (min(jobs, one.most) if one.most else jobs) > JOBS_MAX:
        # A list of `uniform` times is made before `most` is looked at.
        raise ConfigInvalid(
            f"{path}.{name}: {jobs:.0f} jobs in an hour, at most {JOBS_MAX} are allowed"
        )
    if one.uniform > JOBS_MAX:
        raise ConfigInvalid(f"{path}.uniform: at most {JOBS_MAX} jobs are allowed")


def _template(job: JobTemplate, path: str, folder: Path) -> None:
    if job.file and not (folder / job.file).is_file():
        raise ConfigInvalid(f"{path}.file: file {job.file!r} does not exist")
    if job.type not in JOB_TYPES:
        raise ConfigInvalid(f"{path}.type: unknown job type {job.type!r}")
    for name, least in (("priority", 1), ("count", 1), ("cpu_mhz", 1), ("memory_mib", 10)):
        _size(getattr(job, name), f"{path}.{name}", least)
    _size(job.disk_mib, f"{path}.disk_mib", 0)
    for name, ask in job.devices.items():
        if not 0 < ask.count <= 1_000:
            raise ConfigInvalid(
                f"{path}.devices.{name}.count: must be more than 0 and at most 1000"
            )
    if job.runs:
        parse_distribution(job.runs, f"{path}.runs")


def _size(size: NumberOrDraw, path: str, least: int) -> None:
    values = [size] if isinstance(size, int) else _values(size, path)
    if min(values) < least or max(values) > CAPACITY_MAX:
        raise ConfigInvalid(f"{path}: must be from {least} to {CAPACITY_MAX}")


def _values(draw: DrawnNumber, path: str) -> list[int]:
    if (draw.between is None) == (not draw.choice):
        raise ConfigInvalid(f"{path}: exactly one of between and choice is required")
    if draw.between is not None:
        if draw.between[0] > draw.between[1]:
            raise ConfigInvalid(f"{path}.between: the first value must not exceed the second")
        return list(draw.between)
    for key, weight in draw.choice.items():
        if not is_digits(key) or weight < 0:
            raise ConfigInvalid(f"{path}.choice: {key!r} is not a whole number")
    if not any(draw.choice.values()):
        raise ConfigInvalid(f"{path}.choice: at least one weight must be more than 0")
    return [int(key) for key in draw.choice]


def _fault(fault: ScenarioFault, path: str, lasts_ns: int) -> None:
    said = [
        name
        for name in ("lose", "cut_off", "drain", "reclaim", "stop", "policy")
        if getattr(fault, name)
    ]
    if len(said) != 1:
        raise ConfigInvalid(
            f"{path}: exactly one of lose, cut_off, drain, reclaim, stop and policy is required"
        )
    duration_ns(fault.at, f"{path}.at")
    for name in ("every", "back_after"):
        if getattr(fault, name):
            duration_ns(getattr(fault, name), f"{path}.{name}")
    duration_ns(fault.warning, f"{path}.warning")
    if fault.stop and fault.every:
        raise ConfigInvalid(f"{path}.every: not allowed with stop")
    if fault.times < 0 or (fault.times and not fault.every):
        raise ConfigInvalid(f"{path}.times: requires every, and must not be negative")
    every = duration_ns(fault.every, f"{path}.every") if fault.every else 0
    if every and min(fault.times or FAULTS_MAX + 1, lasts_ns // every) > FAULTS_MAX:
        raise ConfigInvalid(f"{path}.every: more than {FAULTS_MAX} times")
    if fault.policy:
        policy_of(fault.policy, Policy(), f"{path}.policy")
    whom = getattr(fault, said[0])
    if isinstance(whom, NodeSelection):
        if sum((bool(whom.nodes), bool(whom.count), bool(whom.share))) != 1:
            raise ConfigInvalid(
                f"{path}.{said[0]}: exactly one of nodes, count and share is required"
            )
        if not 0 <= whom.share <= 1 or whom.count < 0:
            raise ConfigInvalid(f"{path}.{said[0]}: share must be from 0 to 1, count not negative")


def _nodes(scenario: Scenario, data: Path) -> list[tuple[NodeSpec, str]]:
    names = [one.name for one in scenario.nodes]
    out: list[tuple[NodeSpec, str]] = []
    for at, one in enumerate(scenario.nodes):
        path = f"nodes[{at}]"
        if not one.name or names.count(one.name) > 1:
            raise ConfigInvalid(f"{path}.name: class names must be unique")
        if one.every < 1:
            raise ConfigInvalid(f"{path}.every: must be at least 1")
        specs = traces.read_openb_nodes(one, path, data) if one.openb else _alike(one, path)
        out += [(spec, one.name) for spec in specs]
        if len(out) > NODES_MAX:
            raise ConfigInvalid(f"{path}.count: the scenario has more than {NODES_MAX} nodes")
    return out


def _alike(one: ScenarioNodes, path: str) -> list[NodeSpec]:
    if not 1 <= one.count <= NODES_MAX:
        raise ConfigInvalid(f"{path}.count: must be from 1 to {NODES_MAX}, not {one.count}")
    for name, least in (("cpu_mhz", 1), ("memory_mib", 1), ("disk_mib", 0), ("core_mhz", 0)):
        value = getattr(one, name)
        if not least <= value <= CAPACITY_MAX:
            raise ConfigInvalid(
                f"{path}.{name}: must be from {least} to {CAPACITY_MAX}, not {value}"
            )
    problem = invalid_pools(one.devices)
    if problem:
        raise ConfigInvalid(f"{path}.devices: {problem}")
    plain = msgspec.structs.asdict(one)
    del plain["openb"], plain["every"]
    alike = NodeClass(**plain)
    return node_specs(FleetProfile(nodes=(alike,)), prefix=f"{one.name}-")
