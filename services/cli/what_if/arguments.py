"""The arguments of `caravan what-if`: policy fields, node profiles, `3xnode-1`, `node-1=10m`, `+10m`."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from schemas.base import JobId, NodeId
from schemas.jobs import RegisterJob
from schemas.nodes import NodeSpec
from schemas.operator import PolicyValue
from services.cli.job.files import read_job_file
from services.cli.operator.scheduler import parse_policy_changes
from services.cli.runtime.log_position import parse_log_position
from services.cli.runtime.output import CliError
from shared.core.state.state import State
from shared.display.formats import format_utc
from shared.durations import parse_duration
from shared.fleet.profile import FleetProfile, node_specs, read_profile
from shared.jobspec.files.yaml_toml import read_yaml
from shared.jobspec.hcl.errors import StructuredTextError
from shared.jobspec.submission import read_submission, to_command
from shared.numerals import is_digits
from shared.query.lookup import find_node
from shared.whatif import changes, pace
from shared.whatif.fork import RecordedLog
from shared.whatif.pace import PaceValue

DURATIONS = ("recorded", "resampled")


class WhatIfArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line as given."""

    begin: str = ""
    until: str = ""
    policy: Sequence[str] = ()
    add_nodes: Sequence[str] = ()
    remove_nodes: Sequence[str] = ()
    drain: Sequence[str] = ()
    priority: Sequence[str] = ()
    update: Sequence[str] = ()
    deployment: Sequence[str] = ()
    job: Sequence[str] = ()
    workers: int = 0
    durations: str = DURATIONS[0]
    directory: str = ""


def check_arguments(words: WhatIfArguments) -> None:
    """Check what does not depend on the log. Raises CliError."""
    parse_log_position(words.begin, "--from")
    if not words.until.startswith("+"):
        parse_log_position(words.until, "--until")
    if words.durations not in DURATIONS:
        raise CliError(
            "usage", f"--durations must be {' or '.join(DURATIONS)}, not {words.durations!r}"
        )
    if not 0 <= words.workers <= 256:
        raise CliError(
            "usage", f"--workers must be 1 to 256, or 0 for as recorded, not {words.workers}"
        )
    if words.directory and Path(words.directory).exists():
        raise CliError("conflict", "exists; not overwritten", file=words.directory)


def end_of_run(recorded: RecordedLog, words: WhatIfArguments) -> int:
    """When the runs end; without --until at the end of the log."""
    begin_ns, end_ns = recorded.fork_timeline.begin_ns, recorded.timeline.t_ns
    if not words.until:
        return end_ns
    if words.until.startswith("+"):
        try:
            until_ns = begin_ns + parse_duration(words.until[1:])
        except ValueError as err:
            raise CliError("usage", f"--until {words.until}: {err}") from err
    else:
        seq, until_ns = parse_log_position(words.until, "--until")
        if seq:
            until_ns = recorded.time_of(seq)
            if not until_ns:
                end = recorded.timeline.replica.seq
                text = f"--until {seq}: the log ends at {end}; use a time or +DURATION beyond it"
                raise CliError("not_found", text)
    if until_ns <= begin_ns:
        raise CliError(
            "usage",
            f"--until {words.until} is not after --from ({format_utc(begin_ns)})",
        )
    return until_ns


def requested_changes(state: State, words: WhatIfArguments) -> changes.RequestedChanges:
    """Resolve the requested changes against the state at the fork. Raises CliError."""
    return changes.RequestedChanges(
        policy=_policy(words.policy),
        add_nodes=tuple(spec for one in words.add_nodes for spec in _added_nodes(state, one)),
        remove_nodes=tuple(_node(state, one) for one in _split_commas(words.remove_nodes)),
        drain=dict(_drain_deadline(state, one) for one in _split_commas(words.drain)),
        priorities=dict(_priority(one) for one in _split_commas(words.priority)),
        updates=_updates(words.update),
        verbs=tuple(_deployment_verb(state, one) for one in words.deployment),
        jobs=tuple(_job(state, one) for one in words.job),
    )


def _job(state: State, file: str) -> RegisterJob:
    """Read a job file as what registers its job. Raises CliError, CommandInvalid."""
    loaded = read_job_file(file, var=(), var_file=())
    if loaded.errors:
        first = loaded.errors[0]
        raise CliError(first.code, first.message, path=first.path, file=file, line=first.line)
    found = read_submission(loaded.body, "submit", state.policy.policy.remote_drivers)
    command = to_command(found, f"what-if-job-{found.job_id}")
    assert isinstance(command, RegisterJob)
    return command


def _split_commas(given: Sequence[str]) -> list[str]:
    return [part for one in given for part in one.split(",") if part]


