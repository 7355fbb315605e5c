"""Reading a scenario: YAML or JSON to a `Plan`, or what is wrong with it, by file, path and line.

Decides what makes no sense: unknown keys, impossible nodes, arrivals that say nothing or two things, missing files.
Must not run anything. Next: `arrivals.py`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from schemas.nodes import NodeSpec
from schemas.policy import Policy
from shared.core.resources.offers import pools_fault
from shared.errors import CaravanError, ConfigInvalid
from shared.fleet.profile import Habits, NodeClass, Profile, law_of, node_specs
from shared.jobspec.durations import Misread, nanoseconds
from shared.jobspec.structured import Lines, StructuredFault, read_yaml
from shared.sim.scenario import traces
from shared.sim.scenario.form import Arrivals, Draw, Fault, Nodes, Scenario, Size, Template, Whom

#: As the applier bounds a fingerprint: 2 EHz and 2 PiB.
CAPACITY_MAX = 2**31 - 1
NODES_MAX = 200_000
WORKERS_MAX = 64
JOBS_MAX = 10_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


class ScenarioInvalid(CaravanError):
    """A scenario that cannot be played: where it is wrong, as far as that is known."""

    def __init__(self, message: str, *, path: str = "", file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.file = file
        self.line = line


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario that was checked, with what it needs worked out. Times are ns from its first moment."""

    scenario: Scenario
    folder: Path
    #: where traces and exports lie.
    data: Path
    #: of a cluster that the scenario builds itself.
    policy: Policy
    #: what the policy of a recorded cluster is changed in.
    changes: dict[str, object]
    profile: Profile
    duration_ns: int
    settle_ns: int
    #: (node, name of its class), in order.
    nodes: tuple[tuple[NodeSpec, str], ...]


