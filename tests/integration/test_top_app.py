"""`caravan top` on a terminal that is made up: keys, pages, time, a bus that is away. 80 columns, 24 rows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, RichLog, Static

from schemas.nodes import AllocReport, NodesStatusChanged, TaskState
from services.cli.top.app import TopApp
from services.cli.top.keys import KEYS
from services.cli.top.listings import ROWS_MAX
from services.cli.top.live_table import LiveTable
from services.cli.top.pages import LogPage, TextPage
from services.cli.top.session import Session
from services.cli.top.state_source import Moments
from shared.core.runtime.messages import Record
from tests.bounds import WAIT_S
from tests.builders import group, register
from tests.unit.cli.top_log import WrittenCluster, WrittenSource, small_cluster

pytestmark = pytest.mark.asyncio


@dataclass
class Screen:
    """A running app, and what can be read on its screen."""

    app: TopApp
    pilot: Pilot[None]
    cluster: WrittenCluster
    source: WrittenSource

    def lines(self) -> list[str]:
        """The screen as text, a line a row."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    def shows(self, *texts: str) -> bool:
        """Whether all these texts are on the screen."""
        found = "\n".join(self.lines())
        return all(text in found for text in texts)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            pytest.fail("\n".join(self.lines()))

    async def press(self, *keys: str, shows: str | tuple[str, ...] = ()) -> None:
        """Press keys, then wait until the screen shows these texts."""
        await self.pilot.press(*keys)
        wanted = (shows,) if isinstance(shows, str) else shows
        await self.until(lambda: self.shows(*wanted))

    def table(self, name: str) -> LiveTable:
        """One of the tables."""
        return self.app.screen_stack[0].query_one(f"#{name}", LiveTable)


@asynccontextmanager
async def opened(
    cluster: WrittenCluster | None = None, *, is_archive: bool = False, at: str = ""
) -> AsyncIterator[Screen]:
    """Run the app on a written log."""
    cluster = cluster or small_cluster()
    source = WrittenSource(cluster.log, is_archive=is_archive)
    moments = Moments(source)
    await moments.open()
    session = Session(moments, at=await moments.reached(at) if at else None)
    app = TopApp(session, source)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot, cluster, source)
        await screen.until(lambda: screen.shows("quit") and screen.app.pictures > 0)
        yield screen


async def test_the_first_picture_has_everything_in_80_by_24() -> None:
    """Cluster, moment, lag, counts, use, nodes, the table, events, slider and keys, none of it cut."""
    async with opened() as screen:
        await screen.until(lambda: screen.shows("lag 0"))
        lines = screen.lines()
        assert len(lines) == 24 and all(len(line) <= 80 for line in lines)
        assert lines[0].startswith("c1  live  seq 9 of 9  ")
        assert lines[1] == "nodes: 2 ready  jobs: 2  allocations: 2 running"
        assert lines[3] == "▄▄"
        assert lines[6].split() == [*("JOB", "TYPE", "STATUS", "RUNNING", "PRIO", "VER", "CHANGED")]
        assert lines[21].split()[:3] == ["9", lines[21].split()[1], "evaluation.ended"]
        assert lines[22].startswith("1 -") and lines[22].endswith("O 9")
        assert lines[23].startswith("? help  q quit")


async def test_keys_open_the_tables_and_enter_goes_into_a_row() -> None:
    """1 to 4; enter on a job or node shows its allocations, on an allocation its details; escape goes back."""
    async with opened() as screen:
        await screen.press("2", shows=("[2 nodes]", "n1    ready"))
        await screen.press("3", shows=("[3 waiting]", "never_fits"))
        await screen.press("4", shows=("[4 allocations]", "web.web[0]"))
        await screen.press("2", shows="[2 nodes]")
        await screen.press("down", "enter", shows=("[4 allocations]", "1  of n2"))
        await screen.press("escape", shows="[2 nodes]")
        await screen.press("1", "down", "enter", shows=("[4 allocations]", "2  of web"))
        await screen.press("enter", shows=("Name      web.web[", "Why       running on node"))
        assert isinstance(screen.app.screen, TextPage)
        await screen.press("escape", shows="of web")
        await screen.press("escape", shows="[1 jobs]")
        await screen.press("i", shows=("web at seq 9", "Groups"))


async def test_a_change_of_the_cluster_changes_cells_in_place() -> None:
    """New rows come, gone ones leave, and the cursor stays on its row; rows that did not change are not drawn anew."""
    async with opened() as screen:
        table = screen.table("jobs")
        await screen.press("down")
        assert table.row_key == "web"
        kept = table.get_cell("big", "JOB")
        screen.cluster.run(register("aaa", group("g", memory_mib=10)))
        await screen.until(lambda: screen.shows("aaa", "seq 11 of 11"))
        assert [str(row.key.value) for row in table.ordered_rows] == ["aaa", "big", "web"]
        assert table.row_key == "web" and table.cursor_row == 2
        assert table.get_cell("big", "JOB") is kept
        screen.cluster.apply_logged(NodesStatusChanged(rows=(1,), status="down"))
        await screen.until(lambda: screen.shows("1 ready, 1 down"))
        assert screen.lines()[3] == "▄x"


