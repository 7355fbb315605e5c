"""Jobs submitted together as one rollout: the body of `api.jobs.submit_together`.

Each element of `Jobs` is a body of `submit`, and is checked as one; the errors of all of them are reported together.
"""

from collections.abc import Callable

import msgspec

from schemas.jobs import ErrorDetail
from schemas.rollouts import MEMBERS_MAX, ROLLOUT_ORDERS
from shared.errors import CommandInvalid
from shared.jobspec.checks.error_list import ERRORS_MAX
from shared.jobspec.strict_json import JsonObject

NAME_CHARS_MAX = 64
_KEYS = frozenset({"SubmissionID", "Rollout", "Order", "Jobs"})


class Together(msgspec.Struct, frozen=True):
    """The part of such a body that is not of a single job."""

    name: str
    order: str
    jobs: tuple[JsonObject, ...]


def read_together(value: JsonObject) -> Together:
    """Read the body. Raises CommandInvalid."""
    if unknown := sorted(value.keys() - _KEYS):
        raise CommandInvalid("invalid", "unknown key", unknown[0])
    name = value.get("Rollout")
    if not isinstance(name, str):
        raise CommandInvalid("invalid", "must be a string", "Rollout")
    if fault := name_fault(name):
        raise CommandInvalid("invalid", fault, "Rollout")
    order = value.get("Order", ROLLOUT_ORDERS[0])
    if order not in ROLLOUT_ORDERS:
        text = f"must be one of {', '.join(ROLLOUT_ORDERS)}"
        raise CommandInvalid("invalid", text, "Order")
    jobs = value.get("Jobs")
    if not isinstance(jobs, list) or not all(isinstance(one, dict) for one in jobs):
        raise CommandInvalid("invalid", "expected a list of objects", "Jobs")
    if not 1 <= len(jobs) <= MEMBERS_MAX:
        text = f"{len(jobs)} jobs, a rollout has 1 to {MEMBERS_MAX}"
        raise CommandInvalid("invalid", text, "Jobs")
    return Together(name, str(order), tuple(jobs))


def name_fault(name: str) -> str:
    """Say what is wrong with the name of a rollout; empty: nothing."""
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        return f"a rollout's name has 1 to {NAME_CHARS_MAX} printable characters, without blanks around them"
    return ""


def read_each(
    jobs: tuple[JsonObject, ...], read: Callable[[JsonObject], None]
) -> tuple[ErrorDetail, ...]:
    """Read every job. Returns the errors of all, each with the place of its job."""
    found: list[ErrorDetail] = []
    for nth, one in enumerate(jobs):
        try:
            read(one)
        except CommandInvalid as fault:
            first = ErrorDetail(code=fault.code, message=fault.message, path=fault.path)
            errors = getattr(fault, "errors", ()) or (first,)
            found += [
                msgspec.structs.replace(error, path=f"Jobs[{nth}].{error.path}") for error in errors
            ]
    return tuple(found[:ERRORS_MAX])
