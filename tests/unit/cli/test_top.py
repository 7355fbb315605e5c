"""`caravan top` without a terminal: tables, strip, slider and texts of states made by builders."""

import sys

import numpy as np
import pytest

from services.cli.main import main
from services.cli.top import detail_pages, head
from services.cli.top.heat import BARS, HeatCell, ShareHistory, heat_cells, total_shares
from services.cli.top.keys import KEYS, help_text, hint_text
from services.cli.top.listings import ROWS_MAX, TABLES, Listing, Wanted
from services.cli.top.state_source import EVENTS_KEPT, Moments
from services.cli.top.time_slider import TimeSlider
from shared.display.time_marks import Mark
from shared.query.fleet_columns import DOWN, DRAINING, FleetColumns, FleetMembers, fleet_columns
from shared.query.historical_state import HistoricalState
from shared.query.state_diff import diff_states
from tests.builders import group, join, register, stop
from tests.unit.cli.top_log import WrittenCluster, WrittenSource, small_cluster


def past_of(cluster: WrittenCluster, last: int = 0) -> HistoricalState:
    """The state of a written log, or of its beginning."""
    found = HistoricalState()
    for one in cluster.log.records[: last or None]:
        found.apply(one)
    return found


def listed(past: HistoricalState, name: str, wanted: Wanted = Wanted()) -> Listing:  # noqa: B008 - immutable
    """One table of a state."""
    table = next(one for one in TABLES if one.name == name)
    found = table.list(past, fleet_columns(past.state), wanted)
    assert all(len(row.cells) == len(table.columns) for row in found.rows)
    assert len({row.key for row in found.rows}) == len(found.rows)
    return found


def test_tables_say_what_the_state_holds() -> None:
    """Jobs with their counts, nodes with their use, the queue with its reason, allocations with their node."""
    past = past_of(small_cluster())
    jobs = {row.key: row.cells for row in listed(past, "jobs").rows}
    assert jobs["web"][:4] == ("web", "service", "running", "2/2")
    assert jobs["big"][2:4] == ("pending, waiting", "0/1")
    nodes = {row.key: row.cells for row in listed(past, "nodes").rows}
    assert nodes["n1"][:7] == ("n1", "ready", "9%", "40%", "0%", "1", "web")
    waiting = listed(past, "waiting").rows
    assert [row.cells[1:4] for row in waiting] == [("big.big", "1", "never_fits")]
    assert "no feasible node is large enough" in waiting[0].cells[-1]
    allocations = {row.cells[1]: row.cells for row in listed(past, "allocations").rows}
    assert set(allocations) == {"web.web[0]", "web.web[1]"}
    assert {one[2] for one in allocations.values()} == {"n1", "n2"}
    assert {one[3] for one in allocations.values()} == {"running"}


def test_allocations_are_those_of_the_job_or_node_opened() -> None:
    """Of a job all its allocations, of a node those on it, of one that is gone none."""
    past = past_of(small_cluster())
    of_job = listed(past, "allocations", Wanted(job="web"))
    assert [row.cells[1] for row in of_job.rows] == ["web.web[0]", "web.web[1]"]
    of_node = listed(past, "allocations", Wanted(node="n1"))
    assert {row.cells[2] for row in of_node.rows} == {"n1"} and of_node.total == 1
    assert listed(past, "allocations", Wanted(job="gone")).total == 0
    assert listed(past, "allocations", Wanted(node="gone")).total == 0


@pytest.mark.parametrize(
    ("table", "text", "total"),
    [
        *(("jobs", "we", 1), ("jobs", "nothing", 0), ("nodes", "n", 2), ("nodes", "ready", 2)),
        *(("nodes", "n2", 1), ("waiting", "never", 1), ("waiting", "capacity", 0)),
        *(("allocations", "web.web", 2), ("allocations", "n2", 1), ("allocations", "running", 2)),
        ("allocations", "failed", 0),
    ],
)
def test_a_filter_leaves_the_rows_that_contain_it(table: str, text: str, total: int) -> None:
    """Names, nodes and states are searched."""
    assert listed(past_of(small_cluster()), table, Wanted(text=text)).total == total


def test_an_allocation_is_found_by_the_beginning_of_its_id() -> None:
    """The filter takes what other commands print as an id."""
    past = past_of(small_cluster())
    one = listed(past, "allocations").rows[0]
    found = listed(past, "allocations", Wanted(text=one.key[:8]))
    assert [row.key for row in found.rows] == [one.key]