async def test_drawing_has_a_rate_of_its_own() -> None:
    """A hundred records make few pictures, not one each."""
    async with opened() as screen:
        await screen.pilot.pause()
        before = screen.app.pictures
        for at in range(100):
            screen.cluster.do(register(f"job-{at}", group("g", count=0)))
        await screen.until(lambda: screen.shows("seq 109 of 109"))
        assert screen.app.pictures - before < 50


async def test_time_goes_back_on_and_to_now() -> None:
    """`,` and `.` by record, `<` and `>` by mark, `n` to now, while the live log grows."""
    async with opened() as screen:
        await screen.press("comma", shows="past  seq 8 of 9")
        await screen.press("comma", "comma", shows="past  seq 6 of 9")
        assert screen.lines()[19].split()[0] <= "6"
        await screen.press("full_stop", shows="past  seq 7 of 9")
        await screen.press("less_than_sign", shows=("past  seq 4 of 9", "job.registered"))
        await screen.press("less_than_sign", shows=("past  seq 3 of 9", "jobs: 0"))
        await screen.press("greater_than_sign", "greater_than_sign", shows="past  seq 8 of 9")
        screen.cluster.do(register("later"))
        await screen.until(lambda: screen.shows("past  seq 8 of 10"))
        assert not screen.shows("later")
        await screen.press("n", shows=("live  seq 10 of 10", "later"))


async def test_play_shows_the_log_from_its_beginning_to_now() -> None:
    """Space at now begins at the first record; it ends by itself at the end."""
    async with opened() as screen:
        await screen.press("space", shows=("past", "playing"))
        await screen.until(lambda: screen.shows("live  seq 9 of 9"))
        await screen.until(lambda: not screen.shows("playing"))
        await screen.press("space", shows="playing")
        await screen.press("space")
        await screen.until(lambda: not screen.shows("playing"))


async def test_go_to_takes_a_seq_a_name_an_id_and_a_time() -> None:
    """Each is found; what is nothing is said, and nothing moves."""
    async with opened() as screen:
        await screen.press("colon", "5", "enter", shows="past  seq 5 of 9")
        await screen.press("n", "colon", "w", "e", "enter", shows=("[1 jobs]", "with web"))
        await screen.press("colon", "n", "2", "enter", shows=("[2 nodes]", "with n2"))
        await screen.press("4", shows="web.web[0]")
        begin = screen.table("allocations").row_key[:8]
        await screen.press("colon", *begin, "enter", shows=f"ID        {begin}")
        await screen.press("escape", "colon", "z", "z", "enter", shows="begins with 'zz'")
        await screen.press("colon", *"2023-11-14T23:00", "enter", shows="live  seq 9 of 9")
        await screen.press("colon", "5", "escape", shows="live  seq 9 of 9")
        assert not screen.app.query_one("#prompt", Input).display


async def test_a_tick_while_the_app_closes_draws_nothing() -> None:
    """What is drawn on goes before the timer does: on a busy machine it ticks once more in between."""
    async with opened() as screen:
        await screen.app.query("#position").remove()
        drawn = screen.app.pictures
        screen.app.session.is_dirty = True
        screen.app._tick()
        assert screen.app.pictures == drawn


async def test_a_filter_narrows_while_it_is_typed() -> None:
    """Keys of the app are letters in it; escape takes it away."""
    async with opened() as screen:
        await screen.press("slash", "w", shows="with w")
        assert screen.table("jobs").row_count == 1
        await screen.press("q", shows="with wq")
        assert screen.table("jobs").row_count == 0
        await screen.press("backspace", "enter", shows="1  with w")
        await screen.press("escape")
        await screen.until(lambda: screen.table("jobs").row_count == 2)


async def test_why_says_where_and_why_not() -> None:
    """Of an allocation the decision is made again; of a waiting group what is missing."""
    async with opened() as screen:
        await screen.press("4", shows="web.web[0]")
        await screen.press("w", shows=("web.web is on n", "Best nodes with capacity"))
        await screen.press("escape", "3", shows="never_fits")
        await screen.press("w", shows=("big.big cannot be placed", "memory_mib"))
        await screen.press("escape", "2", "w", shows="w explains an allocation")
        assert not isinstance(screen.app.screen, TextPage)


