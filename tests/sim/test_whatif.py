"""A fork of a log goes as the log does, unless something is otherwise; then just that has its effect."""

from pathlib import Path

import msgspec
import pytest

from schemas.base import JobId, NodeId
from schemas.envelope import CORE_VERSION, RECORD_DECODER
from schemas.plans import PlanCommitted
from shared.core.runtime.chain import Chain, seal
from shared.core.runtime.messages import Record
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.verify_decisions import verify_decisions
from shared.core.state.tables.allocations import COMPLETE, FAILED, LOST
from shared.errors import CommandInvalid
from shared.fleet.profile import DurationSpec, RunProfile, StartProfile
from shared.sim.virtual_time import SECOND, START_NS
from shared.whatif import fork
from shared.whatif.changes import RequestedChanges, apply_changes, clone_nodes
from shared.whatif.comparison import TimelineDifferences, compare_timelines
from shared.whatif.effects import measure_effects, still_waiting, wait_s_by_job
from shared.whatif.fork import ForkRun, RecordedLog, run_fork
from shared.whatif.fork import read_log as fork_read
from shared.whatif.migrations import find_migrations
from shared.whatif.what_if import WhatIfAnswer, WhatIfQuestion, build_what_if_report, run_what_if
from tests.golden.replay_log import read_log
from tests.sim.recorded import PROFILE, read, seq_at, spec, written
from tests.sim.test_engine import played as engine_story

#: Of this core version: the plans of another one are not decided again.
GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "logs").glob(f"v1-{CORE_VERSION}-*.gz"))
END_NS = START_NS + 300 * SECOND


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return written()


@pytest.fixture(scope="module")
def stormy() -> list[Record]:
    """A quarter of an hour with faults, of the engine's own tests."""
    return list(engine_story(faults=True).records)


def forked(records: list[Record], seconds: float) -> RecordedLog:
    return read(records, seq_at(records, seconds))


def run(recorded: RecordedLog, changes: RequestedChanges | None = None, **options: bool) -> ForkRun:
    entries = apply_changes(recorded.fork.state, recorded.entries, changes or RequestedChanges())
    played = run_fork(
        recorded, entries, workers=recorded.workers, until_ns=END_NS, settle=False, **options
    )
    played.timeline.close(END_NS)
    return played


def against(
    recorded: RecordedLog, changes: RequestedChanges
) -> tuple[ForkRun, ForkRun, TimelineDifferences]:
    before, after = run(recorded), run(recorded, changes)
    return before, after, compare_timelines(before.timeline, after.timeline)


@pytest.mark.parametrize("seconds", [0.5, 10, 40])
def test_an_unchanged_fork_goes_as_the_log_does(records: list[Record], seconds: float) -> None:
    """Each placement comes to the node of the record, starts and ends when it did, wherever the fork is."""
    recorded = forked(records, seconds)
    played = run(recorded)
    found = compare_timelines(recorded.behind(END_NS), played.timeline)
    assert (found.elsewhere, found.only_before, found.only_after) == (0, 0, 0)
    assert found.same == found.compared == (16, 6, 4)[[0.5, 10, 40].index(seconds)]
    assert measure_effects(played.timeline).complete == (12, 12, 12)[[0.5, 10, 40].index(seconds)]
    off = played.timeline.placed.column("ended_ns") - recorded.timeline.placed.column("ended_ns")
    assert abs(off).max() < SECOND // 2
    assert played.assumed.resampled == 0


@pytest.mark.parametrize("seconds", [100, 400])
def test_what_came_from_outside_comes_again(stormy: list[Record], seconds: float) -> None:
    """Nodes that die, fall silent and return, failures, a drain, another policy: the fork has them as the log had."""
    recorded = forked(stormy, seconds)
    played = run_fork(
        recorded,
        recorded.entries,
        workers=recorded.workers,
        until_ns=recorded.timeline.t_ns,
        settle=False,
    )
    found = compare_timelines(recorded.behind(recorded.timeline.t_ns), played.timeline)
    assert (found.only_before, found.only_after) == (0, 0)
    # The same moment may be another order of things.
    assert found.same > found.compared * 95 // 100 > 100
    for code in (COMPLETE, FAILED, LOST):
        counts = [
            int((timeline.placed.column("code") == code).sum())
            for timeline in (recorded.timeline, played.timeline)
        ]
        # One may end just behind the last record.
        assert counts[0] - 1 <= counts[1] <= counts[0]
        assert counts[1] > 0
    assert played.assumed.resampled == 0