def test_a_table_is_cut_and_says_so() -> None:
    """Of many rows the first are listed, the total is counted."""
    cluster = WrittenCluster()
    for at in range(ROWS_MAX + 5):
        cluster.do(register(f"job-{at:04}", group("g", count=0)))
    found = listed(past_of(cluster), "jobs")
    assert (len(found.rows), found.total) == (ROWS_MAX, ROWS_MAX + 5)
    line = head.tab_line(TABLES[0], Wanted(), found)
    assert f"{ROWS_MAX} of {ROWS_MAX + 5}" in line


def fleet_of(shares: list[int], flags: list[int]) -> FleetColumns:
    """Columns of nodes with this use and these states."""
    size = len(shares)
    use = np.asarray([shares, [0] * size, [0] * size], dtype=np.uint16)
    members = FleetMembers(
        generation=1,
        rows=np.arange(size, dtype=np.int32),
        ids=[f"n{at}" for at in range(size)],
        datacenters=["dc"] * size,
        classes=[""] * size,
    )
    return FleetColumns(
        seq=1,
        members=members,
        jobs=[],
        shares=use,
        count=np.zeros(size, dtype=np.uint16),
        flags=np.asarray(flags, dtype=np.uint8),
        job=np.zeros(size, dtype=np.uint8),
        version=np.zeros(size, dtype=np.uint8),
    )


def test_the_strip_shows_use_by_height_and_states_by_letters() -> None:
    """Without colours it says the same; the worst state of a node wins."""
    fleet = fleet_of([0, 65_535, 30_000, 0], [0, 0, DRAINING, DOWN | DRAINING])
    cells = heat_cells(fleet, 10)
    assert cells == [
        HeatCell(BARS[0], 0),
        HeatCell(BARS[7], 7),
        HeatCell("d", -1),
        HeatCell("x", -1),
    ]


def test_more_nodes_than_cells_share_them() -> None:
    """Neighbours share a cell: their mean, and a sign where half of them are in that state. No node is left out."""
    fleet = fleet_of([0, 65_535] * 500, [DOWN] * 250 + [0] * 750)
    cells = heat_cells(fleet, 100)
    assert len(cells) == 100
    assert [one.glyph for one in cells[:25]] == ["x"] * 25
    assert {one.level for one in cells[25:]} == {3}
    assert heat_cells(fleet_of([], []), 100) == []


def test_shares_are_those_of_nodes_that_are_up_and_forget_what_is_ahead() -> None:
    """Percent of what is there; going back in time drops the values after the moment."""
    past = past_of(small_cluster())
    cpu, memory, disk = total_shares(past.state)
    assert (cpu, memory, disk) == (10, 40, 0)
    course = ShareHistory()
    for seq, value in ((1, 0), (5, 50), (9, 100)):
        course.note(seq, (value, 0, 0))
    assert f"{BARS[0]}{BARS[3]}{BARS[7]} 100%" in course.line()
    course.note(5, (50, 0, 0))
    assert f"{BARS[0]}{BARS[3]}  50%" in course.line()


def line_of(*marks: int, last: int = 1_000) -> TimeSlider:
    """A slider with marks at these seqs."""
    made = TimeSlider([Mark(seq, 0, "node_lost" if seq == 700 else "job", "") for seq in marks])
    made.last = last
    return made


def test_steps_stay_in_the_log_and_its_end_is_now() -> None:
    """Before the first record there is nothing; the last one is the live state."""
    line = line_of()
    line.go(-5)
    assert line.at == 1
    line.go(999)
    assert (line.at, line.seq) == (999, 999)
    line.go(5_000)
    assert (line.at, line.seq) == (0, 1_000)
    line.last = 1_200
    assert line.seq == 1_200


def test_jumps_go_from_mark_to_mark_and_then_to_the_ends() -> None:
    """As in the console: before the first mark is the beginning, behind the last one now."""
    line, seen = line_of(100, 400, 700), []
    for _ in range(4):
        line.jump(-1)
        seen.append(line.at)
    assert seen == [700, 400, 100, 1]
    for _ in range(4):
        line.jump(1)
        seen.append(line.at)
    assert seen[4:] == [100, 400, 700, 0]


def test_play_crosses_the_log_and_ends_at_now() -> None:
    """Steps shrink with what is left, so that the end is seen record by record."""
    line = line_of()
    line.go(1)
    steps = 0
    while line.play_step():
        steps += 1
    assert line.at == 0 and 200 < steps < 1_000
    assert not line.play_step()


def test_the_slider_shows_marks_the_pinned_and_the_shown_moment() -> None:
    """It has the width of the terminal; a lost node is seen among other marks."""
    line = line_of(400, 700)
    line.go(300)
    line.pin()
    line.go(500)
    bar = line.bar(80)
    assert len(bar) == 80
    body = bar.removeprefix("1 ").removesuffix(" 1000")
    assert [sign for sign in body if sign != "-"] == ["P", "'", "O", "!"]
    line.pin()
    assert "P" not in line.bar(80) and line.pinned == 0
    assert TimeSlider([]).bar(80).startswith("1 ")


