"""What each `query.<noun>` takes and promises: parameters, status words, order and whether it has pages.

The view refuses what is in no row, and docs/queries.md is written from here.
"""

from typing import NamedTuple

import msgspec

from schemas.bounds import ERROR_CODES, QUERY_LIMIT_MAX, WORDS

_JOB = WORDS["JobLine", "status"]
_NODE = WORDS["NodeSummary", "status"]
_EVALUATION = WORDS["EvalSummary", "status"]
_CLIENT = WORDS["AllocSummary", "client_status"]
_PAGES = ("limit", "offset")
#: Parameters that every noun takes.
COMMON = ("min_seq",)


class QueryNoun(NamedTuple):
    """One noun: the parameters that it takes beside `min_seq`, by name, with their meaning."""

    parameters: dict[str, str] = {}
    #: what `status` may be; empty: there is no such filter.
    statuses: tuple[str, ...] = ()
    #: what is listed, and in which order; empty: nothing is.
    order: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters, in the order of the page."""
        filters = ("status",) if self.statuses else ()
        return (*self.parameters, *filters, *(_PAGES if self.order else ()), *COMMON)


_ONE_JOB = {"id": "the job's id", "job_id": "the same, where `id` is absent"}
NOUNS: dict[str, QueryNoun] = {
    "jobs": QueryNoun(
        parameters={"id": "prefix of the ids", "job_id": "children of this job"},
        statuses=_JOB,
        order="`jobs`, by id; children of one job newest first",
    ),
    "job": QueryNoun(
        parameters=_ONE_JOB,
        order="`allocations`: those that have not ended first, then by group, index, newest first",
    ),
    "job_version": QueryNoun(parameters={**_ONE_JOB, "version": "-1: the newest"}),
    "job_versions": QueryNoun(parameters=_ONE_JOB, order="`versions`, newest first"),
    "plan": QueryNoun(
        parameters={
            "Job": "the job, as in `api.jobs.submit`",
            "accept_unbuilt": "as in `api.jobs.submit`",
            "accept_unknown": "as in `api.jobs.submit`",
        }
    ),
    "why_not": QueryNoun(
        parameters={**_ONE_JOB, "node_id": "one node alone", "group": "empty: the first group"}
    ),
    "policy": QueryNoun(),
    "nodes": QueryNoun(
        parameters={"id": "prefix of the ids"}, statuses=_NODE, order="`nodes`, by id"
    ),
    "node": QueryNoun(
        parameters={
            "id": "the node's id, a unique prefix of it, or its name",
            "node_id": "the same, where `id` is absent",
        },
        order="`allocations`: as in `query.job`",
    ),
    "allocs": QueryNoun(
        parameters={
            "id": "prefix of the shown ids",
            "job_id": "of this job",
            "node_id": "on this node",
        },
        statuses=_CLIENT,
        order="`allocations`, newest first",
    ),
    "alloc": QueryNoun(
        parameters={"id": "the shown id, a unique prefix of it, or `job.group[index]`"}
    ),
    "evals": QueryNoun(
        parameters={"job_id": "of this job"},
        statuses=_EVALUATION,
        order="`evaluations`, newest first",
    ),
    "eval": QueryNoun(parameters={"id": "the shown id, or a unique prefix of it"}),
    "deployments": QueryNoun(
        parameters={"job_id": "of this job"},
        statuses=WORDS["DeploymentLine", "status"],
        order="`deployments`, newest first",
    ),
    "deployment": QueryNoun(
        parameters={
            "id": "the shown id, or a unique prefix of it",
            "job_id": "the newest of this job, where `id` is absent",
        },
        order="`allocations`: as in `query.job`",
    ),
    "rollouts": QueryNoun(
        parameters={"job_id": "with this job"},
        statuses=WORDS["RolloutLine", "status"],
        order="`rollouts`, newest first",
    ),
    "rollout": QueryNoun(
        parameters={
            "id": "the shown id, a unique prefix of it, or a name: the newest rollout with it"
        },
        order="`members`: as submitted",
    ),
    "services": QueryNoun(
        parameters={"id": "prefix of the names", "job_id": "of this job"},
        order="`services`, by name",
    ),
    "service": QueryNoun(
        parameters={"id": "the name", "job_id": "of this job", "node_id": "on this node"},
        statuses=WORDS["ServiceInstance", "status"],
        order="`instances`, by job, group and index",
    ),
    "waiting": QueryNoun(parameters={"job_id": "of this job"}, order="`waiting`, the next first"),
    "cluster": QueryNoun(parameters={"id": "`hashes`: with the hash of every table"}),
    "resources": QueryNoun(parameters={"id": "prefix of the names"}, order="`pools`, by name"),
    "submission": QueryNoun(parameters={"id": "the submission's id"}),
    "variables": QueryNoun(
        parameters={"id": "prefix of the paths"},
        order="`variables`, by path, without their items; paths that a lock holds too",
    ),
    "keys": QueryNoun(order="`keys`, newest first: clients seal items with the first one"),
    "signing_keys": QueryNoun(
        order="`keys`, newest first: the first one signs, all of them verify"
    ),
    "claims": QueryNoun(
        parameters={"job_id": "of this job"}, order="`claims`, by job, group, index and volume"
    ),
    "volumes": QueryNoun(
        parameters={
            "id": "beginning of the ids",
            "node_id": "on this node",
            "status": "of this status",
        },
        order="`volumes`, host volumes that were created by request, by name and id",
    ),
    "dead": QueryNoun(order="`messages`, newest first"),
}


def fault(noun: str, parameters: dict[str, msgspec.Raw]) -> tuple[str, str]:
    """Say what is wrong with the parameters of a query, and where; empty texts: nothing, or the noun is unknown."""
    row = NOUNS.get(noun)
    if row is None:
        return "", ""
    for name, value in parameters.items():
        if name not in row.names:
            known = ", ".join(row.names)
            return f"{noun!r} has no parameter {name[:60]!r}; expected one of {known}", name[:60]
        if name == "status" and (text := _word(value)) not in ("", *row.statuses):
            return f"unknown status {text[:60]!r}; expected one of {', '.join(row.statuses)}", name
        if (noun, name) == ("cluster", "id") and _word(value) not in ("", "hashes"):
            return "expected hashes, or no id", name
    return "", ""


def _word(value: msgspec.Raw) -> str:
    return str(msgspec.json.decode(value))


def markdown() -> str:
    """Write docs/queries.md."""
    out = [
        "# Queries",
        "",
        "<!-- Written by `python -m schemas.generate` from schemas/queries.py; a test compares. -->",
        "",
        "`query.<noun>` with a JSON object of the parameters below. An unknown parameter, a status",
        "that the noun does not have and a number outside its bounds are refused with `invalid`. Shapes of",
        "the answers: [events.md](events.md).",
        "",
        "| noun | parameters | lists, and their order |",
        "|---|---|---|",
    ]
    for noun, row in NOUNS.items():
        said = [f"`{name}` {meaning}" for name, meaning in row.parameters.items()]
        said += [f"`status` {', '.join(row.statuses)}"] if row.statuses else []
        out.append(f"| `{noun}` | {'; '.join(said) or 'none'} | {row.order or 'none'} |")
    out += [
        "",
        "Every noun takes `min_seq`: the answer is at least as new, or `unavailable` after 2 seconds.",
        "",
        "## Pages",
        "",
        f"Nouns with a list take `limit` (0 to {QUERY_LIMIT_MAX}, default 1000; 0: only the total) and",
        "`offset`. `total` counts all that fit the filters at the `seq` of the answer. An answer has at most",
        "900 KiB, so a page may be shorter",
        "than `limit`: continue at `offset` plus the number received, until `total` is reached or a page is empty.",
        "Every page is of one state; two pages with different `seq` are of two, and what was added or",
        "removed between them may be",
        "twice or missing. To be sure, ask again from the start when `seq` changed.",
        "",
        "## Error codes",
        "",
        "`error.code` in the answer to any request: of a query, a submission, an operator verb or a node.",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| `{code}` | {meaning} |" for code, meaning in ERROR_CODES.items()),
        "",
        "## Sizes",
        "",
        "| what | at most |",
        "|---|---|",
        "| a message of the bus, so each request and answer | 1 MiB |",
        "| a job, as JSON | 256 KiB |",
        "| a job file for `api.jobs.parse` | 512 KiB |",
        "| an id of a job or a submission | 128 bytes, its token 240 |",
        "| an answer of a query | 900 KiB |",
        "| a frame of a log or of a command's output | 32 KiB before base64; 32 frames unacknowledged |",
        "| input of a command, one message | 64 KiB before base64 |",
        "| one part of a file, `fs_read` | 256 KiB before base64 |",
    ]
    return "\n".join(out) + "\n"