def read_scenario(text: bytes, file: str, folder: Path, data: Path | None = None) -> Plan:
    """Read a file's bytes. Paths of job files begin in `folder`, those of traces and exports in `data`, else there too.

    Raises ScenarioInvalid.
    """
    try:
        found, lines = read_yaml(text.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise ScenarioInvalid("it is no UTF-8 text", file=file) from err
    except StructuredFault as err:
        raise ScenarioInvalid(err.message, file=file, line=err.line) from err
    if not isinstance(found, dict):
        raise ScenarioInvalid("a scenario is a mapping of keys, this is none", file=file, line=1)
    try:
        scenario = msgspec.convert(found, Scenario)
    except msgspec.ValidationError as err:
        message, path = _place(str(err))
        raise ScenarioInvalid(message, path=path, file=file, line=line_of(lines, path)) from err
    try:
        return _checked(scenario, folder, data or folder)
    except ConfigInvalid as err:
        path, message = _split(str(err))
        raise ScenarioInvalid(message, path=path, file=file, line=line_of(lines, path)) from err
    except traces.TraceInvalid as err:
        # What is wrong in a trace stands there, that there is none stands here.
        line = err.line if err.file else line_of(lines, err.path)
        raise ScenarioInvalid(err.message, path=err.path, file=err.file or file, line=line) from err


def _place(text: str) -> tuple[str, str]:
    """Part what msgspec says into a message and a path; an unknown key is the place itself."""
    message, _, where = text.partition(" - at ")
    path = where.strip("`").removeprefix("$").removeprefix(".")
    unknown = _UNKNOWN.search(message)
    if unknown is not None:
        path = f"{path}.{unknown[1]}" if path else unknown[1]
        message = "unknown key"
    return message, path


def _split(text: str) -> tuple[str, str]:
    path, mark, message = text.partition(": ")
    return (path, message) if mark and " " not in path else ("", text)


def line_of(lines: Lines, path: str) -> int:
    """Find the line of a path, or of the nearest one around it; 0: nobody knows."""
    steps = tuple(
        int(number) if number else name for number, name in _STEP.findall(path) if number or name
    )
    while steps and steps not in lines:
        steps = steps[:-1]
    return lines.get(steps, 0)


# ---- checks: what is wrong is raised as ConfigInvalid("path: message") ----


def _checked(scenario: Scenario, folder: Path, data: Path) -> Plan:
    if not 1 <= scenario.schedulers <= WORKERS_MAX:
        raise ConfigInvalid(f"schedulers: 1 to {WORKERS_MAX} are possible")
    duration_ns = duration(scenario.duration, "duration")
    if not 0 < duration_ns <= 400 * 86_400_000_000_000:
        raise ConfigInvalid("duration: more than nothing, and no more than 400 days")
    if not scenario.nodes and scenario.cluster is None:
        raise ConfigInvalid("nodes: at least one class of nodes is needed, or a cluster")
    times = scenario.times
    for name in times.__struct_fields__:
        if not 0 <= getattr(times, name) <= 3_600_000_000_000:
            raise ConfigInvalid(f"times.{name}: from 0 to an hour, in ns")
    names = [one.name for one in (*scenario.before, *scenario.arrivals)]
    for at, one in enumerate(scenario.before):
        _arrivals(one, f"before[{at}]", names=names, folder=folder, data=data)
    for at, one in enumerate(scenario.arrivals):
        _arrivals(one, f"arrivals[{at}]", names=names, folder=folder, data=data)
    for at, fault in enumerate(scenario.faults):
        _fault(fault, f"faults[{at}]")
    # Not the file's own classes: what nodes there are stands in `nodes`.
    profile = Profile(
        nodes=(NodeClass(),),
        starts=scenario.starts,
        runs=scenario.runs,
        stops=scenario.stops,
        failures=scenario.failures,
    )
    Habits(profile)
    return Plan(
        scenario=scenario,
        folder=folder,
        data=data,
        policy=policy_of(scenario.policy, Policy(), "policy"),
        changes=dict(scenario.policy),
        profile=profile,
        duration_ns=duration_ns,
        settle_ns=duration(scenario.settle, "settle"),
        nodes=tuple(_nodes(scenario, data)),
    )


def duration(text: str, path: str) -> int:
    """Read a duration in ns. Raises ConfigInvalid."""
    try:
        found = nanoseconds(text)
    except Misread as err:
        raise ConfigInvalid(f"{path}: {err}") from err
    if found < 0:
        raise ConfigInvalid(f"{path}: {text!r} is negative")
    return found


def policy_of(change: Mapping[str, object], base: Policy, path: str) -> Policy:
    """Lay fields over a policy. Raises ConfigInvalid."""
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
        message, where = _place(str(err))
        raise ConfigInvalid(f"{path}.{where}: {message}") from err
    algorithms = {"algorithm": found.algorithm, **found.pool_algorithms}
    for key, word in algorithms.items():
        if word not in {"binpack", "spread", "fragmentation"}:
            where = key if key == "algorithm" else f"pool_algorithms.{key}"
            raise ConfigInvalid(f"{path}.{where}: binpack, spread or fragmentation, was {word!r}")
    if found.candidates not in {"all", "two_choices", "log2"}:
        raise ConfigInvalid(f"{path}.candidates: all, two_choices or log2")
    return found


def _arrivals(one: Arrivals, path: str, *, names: list[str], folder: Path, data: Path) -> None:
    if not _NAME.fullmatch(one.name) or names.count(one.name) > 1:
        raise ConfigInvalid(f"{path}.name: each needs a name of its own: letters, digits, _ and -")
    if (one.job is None) == (one.trace is None):
        raise ConfigInvalid(f"{path}: one of job and trace is needed")
    often = [name for name in ("every", "per_hour", "uniform") if getattr(one, name)]
    if len(often) > 1:
        raise ConfigInvalid(f"{path}.{often[1]}: only one of every, per_hour and uniform")
    for name in ("per_hour", "uniform", "most"):
        if getattr(one, name) < 0:
            raise ConfigInvalid(f"{path}.{name}: negative")
    if one.burst < 1 or one.uniform > JOBS_MAX or one.per_hour > JOBS_MAX:
        raise ConfigInvalid(f"{path}: so many jobs make no sense")
    duration(one.at, f"{path}.at")
    if one.until:
        duration(one.until, f"{path}.until")
    if one.every and duration(one.every, f"{path}.every") == 0:
        raise ConfigInvalid(f"{path}.every: more than nothing")
    if one.job is not None:
        _template(one.job, f"{path}.job", folder)
    if one.trace is not None:
        traces.check(one.trace, f"{path}.trace", data)


def _template(job: Template, path: str, folder: Path) -> None:
    if job.file and not (folder / job.file).is_file():
        raise ConfigInvalid(f"{path}.file: there is no file {job.file!r}")
    if job.type not in {"batch", "service", "system", "sysbatch"}:
        raise ConfigInvalid(f"{path}.type: {job.type!r} is no type of job")
    for name, least in (("priority", 1), ("count", 1), ("cpu_mhz", 1), ("memory_mib", 10)):
        _size(getattr(job, name), f"{path}.{name}", least)
    _size(job.disk_mib, f"{path}.disk_mib", 0)
    for name, ask in job.devices.items():
        if not 0 < ask.count <= 1_000:
            raise ConfigInvalid(f"{path}.devices.{name}.count: more than nothing, at most 1000")
    if job.runs:
        law_of(job.runs, f"{path}.runs")


def _size(size: Size, path: str, least: int) -> None:
    values = [size] if isinstance(size, int) else _values(size, path)
    if min(values) < least or max(values) > CAPACITY_MAX:
        raise ConfigInvalid(f"{path}: from {least} to {CAPACITY_MAX}")


def _values(draw: Draw, path: str) -> list[int]:
    if (draw.between is None) == (not draw.choice):
        raise ConfigInvalid(f"{path}: one of between and choice")
    if draw.between is not None:
        if draw.between[0] > draw.between[1]:
            raise ConfigInvalid(f"{path}.between: the first must not be larger than the last")
        return list(draw.between)
    for key, weight in draw.choice.items():
        if not key.isdecimal() or weight < 0:
            raise ConfigInvalid(f"{path}.choice: a whole number with a weight, {key!r} is none")
    if not any(draw.choice.values()):
        raise ConfigInvalid(f"{path}.choice: no weight is more than 0")
    return [int(key) for key in draw.choice]


def _fault(fault: Fault, path: str) -> None:
    said = [
        name
        for name in ("lose", "cut_off", "drain", "reclaim", "stop", "policy")
        if getattr(fault, name)
    ]
    if len(said) != 1:
        raise ConfigInvalid(
            f"{path}: one of lose, cut_off, drain, reclaim, stop and policy is needed"
        )
    duration(fault.at, f"{path}.at")
    for name in ("every", "back_after"):
        if getattr(fault, name):
            duration(getattr(fault, name), f"{path}.{name}")
    duration(fault.warning, f"{path}.warning")
    if fault.stop and fault.every:
        raise ConfigInvalid(f"{path}.every: jobs are stopped once")
    if fault.times < 0 or (fault.times and not fault.every):
        raise ConfigInvalid(f"{path}.times: needs every, and is not negative")
    if fault.policy:
        policy_of(fault.policy, Policy(), f"{path}.policy")
    whom = getattr(fault, said[0])
    if isinstance(whom, Whom):
        if sum((bool(whom.nodes), bool(whom.count), bool(whom.share))) != 1:
            raise ConfigInvalid(f"{path}.{said[0]}: one of nodes, count and share is needed")
        if not 0 <= whom.share <= 1 or whom.count < 0:
            raise ConfigInvalid(f"{path}.{said[0]}: a share is from 0 to 1, a count not negative")


def _nodes(scenario: Scenario, data: Path) -> list[tuple[NodeSpec, str]]:
    names = [one.name for one in scenario.nodes]
    out: list[tuple[NodeSpec, str]] = []
    for at, one in enumerate(scenario.nodes):
        path = f"nodes[{at}]"
        if not one.name or names.count(one.name) > 1:
            raise ConfigInvalid(f"{path}.name: each class needs a name of its own")
        if one.every < 1:
            raise ConfigInvalid(f"{path}.every: at least 1")
        specs = traces.openb_nodes(one, path, data) if one.openb else _alike(one, path)
        out += [(spec, one.name) for spec in specs]
        if len(out) > NODES_MAX:
            raise ConfigInvalid(f"{path}.count: at most {NODES_MAX} nodes in all")
    return out


def _alike(one: Nodes, path: str) -> list[NodeSpec]:
    if not 1 <= one.count <= NODES_MAX:
        raise ConfigInvalid(f"{path}.count: 1 to {NODES_MAX} are possible, was {one.count}")
    for name, least in (("cpu_mhz", 1), ("memory_mib", 1), ("disk_mib", 0), ("core_mhz", 0)):
        value = getattr(one, name)
        if not least <= value <= CAPACITY_MAX:
            raise ConfigInvalid(f"{path}.{name}: {least} to {CAPACITY_MAX}, was {value}")
    problem = pools_fault(one.devices)
    if problem:
        raise ConfigInvalid(f"{path}.devices: {problem}")
    plain = msgspec.structs.asdict(one)
    del plain["openb"], plain["every"]
    alike = NodeClass(**plain)
    return node_specs(Profile(nodes=(alike,)), prefix=f"{one.name}-")