def test_keys_are_unique_and_all_in_the_help() -> None:
    """One table: what a key does and what the help says cannot differ."""
    names = [name for one in KEYS for name in one.names.split(",")]
    assert len(names) == len(set(names))
    assert len({one.action for one in KEYS}) == len(KEYS)
    assert [line[8:] for line in help_text().splitlines()] == [one.text for one in KEYS]
    assert len(hint_text()) <= 80
    assert {",", ".", "<", ">", "n", "m"} <= {one.sign for one in KEYS}


def test_hostile_text_stays_text() -> None:
    """What a terminal would obey is taken out of names, events and task output."""
    assert (
        detail_pages.log_line("\x1b[2J\x1b]0;title\x07a\x1b[31mred\x1b[0m\x9b\x07\tb")
        == "ared??    b"
    )
    feed = head.Feed(problem="damage\x1b[2J")
    assert head.alarm_texts(past_of(small_cluster()), feed) == ["damage?[2J"]


def test_the_header_says_where_the_state_is() -> None:
    """Live with its lag, past, or the end of an archive; damage and alarms are counted."""
    past = past_of(small_cluster())
    line = line_of(last=past.state.seq)
    feed = head.Feed()
    feed.unanswered("no view answers")
    assert "live" in head.position_line(past, line, feed)
    assert "lag unknown  1 alarm" in head.position_line(past, line, feed)
    line.go(3)
    assert "past" in head.position_line(past, line, feed)
    line.go(past.state.seq)
    archive = head.position_line(past, line, head.Feed(is_archive=True))
    assert "end of the archive" in archive and "lag" not in archive
    assert "nodes: 2 ready" in head.count_line(past, fleet_columns(past.state))


def test_differences_are_listed_and_counted() -> None:
    """Added, removed and changed have a sign each."""
    cluster = small_cluster()
    before = past_of(cluster)
    cluster.do(stop("big"), register("new"))
    text = detail_pages.diff_text(diff_states(before.state, past_of(cluster).state))
    assert "+ job new: version 0" in text
    assert "~ job big: " in text and ", stopped" in text
    assert text.startswith(f"seq {before.state.seq} to {cluster.state.seq}: ")
    same = detail_pages.diff_text(diff_states(before.state, before.state))
    assert same.endswith("no differences")


async def opened(cluster: WrittenCluster) -> tuple[Moments, WrittenSource]:
    """Moments of a written log."""
    source = WrittenSource(cluster.log)
    moments = Moments(source)
    await moments.open()
    return moments, source


@pytest.mark.asyncio
async def test_a_moment_is_the_state_behind_its_seq_with_its_events() -> None:
    """Every seq: the same tables as a replay to it, and the events up to it."""
    cluster = small_cluster()
    moments, _ = await opened(cluster)
    for seq in (*range(1, cluster.log.seq + 1), 4, 2, 7):
        shown = await moments.at(seq)
        assert shown.seq == seq
        assert shown.past.state.hashes() == past_of(cluster, seq).state.hashes()
        assert max(one.seq for one in shown.events) == seq


@pytest.mark.asyncio
async def test_steps_forward_move_one_state_on_and_steps_back_begin_anew() -> None:
    """Going on reads only what is new; only the past before the kept state is read again."""
    cluster = small_cluster()
    moments, source = await opened(cluster)
    await moments.at(3)
    source.reads.clear()
    await moments.at(4)
    await moments.at(6)
    assert source.reads == [(4, 4), (5, 6)]
    await moments.at(5)
    assert source.reads[-1] == (1, 5)
    assert await moments.at(cluster.log.seq) is moments.live


@pytest.mark.asyncio
async def test_only_the_newest_events_are_kept() -> None:
    """A long log does not fill the memory with its events."""
    cluster = WrittenCluster()
    for at in range(EVENTS_KEPT + 10):
        cluster.do(join(f"n{at}"))
    moments, _ = await opened(cluster)
    assert len(moments.live.events) == EVENTS_KEPT
    assert moments.live.events[-1].seq == cluster.log.seq
    assert len(head.event_lines(moments.live.events, 4)) == 4
    assert head.event_lines(moments.live.events, 0) == []


def test_without_a_terminal_or_its_package_top_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pipe the error names the commands that print once; without textual it names the extra."""
    assert main(["top"]) == 1
    assert "top needs a terminal" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "textual", None)
    assert main(["top"]) == 1
    assert "install caravan-orchestrator[tui]" in capsys.readouterr().err