def test_a_log_may_be_read_from_a_snapshot_on(records: list[Record]) -> None:
    """From a state in between, the fork goes as the log does, and what is read of the past comes out again."""
    base, seq = Replica(), seq_at(records, 10)
    for record in records[:seq]:
        base.apply(record)
    hashes = base.state.hashes()
    fork_seq = seq_at(records, 40)
    recorded = fork_read(records[seq:], base=base, is_before=lambda one: one.seq <= fork_seq)
    assert base.state.hashes() == hashes
    played = run(recorded)
    found = compare_timelines(recorded.behind(END_NS), played.timeline)
    assert (found.same, found.elsewhere, found.only_before, found.only_after) == (4, 0, 0, 0)
    assert measure_effects(played.timeline).complete == 12
    proof = recorded.proof()
    assert proof.checked == proof.equal > 0


def test_the_same_fork_twice_is_the_same_log(records: list[Record]) -> None:
    """A fork is a pure function of the log and the requested changes."""
    changes = RequestedChanges(policy={"algorithm": "spread"})
    one, two = (run(forked(records, 10), changes).digest for _ in range(2))
    assert one == two


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
@pytest.mark.parametrize("part", [0.2, 0.7])
def test_a_faithful_replay_comes_first(path: Path, part: float) -> None:
    """Behind any moment of a storm every recorded decision comes out as recorded, and the fork comes to rest."""
    log = read_log(path)
    recorded = read(log, int(len(log) * part))
    proof = recorded.proof()
    assert proof.checked > 0
    assert not proof.differences
    played = run_fork(
        recorded, recorded.entries, workers=4, until_ns=recorded.timeline.t_ns, settle=True
    )
    assert played.settled
    assert not played.refused


def test_a_planted_difference_is_found_with_both_records(records: list[Record]) -> None:
    """A plan that puts an allocation elsewhere than `place` does is named, both ways, and it alone."""
    altered = planted(records)
    found = verify_decisions(lambda: altered)
    assert (found.checked - found.equal, len(found.differences)) == (1, 1)
    difference = found.differences[0]
    assert (difference.job_id, difference.snapshot_seq) == ("import", difference.seq - 1)
    assert difference.recorded.startswith("place g[")
    assert difference.decided.startswith("place g[")
    assert "on node-" in difference.recorded and "on node-" in difference.decided
    assert difference.recorded != difference.decided


def planted(records: list[Record]) -> list[Record]:
    """Seal the log again with the last row of the second plan moved to another node."""
    chain, out, plans = Chain(), list[Record](), 0
    for record in records:
        decoded = RECORD_DECODER.decode(record.data)
        if decoded.kind == "checkpoint":
            break
        events = []
        for event in decoded.events:
            if isinstance(event, PlanCommitted) and event.placements:
                plans += 1
                one = event.placements[0]
                if plans == 2:
                    rows = (*one.rows[:-1], (one.rows[-1] + 1) % 3)
                    one = msgspec.structs.replace(one, rows=rows)
                    event = msgspec.structs.replace(event, placements=(one,))  # noqa: PLW2901
            events.append(event)
        again = msgspec.structs.replace(decoded, events=tuple(events), prev=chain.head, sum="")
        data, digest = seal(again)
        chain.wrote(record.seq, again, digest)
        out.append(Record(record.seq, record.subject, data))
        if plans == 2:
            break
    return out


def test_a_drain_is_asked_for_before_it_is_done(records: list[Record]) -> None:
    """Each allocation of the node is listed with its new node, and none is left."""
    recorded = forked(records, 150)
    node = NodeId("node-1")
    after = run(recorded, RequestedChanges(drain={node: recorded.fork.state.t_ns}))
    table, row = recorded.fork.state.allocations, recorded.fork.state.fleet.row_of[node]
    there = [
        at for at in table.live_rows().tolist() if table.node[at] == row and table.client[at] < 2
    ]
    found = find_migrations(after.timeline, [node])
    assert len(found) == len(there) > 0
    assert all(one.from_node == node and one.to in ("node-2", "node-3") for one in found)


