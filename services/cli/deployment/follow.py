"""How the CLI changes and follows a deployment or a rollout, until it ended or waits for a person.

`monitor.py` of each says what differs: a `Followable`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from schemas.base import Wire
from schemas.operator import OperatorVerdict
from schemas.projections import DeploymentLine
from schemas.rollout_answers import RolloutLine
from services.cli.deployment.display import GroupRow, RolloutDisplay
from services.cli.runtime.bus_client import with_bus
from services.cli.runtime.operator_client import OperatorResult, request_verdict
from services.cli.runtime.output import CommandOutput, short_id
from shared.bus.connection.public_client import Client

A = TypeVar("A", bound=msgspec.Struct)
POLL_INTERVAL_S = 0.1
#: Pause between queries, as a multiple of the time that a query takes.
_PAUSE_FACTOR = 5


@dataclass(frozen=True, kw_only=True)
class Followable(Generic[A]):
    """What is asked and printed of a deployment or a rollout; `A` is the answer of its query."""

    noun: str
    #: by an id or a unique prefix, at a seq or later.
    query: Callable[[Client, str, int], Awaitable[A]]
    id_of: Callable[[A], str]
    #: `successful`, `failed`, `cancelled` or `waiting`; empty: it continues.
    outcome_of: Callable[[A], str]
    title: Callable[[A], str]
    #: how far it is, and its groups.
    progress: Callable[[A], tuple[str, Sequence[GroupRow]]]
    #: why allocations failed.
    failures: Callable[[Client, A], Awaitable[list[str]]]
    print_outcome: Callable[[CommandOutput, A, Iterable[str]], None]


def exit_code(outcome: str) -> int:
    """0: successful; 2: it continues, after a person acted or capacity came; 1: failed or cancelled."""
    return {"successful": 0, "waiting": 2, "": 2}.get(outcome, 1)


async def follow(
    kind: Followable[A], client: Client, out: CommandOutput, identifier: str, *, min_seq: int = 0
) -> A:
    """Show one until it ended or waits. Returns the last answer."""
    answer = await kind.query(client, identifier, min_seq)
    identifier, title = kind.id_of(answer), kind.title(answer)
    if not out.is_live:
        out.progress(title)
    with RolloutDisplay(out, title) as picture:
        while True:
            outcome = kind.outcome_of(answer)
            picture.show(*kind.progress(answer), outcome)
            if outcome:
                return answer
            began = time.monotonic()
            await asyncio.sleep(POLL_INTERVAL_S)
            answer = await kind.query(client, identifier, 0)
            await asyncio.sleep(min(_PAUSE_FACTOR * (time.monotonic() - began), 1.0))


def change(
    kind: Followable[A],
    out: CommandOutput,
    body: Wire,
    word: str,
    *,
    result: Callable[[OperatorVerdict, A], OperatorResult],
    follows: bool = False,
    print_unfollowed: Callable[[CommandOutput, A], None],
) -> int:
    """Send a request, say what became of it, follow its object. Returns the exit code.

    Raises CliError with the refusal.
    """
    verdict = request_verdict(body)
    identifier: str = getattr(verdict, f"{kind.noun}_id")
    done = word if verdict.changed else f"was {word} already"
    out.line(f"{kind.noun} {short_id(identifier)}: {done}")

    async def look(client: Client) -> tuple[A, list[str]]:
        if not follows:
            return await kind.query(client, identifier, verdict.seq), []
        found = await follow(kind, client, out, identifier, min_seq=verdict.seq)
        return found, await kind.failures(client, found)

    answer, failures = with_bus(look)
    out.result(result(verdict, answer))
    if not follows:
        print_unfollowed(out, answer)
        return 0
    kind.print_outcome(out, answer, failures)
    return exit_code(kind.outcome_of(answer))


def print_end(
    out: CommandOutput,
    noun: str,
    line: DeploymentLine | RolloutLine,
    *,
    outcome: str,
    failures: Iterable[str],
) -> None:
    """Print why allocations failed, and how a deployment or rollout stands."""
    for text in failures:
        out.line(text, "red")
    style = {"successful": "green", "waiting": "yellow"}.get(outcome, "red")
    out.line(f"{noun} {short_id(line.id)}: {line.description}", style if outcome else "")
