"""Opens pages about the row under the cursor: details, why, logs; and differences between two moments."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from textual.screen import ModalScreen

from schemas.evaluation_answers import WhyAnswer
from schemas.node_answers import AllocAnswer
from schemas.projections import Query
from services.cli.top import detail_pages
from services.cli.top.keys import help_text
from services.cli.top.pages import LogPage, TextPage
from services.cli.top.session import Session, Work
from services.cli.top.state_source import paced
from shared.core.runtime.messages import Record
from shared.errors import CaravanError
from shared.query.explain import explain_placement
from shared.query.historical_state import HistoricalState
from shared.query.lookup import find_alloc
from shared.query.state_diff import diff_states

#: Records that an explanation reads at most.
EXPLAINED_MAX = 200_000
#: Opens a page above the tables.
Open = Callable[[ModalScreen[None]], object]
#: Follows the output of a task, by allocation, task and stream. Raises CaravanError.
Outputs = Callable[[AllocAnswer, str, str], AsyncIterator[bytes]]


class Place(Protocol):
    """Where the cursor is, and how much room there is."""

    @property
    def row_key(self) -> str:
        """Key of the row under the cursor; empty: no row."""

    @property
    def columns(self) -> int:
        """Width of a page."""


class PageControl:
    """The keys that open pages. What cannot be shown is said at the bottom."""

    def __init__(
        self, session: Session, place: Place, *, work: Work, opened: Open, outputs: Outputs
    ) -> None:
        self._session = session
        self._place = place
        self._work = work
        self._open = opened
        self._outputs = outputs

    def help(self) -> None:
        """Open the list of keys."""
        self._open(TextPage("keys", help_text()))

    def inspect(self) -> None:
        """Open the details of the row."""
        key = self._place.row_key
        if key:
            self.details(self._session.table.name, key.partition("\n")[0])

    def details(self, table: str, key: str) -> None:
        """Open the details of a job, node or allocation; of a waiting group those of its job."""
        make = {"nodes": detail_pages.node_text, "allocations": detail_pages.alloc_text}
        try:
            text = make.get(table, detail_pages.job_text)(
                self._session.answers, key, self._place.columns
            )
        except CaravanError as err:
            self._session.say(str(err))
        else:
            self._open(TextPage(f"{key} at seq {self._session.shown.seq}", text))

    def diff(self) -> None:
        """Open the differences between the pinned moment and this one."""
        pinned, shown = self._session.line.pinned, self._session.shown
        if not pinned or pinned == shown.seq:
            self._session.say("m pins a moment; at another one, d shows the differences")
            return
        self._work(self._diff(pinned), "page")

    async def _diff(self, pinned: int) -> None:
        session = self._session
        session.say(f"replaying to seq {pinned}")
        try:
            other = await session.moments.alone(pinned)
        except CaravanError as err:
            session.say(str(err))
            return
        session.say("")
        older, newer = sorted((other, session.shown), key=lambda one: one.seq)
        diff = diff_states(older.past.state, newer.past.state, (older.seq, newer.seq))
        self._open(TextPage("differences", detail_pages.diff_text(diff)))

    def why(self) -> None:
        """Explain the row: where an allocation is, or why a group or job has no place."""
        key, table = self._place.row_key, self._session.table.name
        if not key or table == "nodes":
            self._session.say("w explains an allocation, a waiting group or a job")
        elif table == "allocations":
            self._work(self._why(key), "page")
        else:
            job_id, _, group = key.partition("\n")
            try:
                answer = self._session.answers.answer("why_not", Query(id=job_id, group=group))
            except CaravanError as err:
                self._session.say(str(err))
                return
            assert isinstance(answer, WhyAnswer)
            self._show_why(answer)

    async def _why(self, alloc_id: str) -> None:
        """Make the decision again that placed an allocation."""
        session = self._session
        try:
            state = session.shown.past.state
            key = int(state.allocations.key[find_alloc(state, alloc_id)])
            made = state.policy.incarnations.seq(key)
            if made > EXPLAINED_MAX:
                session.say(f"the placement is at seq {made}: use `caravan why` for so long a log")
                return
            session.say("making the decision again")
            answer = await self._explained(alloc_id, made)
        except CaravanError as err:
            session.say(str(err))
            return
        session.say("")
        self._show_why(answer)

    async def _explained(self, alloc_id: str, made: int) -> WhyAnswer:
        records: list[Record] = []
        past = HistoricalState()
        async for record in paced(self._session.moments.source.read(1, made)):
            records.append(record)
            past.apply(record)
        return explain_placement(past.state, records, find_alloc(past.state, alloc_id))

    def _show_why(self, answer: WhyAnswer) -> None:
        self._open(TextPage("why", detail_pages.why_text(answer, self._place.columns)))

    def logs(self) -> None:
        """Open the output of the allocation's tasks."""
        session, key = self._session, self._place.row_key
        if session.table.name != "allocations" or not key:
            session.say("l opens the logs of an allocation: enter on a job lists its allocations")
            return
        if session.feed.is_archive:
            session.say("logs of tasks are on their nodes: an archive has none")
            return
        answer: Any = session.answers.answer("alloc", Query(id=key))
        tasks = sorted(answer.tasks)
        if not tasks:
            session.say("no task of this allocation has been reported yet")
            return
        name = answer.allocation.name
        self._open(LogPage(name, tasks, lambda one, stream: self._outputs(answer, one, stream)))