async def test_differences_are_between_the_pinned_moment_and_the_shown_one() -> None:
    """In either order; without a pinned moment the key says what it needs."""
    async with opened() as screen:
        await screen.press("d", shows="m pins a moment")
        await screen.press("m", shows="pinned seq 9")
        await screen.press("colon", "4", "enter", shows=("past  seq 4 of 9", "pinned 9"))
        await screen.press("d", shows=("seq 4 to 9", "+ job big", "+ allocation web.web[0]"))
        await screen.press("escape", "m")
        await screen.until(lambda: not screen.shows("pinned 9"))


async def test_the_help_lists_every_key() -> None:
    """From the table that the keys come from, whole on 24 rows."""
    async with opened() as screen:
        await screen.press("question_mark", shows="this help")
        found = "\n".join(screen.lines())
        assert [one.text for one in KEYS if one.text not in found] == []
        await screen.press("q", shows="[1 jobs]")


async def test_logs_are_shown_as_text() -> None:
    """The node's output, without what a terminal would obey; the other stream on request."""
    cluster = small_cluster()
    keys = cluster.state.allocations.key
    tasks = {"server": TaskState(state="running")}
    states = tuple(
        AllocReport(key=int(keys[row]), row=row, status="running", tasks=tasks)
        for row in cluster.rows("web")
        if row in cluster.on_node("n1")
    )
    cluster.report("n1", states=states)
    async with opened(cluster) as screen:
        await screen.press("l", shows="l opens the logs of an allocation")
        await screen.press("slash", "w", "enter", "enter", shows="of web")
        await screen.press(
            "l", shows=("server stdout", "first line", "red [bold]not markup[/bold]")
        )
        assert isinstance(screen.app.screen, LogPage)
        assert "\x1b" not in "".join(
            str(one.text) for one in screen.app.screen.query_one(RichLog).lines
        )
        await screen.press("e", shows="server stderr")
        await screen.press("escape", shows="of web")


async def test_an_archive_does_not_grow_and_has_no_logs() -> None:
    """It asks no service; its end is called so."""
    async with opened(is_archive=True, at="5") as screen:
        await screen.until(lambda: screen.shows("past  seq 5 of 9"))
        assert not screen.shows("lag")
        await screen.press("n", shows="end of the archive  seq 9 of 9")
        await screen.press("4", "l", shows="an archive has none")


async def test_alarms_and_a_view_that_is_away_are_seen() -> None:
    """The header counts alarms and their text is below it; without a view the lag is unknown."""
    async with opened() as screen:
        screen.source.alarms = ("the log is 90 % full",)
        screen.source.ahead = 7
        await screen.until(lambda: screen.shows("lag 7  1 alarm", "the log is 90 % full"))
        screen.source.is_away = True
        await screen.until(lambda: screen.shows("lag unknown  1 alarm", "no view answers"))


async def test_a_damaged_record_ends_following_and_says_so() -> None:
    """What was shown stays, with the reason above it."""
    async with opened() as screen:
        screen.cluster.do(register("new"))
        first, record = screen.cluster.log.records[0], screen.cluster.log.records[-1]
        screen.cluster.log.records[-1] = Record(record.seq, record.subject, first.data)
        await screen.until(lambda: screen.shows("the log is no longer followed"))
        assert screen.shows("seq 9 of")


async def test_a_log_without_nodes_or_jobs_is_shown() -> None:
    """A new cluster has a lease and its policy, and nothing else."""
    async with opened(WrittenCluster()) as screen:
        await screen.until(lambda: screen.shows("live  seq 2 of 2", "nodes: none  jobs: 0"))
        await screen.press("enter", "i", "w", shows="w explains")
        await screen.press("comma", shows="past  seq 1 of 2")
        assert screen.table("jobs").row_count == 0


async def test_a_small_terminal_is_named_and_does_not_break() -> None:
    """Below 80 by 24 parts are cut, and the last line says so."""
    async with opened() as screen:
        await screen.pilot.resize_terminal(60, 18)
        await screen.until(lambda: screen.shows("terminal below 80x24"))
        await screen.pilot.resize_terminal(200, 50)
        await screen.until(lambda: screen.shows("? help"))
        assert len(screen.app.query_one("#slider", Static).render_line(0).text) == 200


async def test_many_rows_are_cut_to_a_bound() -> None:
    """A table never holds more rows than its bound."""
    cluster = WrittenCluster()
    cluster.do(*(register(f"job-{at:04}", group("g", count=0)) for at in range(ROWS_MAX + 20)))
    async with opened(cluster) as screen:
        await screen.until(lambda: screen.shows(f"{ROWS_MAX} of {ROWS_MAX + 20}"))
        assert screen.table("jobs").row_count == ROWS_MAX
        await screen.press("slash", *"0519", "enter", shows="1  with 0519")


async def test_q_and_ctrl_c_quit() -> None:
    """From the tables, and from the prompt."""
    async with opened() as screen:
        await screen.pilot.press("q")
        assert screen.app.return_code == 0
    async with opened() as screen:
        await screen.pilot.press("slash", "ctrl+c")
        assert screen.app.return_code == 0
