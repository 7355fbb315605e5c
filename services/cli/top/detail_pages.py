"""Texts that `caravan top` shows on a page of their own: what the status commands print, and differences. Pure."""

import contextlib
import io
import re
from collections.abc import Callable

from schemas.evaluation_answers import WhyAnswer
from schemas.job_answers import JobAnswer
from schemas.node_answers import AllocAnswer, NodeAnswer
from schemas.projections import Query
from services.cli.alloc.status import print_alloc
from services.cli.eval.why import print_why
from services.cli.node.status import print_node
from services.cli.runtime import tables
from services.cli.runtime.output import CommandOutput, strip_control_chars
from shared.query.answers import QueryEngine
from shared.query.state_diff import StateDiff

#: Allocations in the details of a job or a node.
_ALLOCS_SHOWN = 100
#: Colours and movements of the cursor in the output of a task.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def captured(show: Callable[[CommandOutput], None], columns: int) -> str:
    """What a command prints for people, without colours."""
    with contextlib.redirect_stdout(io.StringIO()) as found:
        show(CommandOutput(columns=columns))
    return found.getvalue()


def job_text(answers: QueryEngine, job_id: str, columns: int) -> str:
    """As `job status`. Raises CommandInvalid."""
    answer = answers.answer("job", Query(id=job_id, limit=_ALLOCS_SHOWN))
    assert isinstance(answer, JobAnswer)
    return captured(lambda out: tables.print_job(out, answer, verbose=False), columns)


def node_text(answers: QueryEngine, node_id: str, columns: int) -> str:
    """As `node status`. Raises CommandInvalid."""
    answer = answers.answer("node", Query(id=node_id, limit=_ALLOCS_SHOWN))
    assert isinstance(answer, NodeAnswer)
    return captured(lambda out: print_node(out, answer, None, verbose=False), columns)


def alloc_text(answers: QueryEngine, alloc_id: str, columns: int) -> str:
    """As `alloc status`. Raises CommandInvalid."""
    answer = answers.answer("alloc", Query(id=alloc_id))
    assert isinstance(answer, AllocAnswer)
    return captured(lambda out: print_alloc(out, answer, verbose=False), columns)


def why_text(answer: WhyAnswer, columns: int) -> str:
    """As `why` and `why-not`."""
    return captured(lambda out: print_why(out, answer), columns)


def diff_text(diff: StateDiff) -> str:
    """Differences between two moments: + added, - removed, ~ changed."""
    counts = ", ".join(f"{name} {count}" for name, count in diff.counts.items())
    lines = [f"seq {diff.from_seq} to {diff.to_seq}: {counts or 'no differences'}"]
    for one in diff.changes:
        between = " -> " if one.old and one.new else ""
        lines.append(f"{_SIGNS[one.what]} {one.kind} {one.id}: {one.old}{between}{one.new}")
    if sum(diff.counts.values()) > len(diff.changes):
        lines.append(f"and {sum(diff.counts.values()) - len(diff.changes)} more")
    return strip_control_chars("\n".join(lines))


def log_line(text: str) -> str:
    """A line of a task's output as text alone: what a terminal would obey is taken out."""
    return strip_control_chars(_ESCAPES.sub("", text).replace("\t", "    "))