def test_what_finds_no_place_without_a_node_waits(records: list[Record]) -> None:
    """With two nodes of three taken away the rest is full, and what does not fit waits for capacity."""
    recorded = forked(records, 10)
    gone = (NodeId("node-1"), NodeId("node-2"))
    before, after, found = against(recorded, RequestedChanges(remove_nodes=gone))
    assert not still_waiting(before.timeline)
    waits = still_waiting(after.timeline)
    assert sum(n for classes in waits.values() for n in classes.values()) > 0
    assert measure_effects(after.timeline).lost > 0
    assert found.changed > 0
    assert any(not one.to for one in find_migrations(after.timeline, gone)) or waits


def test_more_nodes_shorten_the_waiting(records: list[Record]) -> None:
    """With one more node what waited is placed at once, and sooner is what the comparison says."""
    recorded = forked(records, 15)
    state = recorded.fork.state
    more = RequestedChanges(add_nodes=clone_nodes(state, NodeId("node-1"), 1))
    before, after, found = against(recorded, more)
    assert measure_effects(before.timeline).waiting["capacity"].allocation_s > 100
    assert "capacity" not in measure_effects(after.timeline).waiting
    assert found.sooner == 4
    assert found.first is not None
    assert found.first.allocation.startswith("report.g[")


def test_waiting_is_counted_from_the_fork_on(records: list[Record]) -> None:
    """Who waits at the fork has waited nothing there yet, though a checkpoint made time pass before it."""
    past = records[: seq_at(records, 30)]
    replica = Replica()
    for record in past:
        replica.apply(record)
    later_ns = replica.chain.t_ns + 5 * SECOND
    data, _ = seal(replica.chain.draft("checkpoint", later_ns, tables=replica.state.hashes()))
    past.append(Record(replica.chain.next_seq, "log.1.checkpoint", data))
    timeline = forked(past, 300).fork_timeline
    assert timeline.begin_ns == later_ns
    timeline.close(later_ns + 10 * SECOND)
    # Two of six run, the others wait.
    assert wait_s_by_job(timeline) == {"report": 4 * 10.0}


def test_a_fork_on_a_snapshot_begins_at_its_checkpoint(records: list[Record]) -> None:
    """Where the fork is the snapshot itself, tasks live by the engine's clock, which begins at the checkpoint."""
    base = Replica()
    for record in records[: seq_at(records, 30)]:
        base.apply(record)
    base.chain.t_ns += 5 * SECOND
    recorded = fork_read([], base=base, is_before=lambda _: True)
    assert recorded.fork_timeline.begin_ns == base.chain.t_ns > base.state.t_ns


def test_a_priority_counts_from_the_fork_on(records: list[Record]) -> None:
    """A job that is not there yet gets its other priority when it comes."""
    recorded = forked(records, 10)
    entries = apply_changes(
        recorded.fork.state, recorded.entries, RequestedChanges(priorities={JobId("report"): 90})
    )
    played = run_fork(recorded, entries, workers=1, until_ns=END_NS, settle=False, keep=True)
    replica = Replica()
    for record in (*recorded.past(), *played.records):
        replica.apply(record)
    assert replica.state.jobs.by_id[JobId("report")].priority == 90
    assert replica.state.jobs.by_id[JobId("import")].priority == 50
    assert replica.chain.head


def test_the_log_of_a_fork_proves_itself(records: list[Record]) -> None:
    """What a fork writes continues where the record was cut: one chain, and every decision comes out again."""
    recorded = forked(records, 10)
    played = run(recorded, RequestedChanges(policy={"algorithm": "spread"}), keep=True)
    log = [*recorded.past(), *played.records]
    found = verify_decisions(lambda: log)
    assert found.checked > 2
    assert not found.differences