def _policy(given: Sequence[str]) -> dict[str, PolicyValue]:
    found: dict[str, PolicyValue] = {}
    for one in given:
        if "=" in one:
            found |= parse_policy_changes([one])
            continue
        try:
            whole, _ = read_yaml(Path(one).read_text(encoding="utf-8"))
            found |= msgspec.convert(whole, dict[str, PolicyValue])
        except StructuredTextError as err:
            raise CliError("invalid", err.message, file=one, line=err.line) from err
        except (UnicodeDecodeError, msgspec.ValidationError) as err:
            raise CliError("invalid", f"not a file of policy fields: {err}", file=one) from err
    return found


def _added_nodes(state: State, text: str) -> Sequence[NodeSpec]:
    """Parse `3xnode-1`, or read a profile file."""
    count, sign, name = text.replace("\N{MULTIPLICATION SIGN}", "x").partition("x")
    if sign and is_digits(count) and name:
        if not 1 <= int(count) <= 100_000:
            raise CliError("usage", f"--add-nodes {text}: must be 1 to 100000 nodes")
        return changes.clone_nodes(state, _node(state, name), int(count))
    profile: FleetProfile = read_profile(Path(text).read_bytes(), text)
    return node_specs(profile, prefix="what-if-")


def _node(state: State, text: str) -> NodeId:
    """Find a node by its id, a unique prefix of it, or its name. Raises CommandInvalid."""
    return state.fleet.ids[find_node(state, text)]


def _drain_deadline(state: State, text: str) -> tuple[NodeId, int]:
    """Parse `node-1` (at once) or `node-1=10m`."""
    name, sign, lasts = text.partition("=")
    try:
        deadline_ns = state.t_ns + (parse_duration(lasts) if sign else 0)
    except ValueError as err:
        raise CliError("usage", f"--drain {text}: {err}") from err
    return _node(state, name), deadline_ns


def _priority(text: str) -> tuple[JobId, int]:
    name, sign, number = text.rpartition("=")
    if not sign or not name or not is_digits(number):
        raise CliError("usage", f"--priority {text!r} is not JOB=NUMBER")
    return JobId(name), int(number)


def _updates(given: Sequence[str]) -> dict[JobId, dict[str, PaceValue]]:
    found: dict[JobId, dict[str, PaceValue]] = {}
    for one in given:
        place, sign, value = one.partition("=")
        job_id, dot, field = place.rpartition(".")
        if not (sign and dot and job_id and value):
            raise CliError("usage", f"--update {one!r} is not JOB.FIELD=VALUE")
        if field not in pace.FIELDS:
            known = ", ".join(pace.FIELDS)
            text = f"--update {one}: unknown field {field!r}; expected one of {known}"
            raise CliError("usage", text)
        found.setdefault(JobId(job_id), {})[field] = _pace_value(one, field, value)
    return found


def _pace_value(text: str, field: str, value: str) -> PaceValue:
    kind = pace.FIELDS[field][1]
    if kind is bool and value in {"true", "false"}:
        return value == "true"
    if kind is int and is_digits(value):
        return int(value)
    if kind is float:
        try:
            return parse_duration(value)
        except ValueError as err:
            raise CliError("usage", f"--update {text}: {err}") from err
    if kind is str:
        return value
    wanted = "true or false" if kind is bool else "a whole number"
    raise CliError("usage", f"--update {text}: must be {wanted}")


def _deployment_verb(state: State, text: str) -> changes.DeploymentVerb:
    """Parse `shop=promote` (at the fork) or `shop=promote@+30s`."""
    name, sign, rest = text.rpartition("=")
    verb, at, after = rest.partition("@")
    if not sign or not name or verb not in changes.VERBS or (at and not after.startswith("+")):
        verbs = ", ".join(changes.VERBS)
        raise CliError("usage", f"--deployment {text!r} is not JOB=VERB[@+D]; verbs: {verbs}")
    try:
        after_ns = parse_duration(after[1:]) if at else 0
    except ValueError as err:
        raise CliError("usage", f"--deployment {text}: {err}") from err
    return changes.DeploymentVerb(job_id=JobId(name), verb=verb, t_ns=state.t_ns + after_ns)


def describe_changes(words: WhatIfArguments) -> tuple[str, ...]:
    """The requested changes in words."""
    texts = [
        *(f"policy {one}" for one in words.policy),
        *(f"more nodes: {one}" for one in words.add_nodes),
        *(f"without node {one}" for one in _split_commas(words.remove_nodes)),
        *(f"drained: {one}" for one in _split_commas(words.drain)),
        *(f"priority {one}" for one in _split_commas(words.priority)),
        *(f"update {one}" for one in words.update),
        *(f"deployment {one}" for one in words.deployment),
        *(f"job file {one}" for one in words.job),
    ]
    if words.workers:
        texts.append(f"{words.workers} scheduler workers")
    return tuple(texts)
