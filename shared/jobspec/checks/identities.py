"""Validation of identity blocks, and of those of tasks. Source: Nomad workload_id.go, Validate and Warnings.

Beyond Nomad: names are unique, `Identity` is the default one, tokens have files of their own, and a ttl is at least a
second, as `exp` counts them. Next: `service_identities.py`.
"""

import re

import msgspec

from schemas.base import SECOND_NS
from shared.jobspec.checks.error_list import DURATION_NS_MAX, ErrorList
from shared.jobspec.checks.templates import ESCAPES, is_outside, place_in_allocation
from shared.jobspec.extra_claims import (
    CLAIMS_BYTES_MAX,
    CLAIMS_MAX,
    REFERENCES_MAX,
    claim_name_error,
    claim_text_error,
    count_references,
)
from shared.jobspec.identities import (
    DeclaredIdentity,
    extra_claims_of,
    identity_file,
    service_identities,
    task_identities,
)
from shared.jobspec.nomad.job import JobSpec, TaskSpec
from shared.protocol.identity_names import DEFAULT_IDENTITY
from shared.signal_names import signal_error

CHANGE_MODES = ("noop", "signal", "restart")
IDENTITIES_MAX = 64
#: Of one identity: its token is a variable of the task.
AUDIENCES_MAX = 32
AUDIENCE_CHARS_MAX = 1_024
#: As JSON: an agent takes tokens of up to 64 KiB, in which four bytes hold three.
AUDIENCES_BYTES_MAX = 40 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def check_identities(faults: ErrorList, task: TaskSpec, path: str) -> None:
    """Check the identities of a task."""
    found = task_identities(task)
    if len(found) > IDENTITIES_MAX:
        text = f"{len(found)} identities, at most {IDENTITIES_MAX} are allowed"
        faults.add(f"{path}.Identities", text)
        return
    names: set[str] = set()
    taken = {place_in_allocation(one.destination) for one in task.templates}
    for one in found:
        here = f"{path}.{one.path}"
        if one.path == "Identity" and one.name != DEFAULT_IDENTITY:
            faults.add(f"{here}.Name", "is the default identity's; others stand in Identities")
        elif text := identity_name_error(one.name):
            faults.add(f"{here}.Name", text)
        elif one.name in names:
            faults.add(f"{here}.Name", f"another identity of the task is named {one.name!r}")
        names.add(one.name)
        if one.block.service_name:
            text = "is for identities of services: declare the identity in the block of the service"
            faults.add(f"{here}.ServiceName", text)
        check_identity(faults, one, here, taken)


def identity_name_error(name: str) -> str:
    """Say what is wrong with the name of an identity; empty: nothing."""
    if _NAME.fullmatch(name):
        return ""
    return f"must be 1 to 128 letters, digits, - and _, was {name[:140]!r}"


def check_identity(faults: ErrorList, one: DeclaredIdentity, path: str, taken: set[str]) -> None:
    """Check a block but for its name. `taken`: files that are written for its task; its own is added."""
    _audience(faults, one, path)
    _change(faults, one, path)
    _file(faults, one, path, taken)
    if one.block.extra_claims:
        _claims(faults, one, f"{path}.ExtraClaims")


def identity_warnings(job: JobSpec) -> list[str]:
    """Say what is allowed and unsafe in the identities of a job."""
    found: list[str] = []
    for group in job.groups:
        for task in group.tasks:
            for one in task_identities(task) if task.identity or task.identities else ():
                about = f"identity {one.name!r} of task {task.name!r}"
                found += [f"{about} {text}" for text in _unsafe(one)]
        for _, one in service_identities(job.name or job.id, group):
            if one.block.env or one.block.file:
                about = f"identity {one.name!r} of service {one.service!r}"
                found += [f"{about} {text}" for text in _unsafe(one)]
    return found


def _unsafe(one: DeclaredIdentity) -> list[str]:
    if one.name == DEFAULT_IDENTITY:
        return []
    found: list[str] = []
    if not one.block.audience:
        found.append("has no aud: every service accepts its token")
    elif len(one.block.audience) > 1:
        found.append("has several aud: each of them can use its token at the others")
    if not one.block.ttl_ns:
        found.append("has no ttl: its token does not expire")
    elif one.block.env and one.block.change_mode != "restart":
        found.append("has env without change_mode restart: a running task keeps an expired token")
    return found


def _audience(faults: ErrorList, one: DeclaredIdentity, path: str) -> None:
    found = one.block.audience
    if "" in found:
        faults.add(f"{path}.Audience", "an audience must not be empty")
    if len(found) > AUDIENCES_MAX or any(len(text) > AUDIENCE_CHARS_MAX for text in found):
        text = f"at most {AUDIENCES_MAX} of {AUDIENCE_CHARS_MAX} characters are allowed"
        faults.add(f"{path}.Audience", text)
    elif (size := len(msgspec.json.encode(found))) > AUDIENCES_BYTES_MAX:
        text = (
            f"all together have {size} bytes in a token, at most {AUDIENCES_BYTES_MAX} are allowed"
        )
        faults.add(f"{path}.Audience", text)


def _change(faults: ErrorList, one: DeclaredIdentity, path: str) -> None:
    mode, signal = one.block.change_mode or "noop", one.block.change_signal
    if mode not in CHANGE_MODES:
        text = f"must be one of {', '.join(CHANGE_MODES)}, was {mode[:80]!r}"
        faults.add(f"{path}.ChangeMode", text)
    elif mode == "signal" and not signal:
        faults.add(f"{path}.ChangeSignal", "must be set for change_mode signal")
    elif mode != "signal" and signal:
        faults.add(f"{path}.ChangeSignal", "is for change_mode signal alone")
    if signal and (text := signal_error(signal)):
        faults.add(f"{path}.ChangeSignal", text)
    if one.name == DEFAULT_IDENTITY and one.block.ttl_ns:
        faults.add(f"{path}.TTL", "the default identity has no ttl, as in Nomad; give it a name")
    elif one.block.ttl_ns:
        faults.within_span(path, ".TTL", one.block.ttl_ns, (SECOND_NS, DURATION_NS_MAX))


def _claims(faults: ErrorList, one: DeclaredIdentity, path: str) -> None:
    found = extra_claims_of(one.block)
    if not found:
        faults.add(path, "must be a map of texts")
        return
    if len(found) > CLAIMS_MAX:
        faults.add(path, f"{len(found)} claims, at most {CLAIMS_MAX} are allowed")
        return
    if (size := len(msgspec.json.encode(found))) > CLAIMS_BYTES_MAX:
        faults.add(path, f"has {size} bytes as JSON, at most {CLAIMS_BYTES_MAX} are allowed")
    if (count := sum(map(count_references, found.values()))) > REFERENCES_MAX:
        faults.add(path, f"{count} references, at most {REFERENCES_MAX} are allowed")
    for name, text in found.items():
        if fault := claim_name_error(name):
            faults.add(path, fault)
        elif fault := claim_text_error(text):
            faults.add(f"{path}.{name}", fault)


def _file(faults: ErrorList, one: DeclaredIdentity, path: str, taken: set[str]) -> None:
    if one.block.filepath and not one.block.file:
        faults.add(f"{path}.Filepath", "needs file = true")
    place = identity_file(one.name, one.block)
    if not place:
        return
    if is_outside(place):
        faults.add(f"{path}.Filepath", ESCAPES)
    elif place_in_allocation(place) in taken:
        text = f"another identity or template of the task writes {place[:80]!r}, too"
        faults.add(f"{path}.Filepath", text)
    taken.add(place_in_allocation(place))
