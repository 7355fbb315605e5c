"""Every fault of a decoded job that holds values of a wrong type, each with its path."""

import re
from typing import Any

import msgspec
import orjson

from schemas.jobs import ErrorDetail
from shared.jobspec.checks.error_list import ERRORS_MAX
from shared.jobspec.checks.job import job_errors
from shared.jobspec.nomad.job import JOB_DECODER
from shared.jobspec.strict_json import JsonObject, canonical_json

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_AT = re.compile(r"(.*?)(?: - at `(.*)`)?\Z", re.DOTALL)


def type_errors(value: JsonObject) -> tuple[ErrorDetail, ...]:
    """Find every fault of a job that holds values of a wrong type.

    The decoder names one; its member is taken out and the rest decoded again. What then remains is validated; a fault
    at or above a member taken out says nothing new.
    """
    found: list[ErrorDetail] = []
    rest: JsonObject = orjson.loads(canonical_json(value))
    while len(found) < ERRORS_MAX:
        try:
            job = JOB_DECODER.decode(canonical_json(rest))
        except msgspec.ValidationError as err:
            match = _AT.match(str(err))
            message, path = match.groups() if match else (str(err), "")
            path = (path or "$").removeprefix("$")
            found.append(ErrorDetail(code="invalid", message=message, path=f"Job{path}"))
            if not _remove_member(rest, path):
                break
        else:
            gone = {one.path.partition("[...]")[0].removesuffix("]") for one in found}
            found += [one for one in job_errors(job) if not _covered(one.path, gone)]
            break
    return tuple(found[:ERRORS_MAX])


def _covered(path: str, gone: set[str]) -> bool:
    return any(one.startswith(path) or path.startswith(one) for one in gone)


def _remove_member(value: JsonObject, path: str) -> bool:
    """Remove the innermost object member on a path like `.TaskGroups[0].Count`."""
    steps = _STEP.findall(path.partition("[...]")[0])
    while steps and not steps[-1][0]:
        steps.pop()
    if not steps:
        return False
    at: Any = value
    for name, number in steps[:-1]:
        at = at[name or int(number)]
    del at[steps[-1][0]]
    return True
