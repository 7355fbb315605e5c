"""Find what a query, a command or a request names: by id, unique prefix or name. All raise CommandInvalid."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.base import EvalKey, JobId, NodeId
from shared.core.columns import Rows
from shared.core.state.ids import ALLOC_SALT, EVAL_SALT, match_prefix, shown_ids
from shared.core.state.state import State
from shared.core.state.tables.allocations import TERMINAL
from shared.core.state.tables.deployments import Deployment
from shared.core.state.tables.evaluations import Evaluation
from shared.core.state.tables.jobs import Job
from shared.errors import CommandInvalid
from shared.query import deployments

#: Ids listed when a prefix is not unique.
AMBIGUOUS_SHOWN = 10
#: the end of job.group[index], the name of an allocation; without it all allocations of the group are meant.
_INDEX = re.compile(r"\[([0-9]{1,9})\]$")


def find_job(state: State, job_id: str) -> Job:
    """Find a job by its id."""
    job = state.jobs.by_id.get(JobId(job_id))
    if job is None:
        raise CommandInvalid("not_found", f"no job {job_id!r}")
    return job


def find_node(state: State, text: str) -> int:
    """Find a node's row by its id, a unique prefix of it, or its name."""
    fleet = state.fleet
    row = fleet.row_of.get(NodeId(text))
    if row is not None:
        return row
    found = sorted(one for one in fleet.row_of if text and one.startswith(text))
    found = found or [i for i in fleet.row_of if fleet.specs[fleet.row_of[i]].name == text]
    _require_unique(found, "node", text)
    return fleet.row_of[found[0]]


def find_deployment(state: State, text: str, job_id: str = "") -> Deployment:
    """Find a deployment by its id, a unique prefix of it, or as the newest of a job."""
    if not text and job_id:
        newest = state.deployments.latest_of(JobId(job_id))
        if newest is None:
            raise CommandInvalid("not_found", f"job {job_id!r} has no deployment")
        return newest
    if not text:
        raise CommandInvalid("invalid", "deployment id or id prefix required")
    try:
        found = deployments.matching_deployments(state, text)
    except ValueError as err:
        raise CommandInvalid("invalid", _no_prefix(text)) from err
    shown = deployments.deployment_ids(found[:AMBIGUOUS_SHOWN])
    _require_unique(shown, "deployment", text)
    return found[0]


def find_alloc(state: State, text: str) -> int:
    """Find an allocation's row by its id, a unique prefix of it, JOB.group[index], or JOB.group if it has one."""
    table = state.allocations
    live = table.live_rows()
    if not text:
        raise CommandInvalid("invalid", "allocation id or id prefix required")
    by_name = [rows for one in _meanings(text) if len(rows := _named_rows(state, *one))]
    if len(by_name) == 1 or (not by_name and "." in text):
        found = by_name[0] if by_name else live[:0]
        group = _INDEX.sub("", text) if len(found) > 1 else text
        shown = [f"{group}[{index}]" for index in table.index[found].tolist()]
    else:
        found = (
            np.concatenate(by_name)
            if by_name
            else live[match_ids(table.key[live], text, ALLOC_SALT)]
        )
        shown = shown_ids(table.key[found[:AMBIGUOUS_SHOWN]], ALLOC_SALT)
    _require_unique(shown, "allocation", text)
    return int(found[0])


def find_evaluation(state: State, text: str) -> Evaluation:
    """Find an evaluation by its id or a unique prefix of it."""
    if not text:
        raise CommandInvalid("invalid", "evaluation id or id prefix required")
    table = state.evaluations
    keys = np.fromiter(table.by_key, dtype=np.int64, count=len(table.by_key))
    found = keys[match_ids(keys, text, EVAL_SALT)]
    _require_unique(shown_ids(found[:AMBIGUOUS_SHOWN], EVAL_SALT), "evaluation", text)
    return table.by_key[EvalKey(int(found[0]))]


def match_ids(keys: NDArray[np.int64], prefix: str, salt: int) -> NDArray[np.intp]:
    """Which of these keys have a shown id that starts with `prefix`. Shapes: (N,), (M,)."""
    try:
        return match_prefix(keys, prefix, salt)
    except ValueError as err:
        raise CommandInvalid("invalid", _no_prefix(prefix)) from err


def _no_prefix(text: str) -> str:
    return f"{text!r} is not a valid id prefix: expected hexadecimal digits and dashes"


def _require_unique(found: Sequence[str], what: str, prefix: str) -> None:
    if not found:
        raise CommandInvalid("not_found", f"no {what} {prefix!r}")
    if len(found) > 1:
        some = ", ".join(found[:AMBIGUOUS_SHOWN])
        raise CommandInvalid("ambiguous", f"{prefix!r} is not unique among {what}s: {some}")


def _meanings(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Every job, group and index that a name may mean: both ids may contain dots, a group may end like an index."""
    with_index = _INDEX.search(text)
    for name, index in (
        (text, None),
        (text[: with_index.start()], with_index[1]) if with_index else ("", None),
    ):
        at = name.find(".")
        while at > 0:
            if name[at + 1 :]:
                yield name[:at], name[at + 1 :], index
            at = name.find(".", at + 1)


def _named_rows(state: State, job_id: str, group: str, index: str | None) -> Rows:
    """The newest allocation of each name, one that has not ended before all that have; by ascending index.

    Without an index only allocations that have not ended, if there are any.
    """
    table = state.allocations
    rows = table.rows_of(JobId(job_id))
    names = [table.groups.names[ref] == group for ref in table.group[rows].tolist()]
    rows = rows[np.array(names, dtype=bool)]
    is_over = TERMINAL[table.client[rows]]
    if index is not None:
        rows = rows[table.index[rows] == int(index)]
    elif not is_over.all():
        rows = rows[~is_over]
    order = np.lexsort((-table.key[rows], TERMINAL[table.client[rows]], table.index[rows]))
    newest: Rows = rows[order][np.unique(table.index[rows][order], return_index=True)[1]]
    return newest