def test_unknown_durations_are_drawn_from_finished_ones(records: list[Record]) -> None:
    """Resampled, tasks last as others of their job did; a service has no known end."""
    recorded = forked(records, 10)
    played = run(recorded, resample=True)
    assert played.assumed.recorded == 0
    assert played.assumed.resampled >= 6
    assert played.assumed.for_ever >= 4
    assert measure_effects(played.timeline).complete == 12


def test_a_record_in_which_nothing_was_placed_can_be_forked(records: list[Record]) -> None:
    """Where no duration is known at all, nothing is ever seen to start, and that is counted."""
    asked = next(one.seq for one in records if b'"job.registered"' in one.data)
    recorded = read(records[:asked], asked)
    played = run(recorded)
    assert played.timeline.totals.placements == 4
    assert played.assumed.never_started == played.assumed.for_ever == 4


def test_a_batch_without_an_end_of_its_own_runs_on() -> None:
    """`import` crashed again and again before `report` came: the fork gives `report` no end, and says so."""
    crashing = msgspec.structs.replace(
        PROFILE,
        runs=(
            RunProfile(job="import", lasts="1s", fail=1.0),
            RunProfile(job="report", lasts="600s"),
        ),
    )
    records = written(profile=crashing)
    seq = seq_at(records, 67)
    recorded = read(records[:seq], seq)
    question = WhatIfQuestion(changes=RequestedChanges(), until_ns=recorded.timeline.t_ns)
    found = run_what_if(recorded, question)
    own = [name for name, _ in recorded.names.groups].index("report")
    placed = found.last.timeline.placed
    ended = placed.column("code")[placed.column("group") == own]
    assert len(ended) > 0 and not ended.any()
    texts = build_what_if_report(recorded, question, found).assumptions.texts
    assert any("without end (no end of their group or job is recorded)" in one for one in texts)


def test_a_task_that_outlasted_all_recorded_ends_is_told_as_that() -> None:
    """Some of `import` ended and others have run longer than these: not that no end is recorded, but so many ends."""
    uneven = msgspec.structs.replace(
        PROFILE,
        starts=StartProfile(after=DurationSpec(uniform=("100ms", "101ms"))),
        runs=(RunProfile(job="import", lasts=DurationSpec(uniform=("5s", "200s"))),),
    )
    records = written(profile=uneven)
    recorded = read(records[: seq_at(records, 60)], seq_at(records, 60))
    table = recorded.fork.state.allocations
    mine = table.rows_of(JobId("import"))
    ends = int((table.client[mine] == COMPLETE).sum())
    running = len(mine) - ends
    assert ends and running
    question = WhatIfQuestion(changes=RequestedChanges(), until_ns=recorded.timeline.t_ns)
    found = run_what_if(recorded, question)
    assumed = found.last.assumed
    assert (assumed.outlasted, assumed.outlasted_least, assumed.outlasted_most) == (
        running,
        ends,
        ends,
    )
    said = build_what_if_report(recorded, question, found).assumptions.texts[1]
    ended = f"{ends} recorded end{'s' if ends > 1 else ''}"
    assert (
        f"{running} without end (they have run longer than all {ended} of their group or job)"
        in said
    )
    assert f"{assumed.for_ever} without end (no end of their group" in said


def test_a_start_of_a_job_without_one_is_drawn_from_others_and_said_to_be() -> None:
    """`report` never started before the fork: its delays are those of other jobs; `import` has its own."""
    slow = msgspec.structs.replace(PROFILE, starts=StartProfile(after=DurationSpec(fixed="30s")))
    records = written(profile=slow)
    seq = seq_at(records, 25)
    recorded = read(records[:seq], seq)
    question = WhatIfQuestion(changes=RequestedChanges(), until_ns=END_NS, settle=False)
    found = run_what_if(recorded, question)
    assert found.last.assumed.never_started
    seq = seq_at(records, 45)
    recorded = read(records[:seq], seq)
    found = run_what_if(recorded, question)
    told = found.last.assumed.started_as_others
    assert told and not found.last.assumed.never_started
    texts = build_what_if_report(recorded, question, found).assumptions.texts
    assert (
        f"{told} start as those of other jobs: no start of their group or job is recorded" in texts
    )


