"""The answer to a what-if: proof, agreement, effects before and after, differences, moves, and what was assumed.

Decides what is told and in which words the assumptions are said. Must not know how it is printed.
"""

import msgspec

from shared.core.redecide import Difference
from shared.whatif.compare import Differences
from shared.whatif.effects import Effects
from shared.whatif.lasting import Assumed
from shared.whatif.moves import Move

#: Jobs and moves that a report lists at the most.
LISTED_MAX = 1_000


class Faithful(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded decisions behind the fork, decided again on their own snapshots."""

    checked: int
    equal: int
    other_version: int
    untold: int
    differences: tuple[Difference, ...] = ()

    @property
    def divergence(self) -> int:
        """Decisions that come out otherwise."""
        return self.checked - self.equal


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far the unchanged fork goes as the log does: placements."""

    recorded: int
    same: int
    elsewhere: int
    missing: int
    extra: int


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a fork had to assume."""

    durations: Assumed
    #: what came from outside behind the fork, as the log has it.
    entries: int
    #: virtual seconds that go on behind the end of the record.
    beyond_s: float
    #: it came to rest by itself; false: it was cut off.
    settled: bool
    #: first record from which durations are known.
    history_seq: int
    #: why the record was not read to its end.
    problem: str = ""
    texts: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `caravan what-if` prints with --json."""

    from_seq: int
    from_time: str = ""
    until_time: str = ""
    end_seq: int
    workers: int
    wishes: tuple[str, ...] = ()
    faithful: Faithful
    agreement: Agreement
    before: Effects
    #: None: nothing was wished for.
    after: Effects | None
    differences: Differences | None
    changed: int
    moves: tuple[Move, ...]
    still_waiting: dict[str, dict[str, int]]
    assumptions: Assumptions
    out: str = ""


def agreement(found: Differences) -> Agreement:
    """Read a comparison of the record with the unchanged fork."""
    return Agreement(
        recorded=found.compared + found.only_before,
        same=found.same,
        elsewhere=found.elsewhere,
        missing=found.only_before,
        extra=found.only_after,
    )


def texts_of(found: Assumptions) -> tuple[str, ...]:
    """Say the assumptions in words."""
    lasts = found.durations
    kinds = [
        (lasts.recorded, "last as recorded"),
        (lasts.resampled, "as finished ones of their group or job did"),
        (
            lasts.of_others,
            "as finished ones of other batch jobs (nothing of their own has ended yet)",
        ),
        (lasts.for_ever, "for ever (nothing says when they end)"),
    ]
    lasting = "tasks: " + (", ".join(f"{n} {kind}" for n, kind in kinds if n) or "none")
    said = [
        f"{found.entries} things came from outside as they did then: nobody reacts to the change",
        lasting,
        "recorded durations happened where tasks were then; decisions, hops and flushes take the times of a table",
    ]
    if lasts.never_started:
        said.append(
            f"{lasts.never_started} stay pending: nothing in the record was ever seen to start"
        )
    if found.history_seq > 1:
        said.append(f"durations are known from seq {found.history_seq} on, where a snapshot begins")
    if found.problem:
        said.append(f"the record ends early: {found.problem}")
    if found.beyond_s > 0:
        said.append(f"{found.beyond_s:.1f} s of it lie behind the end of the record")
    if not found.settled:
        said.append("it was cut off before it came to rest")
    return tuple(said)