def test_a_cut_of_the_unchanged_fork_is_said_too(records: list[Record]) -> None:
    """Where the first fork met its bound or did not settle, the report says so: its figures are compared."""
    recorded = forked(records, 10)
    question = WhatIfQuestion(
        changes=RequestedChanges(policy={"algorithm": "spread"}), until_ns=END_NS
    )
    found = run_what_if(recorded, question)
    assert not any("cut off" in one for one in texts_of(recorded, question, found))
    found.before.settled = False
    cut = "the unchanged fork was cut off before it settled"
    assert cut in texts_of(recorded, question, found)
    found.before.records_max = 7
    cut = "the unchanged fork was cut off at its bound of 7 records"
    assert cut in texts_of(recorded, question, found)


def texts_of(recorded: RecordedLog, question: WhatIfQuestion, found: WhatIfAnswer) -> list[str]:
    """The assumptions of a report."""
    return list(build_what_if_report(recorded, question, found).assumptions.texts)


def test_a_fork_has_a_bound_on_its_work(
    records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at so many records beside those that were read, and says that it met the bound."""
    recorded = forked(records, 10)
    monkeypatch.setattr(fork, "RECORDS_MAX", 10 - len(recorded.records))
    question = WhatIfQuestion(changes=RequestedChanges(), until_ns=END_NS)
    found = run_what_if(recorded, question)
    assert not found.last.settled and found.last.records_max == 10
    texts = build_what_if_report(recorded, question, found).assumptions.texts
    assert "the fork was cut off at its bound of 10 records" in texts


def test_what_was_evicted_or_stopped_is_not_completed(records: list[Record]) -> None:
    """A drain of a node ends what runs there: the figures count it as neither completed nor failed."""
    recorded = forked(records, 10)
    unchanged, drained, _ = against(
        recorded, RequestedChanges(drain={NodeId("node-1"): 1 * SECOND})
    )
    stopped = int((drained.timeline.placed.column("told") != 0).sum())
    assert stopped > 0
    placed = drained.timeline.placed
    by_itself = (placed.column("code") == COMPLETE) & (placed.column("told") == 0)
    assert measure_effects(drained.timeline).complete == int(by_itself.sum())
    assert measure_effects(unchanged.timeline).complete == 12


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (RequestedChanges(policy={"algorithms": "spread"}), "algorithms"),
        (RequestedChanges(policy={"algorithm": "best"}), "best"),
        (RequestedChanges(remove_nodes=(NodeId("node-9"),)), "no node 'node-9'"),
        (RequestedChanges(drain={NodeId("node-9"): 1}), "no node 'node-9'"),
        (RequestedChanges(priorities={JobId("nothing"): 50}), "no job 'nothing'"),
        (RequestedChanges(priorities={JobId("web"): 101}), "1 to 100, was 101"),
        (RequestedChanges(add_nodes=(spec(1),)), "node 'node-1' exists already"),
    ],
)
def test_what_cannot_be_wished_for_is_named(
    records: list[Record], changes: RequestedChanges, said: str
) -> None:
    """A change of something that is not there is refused in words that name it."""
    recorded = forked(records, 10)
    with pytest.raises(CommandInvalid, match=said):
        apply_changes(recorded.fork.state, recorded.entries, changes)


def test_progress_names_each_phase_and_how_much_of_it_is_done(records: list[Record]) -> None:
    """The phases come in order, none passes its total, and the verification reaches it."""
    seen: list[tuple[str, int, int, str]] = []
    question = WhatIfQuestion(
        changes=RequestedChanges(policy={"algorithm": "spread"}), until_ns=END_NS, settle=False
    )
    run_what_if(forked(records, 10), question, progress=lambda *one: seen.append(one))
    assert list(dict.fromkeys((phase, unit) for phase, _, _, unit in seen)) == [
        ("running the unchanged fork", "s of virtual time"),
        ("verifying recorded decisions", "records"),
        ("running the changed fork", "s of virtual time"),
    ]
    assert all(0 <= done <= total for _, done, total, _ in seen)
    assert ("verifying recorded decisions", 2 * len(records), 2 * len(records), "records") in seen
