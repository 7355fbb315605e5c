"""The view: what it publishes and when, what its fence lets through, what it answers."""

from collections.abc import Iterable
from itertools import pairwise

import msgspec
import pytest

from schemas.allocations import AllocationsReported, AllocDetail
from schemas.base import JobId, NodeId
from schemas.dead_letter import DeadLetter
from schemas.evaluations import Blocked, EvaluationEnded, EvaluationsCreated, NewEvaluation, Waiting
from schemas.jobs import JobsCollected, JobStopped, SubmissionRefused
from schemas.nodes import NodeRefused, NodesCollected, NodesStatusChanged
from schemas.plans import Stops
from schemas.projections import NodeProjection
from services.view import publisher
from services.view.snapshot_writer import evenly_spread
from shared.core.runtime.desired_allocs import read_desired_allocs
from shared.core.runtime.messages import (
    Ack,
    Message,
    Open,
    PutRefused,
    Reconnected,
    Reply,
    Send,
    SetTimer,
    Stop,
    Timer,
)
from shared.core.state.ids import alloc_id, eval_id, make_key
from shared.core.state.state import TABLES
from shared.protocol import subjects
from tests.unit.view.view_story import MS, Story, puts

RUNNING, COMPLETE, FAILED, LOST = 1, 2, 3, 4


def small(**settings: int) -> Story:
    """Two nodes, and a job of two allocations, one on each."""
    story = Story(**settings)
    story.node("n1")
    story.node("n2")
    story.job("j", count=2)
    story.plan("j", (0, 1))
    return story


def end(story: Story, seq: int, status: str = "complete") -> int:
    """End the evaluation that the transaction at `seq` created."""
    return story.log(EvaluationEnded(key=make_key(seq, 0), status=status))


def desired(value: object) -> list[tuple[str, str]]:
    projection = msgspec.convert(value, NodeProjection)
    return [(one.alloc_id, one.desired) for one in read_desired_allocs(projection)]


# ---- publishing ----


def test_nothing_is_published_before_the_log_is_replayed() -> None:
    """A view that has not caught up publishes nothing: what it holds is old."""
    story = small()
    assert not puts(story.feed())
    assert puts(story.start())


def test_everything_is_published_at_first() -> None:
    """After catching up every node, job and verdict has its value, and the names of services."""
    story = small()
    seen = story.land(story.start())
    nodes = {subjects.node(n) for n in ("n1", "n2")} | {subjects.view_node(n) for n in ("n1", "n2")}
    jobs = {subjects.view_job("j"), subjects.view_submission("s-j-0")}
    assert set(seen) == nodes | jobs | {subjects.VIEW_SERVICE_NAMES}
    assert seen[subjects.view_job("j")]["groups"]["web"]["pending"] == 2
    assert {(v["cluster_id"], v["seq"] <= 6) for v in seen.values()} == {("c1", True)}


def test_a_node_gets_its_whole_desired_set() -> None:
    """A projection holds every allocation of the node that has not ended, with its order; ended ones are left out."""
    story = small()
    story.plan("j", (0,))
    first, other, second = (alloc_id(make_key(s, o)) for s, o in ((6, 0), (6, 1), (7, 0)))
    seen = story.land(story.start())
    assert desired(seen[subjects.node("n1")]) == [(first, "run"), (second, "run")]
    story.plan("j", (), stops=(Stops(rows=(0,)), Stops(rows=(1,), client_status="lost")))
    seen = story.land(story.later())
    assert desired(seen[subjects.node("n1")]) == [(first, "stop"), (second, "run")]
    assert desired(seen[subjects.node("n2")]) == []
    story.log(AllocationsReported(nodes=(0,), numbers=(7,), rows=(0,), statuses=(COMPLETE,)))
    seen = story.land(story.later(ms=250))
    assert desired(seen[subjects.node("n1")]) == [(second, "run")]
    assert seen[subjects.node("n1")]["reports_seen"] == 7
    assert other


def test_only_what_changed_is_published() -> None:
    """A node that a transaction did not touch keeps its value; liveness is no news to the node itself."""
    story = small()
    story.land(story.start())
    story.log(NodesStatusChanged(rows=(1,), status="down"))
    assert set(story.land(story.later())) == {subjects.view_node("n2")}
    story.log(AllocationsReported(nodes=(0,), numbers=(3,)))
    assert not puts(story.later(ms=100))
    assert set(story.land(story.later(ms=100))) == {subjects.node("n1")}


def test_that_a_report_was_seen_waits_for_nothing_but_the_last_word() -> None:
    """A node without a recent desired set gets the acknowledgement of its report at once, with its desired set."""
    story = small()
    story.land(story.start())
    story.later(ms=1000)
    story.log(AllocationsReported(nodes=(0,), numbers=(3,)))
    assert set(story.land(story.feed())) == {subjects.node("n1")}
    story.log(AllocationsReported(nodes=(0,), numbers=(4,)))
    assert not puts(story.later(ms=60))
    story.plan("j", (0,))
    (put,) = [one for one in puts(story.later(ms=60)) if one.subject == subjects.node("n1")]
    assert msgspec.json.decode(put.data)["reports_seen"] == 4


def test_changes_are_collected_for_50_ms() -> None:
    """The first change is published at once, what follows within 50 ms by one timer."""
    story = small()
    story.land(story.start())
    story.log(NodesStatusChanged(rows=(1,), status="down"))
    assert len(story.land(story.later(ms=51))) == 1
    story.log(NodesStatusChanged(rows=(1,), status="ready"))
    effects = story.later(ms=10)
    story.log(NodesStatusChanged(rows=(0,), status="down"))
    effects += story.later(ms=10)
    assert not puts(effects)
    timers = [one for one in effects if isinstance(one, SetTimer)]
    assert [one.at_ns for one in timers] == [story.now_ns + 30 * MS]
    story.now_ns = timers[0].at_ns
    fired = story.feed(Timer("publish", story.now_ns))
    assert set(story.land(fired)) == {subjects.view_node("n1"), subjects.view_node("n2")}


def test_a_change_waits_for_what_follows_from_it() -> None:
    """Where a view gathers, a change and the next one a few milliseconds later are published as one, soon."""
    story = small(gather_ns=15 * MS)
    story.start()
    story.land(story.later(ms=100))
    story.land(story.later(ms=100))
    story.log(NodesStatusChanged(rows=(1,), status="down"))
    effects = story.later(ms=4)
    story.log(NodesStatusChanged(rows=(0,), status="down"))
    effects += story.later(ms=4)
    assert not puts(effects)
    (timer,) = [one for one in effects if isinstance(one, SetTimer) and one.name == "publish"]
    assert timer.at_ns == story.now_ns + 11 * MS
    story.now_ns = timer.at_ns
    fired = story.land(story.feed(Timer("publish", story.now_ns)))
    assert set(fired) == {subjects.view_node("n1"), subjects.view_node("n2")}


def test_much_to_publish_yields_to_planning() -> None:
    """While plans keep coming a tick that cost much is followed by a longer pause; without plans by the usual one."""
    story = Story()
    rows = [story.node(f"n{number}") - 1 for number in range(300)]
    story.job("j", count=300)
    story.land(story.start())
    story.land(story.later())
    for is_planning in (True, False):
        for row in range(len(rows)):
            if is_planning:
                story.plan("j", (row,))
            else:
                story.log(NodesStatusChanged(rows=(row,), status="down"))
        assert len(story.land(story.later(ms=500))) >= 300
        story.log(NodesStatusChanged(rows=(0,), status="ready"))
        assert bool(story.land(story.later(ms=51))) is not is_planning


def test_a_value_waits_for_the_one_before_it() -> None:
    """A subject never has two Puts on its way, and the second is fenced by the answer to the first."""
    story = small()
    first = story.start()
    story.log(NodesStatusChanged(rows=(1,), status="down"))
    assert not puts(story.later())
    stands = story.land(first)
    (put,) = puts(story.later())
    assert put.subject in stands
    assert put.expected == story.stands[put.subject][0]


def test_the_fence_yields_to_newer_and_overrides_older() -> None:
    """A refused value goes out again only over an older seq, over another cluster or over nothing."""
    stamps = {(("c1", 999)): False, ("c1", 1): True, ("c0", 999): True, None: True}
    for stamp, again in stamps.items():
        story = small()
        story.land(story.start())
        story.log(NodesStatusChanged(rows=(1,), status="down"))
        (put,) = puts(story.later())
        data = (
            b""
            if stamp is None
            else msgspec.json.encode(dict(zip(("cluster_id", "seq"), stamp, strict=True)))
        )
        repeated = puts(story.later(PutRefused(put.subject, 70, data)))
        assert bool(repeated) is again, stamp
        assert [one.expected for one in repeated] == [70] * again


def test_everything_again_when_the_bus_came_back() -> None:
    """After a reconnect all is published again, and values whose answers were lost are not waited for."""
    story = small()
    effects = story.start()
    assert {p.subject for p in puts(story.later(Reconnected()))} == {
        p.subject for p in puts(effects)
    }


def test_a_node_with_too_much_on_it_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection that no message holds is a dead letter, once; when it fits again it is published."""
    story = Story()
    story.node("n1")
    story.job("a", count=2)
    story.land(story.start())
    monkeypatch.setattr(publisher, "VALUE_BYTES_MAX", 700)
    for _ in range(50):
        story.plan("a", (0,))
    effects = story.later(Timer("tick", 0))
    sends = [one for one in effects if isinstance(one, Send)]
    story.land(effects)
    assert [one.subject for one in sends] == [subjects.dead(subjects.node("n1"))]
    letter = msgspec.json.decode(sends[0].data, type=DeadLetter)
    assert letter.subject == subjects.node("n1")
    assert "node n1: " in letter.reason and "gets no changes" in letter.reason
    story.plan("a", (0,))
    effects = story.later(Timer("tick", 0))
    assert not [one for one in effects if isinstance(one, Send)]
    story.land(effects)
    monkeypatch.setattr(publisher, "VALUE_BYTES_MAX", 1_000_000)
    story.plan("a", (0,))
    value = story.land(story.later(Timer("tick", 0)))[subjects.node("n1")]
    assert len(desired(value)) == 52


def of_jobs(landed: Iterable[str]) -> list[str]:
    return [subject for subject in landed if subject.startswith("view.job.")]


def test_a_thousand_puts_a_tick() -> None:
    """A fleet of thousands is published in chunks of at most 1,000 a kind, and all of it in the end."""
    story = Story()
    for number in range(1500):
        story.node(f"n{number}")
    effects = story.start()
    seen: dict[str, object] = {}
    for _ in range(3):
        batch = puts(effects)
        assert len([p for p in batch if p.subject.startswith("node.")]) <= 1000
        assert len([p for p in batch if p.subject.startswith("view.node.")]) <= 1000
        seen.update(story.land(effects))
        effects = story.later(Timer("publish", 0), ms=1000)
    del seen[subjects.VIEW_SERVICE_NAMES]
    assert len(seen) == 3000
    assert not puts(effects)


def test_after_a_rush_the_rest_goes_tick_by_tick() -> None:
    """Thousands of changed jobs are published in a few ticks once no plan arrives any more, not in as many seconds."""
    story = Story()
    story.node("n1")
    for number in range(3_500):
        story.job(f"j{number}")
    told = len(of_jobs(story.land(story.start())))
    for _ in range(2):
        told += len(of_jobs(story.land(story.later(Timer("publish", 0), ms=200))))
    assert told == 3_000
    told += len(of_jobs(story.land(story.later(Timer("publish", 0), ms=1000))))
    assert told == 3_500


def test_in_a_rush_numbers_for_people_go_once_a_second() -> None:
    """When many nodes change all the time, their orders go at once and their summaries once a second."""
    story = Story()
    for number in range(200):
        story.node(f"n{number}")
    story.job("j", count=400)
    story.land(story.start())
    words: dict[str, int] = {"node": 0, "view.node": 0}
    for _ in range(20):
        story.plan("j", tuple(range(200)))
        for subject in story.land(story.later(ms=100)):
            for kind in words:
                words[kind] += subject.startswith(f"{kind}.")
    assert words["node"] == 20 * 200
    assert 200 <= words["view.node"] <= 3 * 200
    story.log(NodesStatusChanged(rows=(1,), status="down"))
    story.land(story.later(ms=1000))
    story.log(NodesStatusChanged(rows=(1,), status="ready"))
    assert subjects.view_node("n1") in story.land(story.later(ms=60))


def test_a_foreign_registration_is_told_to_its_host_only() -> None:
    """A refused second host changes one text in the projection, nothing that the legitimate agent obeys."""
    story = small()
    before = story.land(story.start())[subjects.node("n1")]
    refusal = {"code": "host_mismatch", "reason": "owned by another host"}
    story.log(NodeRefused(node_id=NodeId("n1"), host_id="h-evil", boot_id="b9", **refusal))
    after = story.land(story.later())[subjects.node("n1")]
    assert after.pop("refused") == "host h-evil: host_mismatch: owned by another host"
    assert {**before, "seq": 0} == {**after, "seq": 0}


def test_what_left_is_closed() -> None:
    """A collected node's subjects say that nothing is desired of it, and a collected job's that it is dead."""
    story = small()
    story.land(story.start())
    story.log(NodesCollected(rows=(1,)), JobsCollected(job_ids=(JobId("j"),)))
    effects = story.later()
    assert all(put.ttl_s for put in puts(effects))
    seen = story.land(effects)
    assert desired(seen[subjects.node("n2")]) == []
    assert (
        seen[subjects.view_job("j")]["status"] == "dead" and seen[subjects.view_job("j")]["purged"]
    )
    assert story.ask("cluster", nonsense=1)["error"]["path"] == "nonsense"


def test_verdicts_expire() -> None:
    """A verdict is published once, under a time to live of an hour, refusals with their reason."""
    story = small()
    story.land(story.start())
    story.log(
        SubmissionRefused(
            submission_id="s9",
            digest="d",
            verb="stop",
            job_id=JobId("x"),
            code="not_found",
            reason="no",
        )
    )
    effects = story.later()
    (put,) = [one for one in puts(effects) if one.subject == subjects.view_submission("s9")]
    assert put.ttl_s == 3600
    value = story.land(effects)[put.subject]
    assert (value["status"], value["error"]) == ("refused", {"code": "not_found", "message": "no"})


def test_a_gap_in_the_log_stops_it() -> None:
    """A view that cannot follow the log stops instead of publishing what it does not know."""
    story = small()
    story.start()
    last = story.records[-1]
    effects = story.view.step([msgspec.structs.replace(last, seq=last.seq + 2)], story.now_ns)
    assert [type(one) for one in effects] == [Stop]


# ---- questions ----


def test_job_status_words() -> None:
    """A job is running while anything of it lives, pending while an evaluation is open, else dead."""
    story = Story()
    story.node("n1")
    seq = story.job("j", job_type="batch")
    story.start()
    assert story.ask("job", id="j")["job"]["status"] == "pending"
    story.plan("j", (0,))
    end(story, seq)
    assert story.ask("job", id="j")["job"]["status"] == "running"
    story.log(AllocationsReported(rows=(0,), statuses=(COMPLETE,)))
    answer = story.ask("job", id="j")
    assert (answer["job"]["status"], answer["groups"]["web"]["complete"]) == ("dead", 1)


def test_job_answer() -> None:
    """The status of a job names its groups, allocations, what waits and why, and its evaluations, newest first."""
    story = small()
    end(story, 5)
    waiting = {"web": Waiting(count=3, reasons=("memory exhausted on 2 nodes",))}
    new = NewEvaluation(
        job_id=JobId("j"), blocked=Blocked(waiting=waiting), previous=make_key(5, 0), priority=70
    )
    seq = story.log(EvaluationsCreated(evaluations=(new,)))
    story.start()
    answer = story.ask("job", id="j", limit=1)
    assert answer["seq"] == len(story.records)
    assert (answer["placed"], answer["allocations_total"]) == ({"web": 2}, 2)
    (first,) = answer["allocations"]
    assert (first["id"], first["node"]) == (alloc_id(make_key(6, 0)), "n1")
    assert first["client_status"] == "pending"
    (line,) = answer["waiting"]
    assert (line["group"], line["n"], line["class"]) == ("web", 3, "capacity")
    assert line["eval_id"] == eval_id(make_key(seq, 0))
    assert [one["status"] for one in answer["evaluations"]] == ["blocked", "complete"]
    assert story.ask("eval", id=eval_id(make_key(5, 0)))["follow_ups"][0]["id"] == line["eval_id"]


def test_a_stopped_job_is_dead() -> None:
    """A stopped job is dead and desires nothing, while its allocations still end."""
    story = small()
    story.log(JobStopped(submission_id="s2", digest="d", job_id=JobId("j")))
    story.start()
    answer = story.ask("job", id="j")
    assert (answer["job"]["status"], answer["groups"]["web"]["desired"]) == ("dead", 0)


def test_alloc_by_prefix() -> None:
    """An allocation is found by the beginning of its id; a beginning of several is refused with their ids."""
    story = small()
    for _ in range(40):
        story.plan("j", (0,))
    tasks = b'{"t":{"state":"dead","failed":true,"exit_code":3,"restarts":2}}'
    detail = AllocDetail(row=0, tasks=msgspec.Raw(tasks))
    story.log(AllocationsReported(rows=(0,), statuses=(3,), details=(detail,)))
    story.start()
    shown = alloc_id(make_key(6, 0))
    answer = story.ask("alloc", id=shown[:13])
    assert answer["allocation"]["id"] == shown
    assert answer["why"] == "task t ended with exit code 3 after 2 restarts"
    assert answer["tasks"]["t"]["events"] == []
    many = story.ask("alloc", id="")["error"], story.ask("alloc", id=shown[0])["error"]
    assert [one["code"] for one in many] == ["invalid", "ambiguous"]
    assert shown[0] in many[1]["message"]
    assert story.ask("alloc", id="zz")["error"]["code"] == "invalid"


def test_job_versions_and_submissions() -> None:
    """The text of a job version and the verdict of a submission can be asked for."""
    story = small()
    story.start()
    assert story.ask("job_version", id="j", version=0)["spec"] == {"ID": "x"}
    assert story.ask("job_version", id="j", version=7)["error"]["code"] == "not_found"
    assert story.ask("submission", id="s-j-0")["verdict"]["eval_id"] == eval_id(make_key(5, 0))


def test_lists() -> None:
    """Lists are filtered, cut at the limit, and tell how many there were."""
    story = small()
    story.log(NodesStatusChanged(rows=(1,), status="down"))
    story.log(AllocationsReported(rows=(0,), statuses=(RUNNING,)))
    story.start()
    assert [n["id"] for n in story.ask("nodes", status="down")["nodes"]] == ["n2"]
    nodes = story.ask("nodes", limit=1)
    assert (len(nodes["nodes"]), nodes["total"]) == (1, 2)
    assert nodes["nodes"][0]["used"] == {"cpu_mhz": 100, "memory_mib": 64, "disk_mib": 0}
    assert story.ask("node", id="n1")["allocations_total"] == 1
    assert story.ask("allocs", status="running", job_id="j")["total"] == 1
    assert story.ask("allocs", node_id="n2")["total"] == 1
    assert story.ask("jobs")["jobs"][0]["id"] == "j"
    assert story.ask("evals", status="pending")["total"] == 1


def test_answers_fit_a_message() -> None:
    """A list that would be too long for the bus is cut, with its whole length told; the rest can be asked for."""
    story = Story()
    for number in range(3000):
        story.node(f"n{number:04}", node_class="x" * 300)
    story.start()
    seen: list[str] = []
    while len(seen) < 3000:
        answer = story.ask("nodes", limit=3000, offset=len(seen))
        assert len(msgspec.json.encode(answer)) < 1 << 20
        assert answer["total"] == 3000
        assert answer["nodes"]
        seen += [one["id"] for one in answer["nodes"]]
    assert seen == sorted(set(seen))


def test_cluster_answer() -> None:
    """The cluster says who leads, whether the bus fsyncs, how much there is, and its hashes when asked."""
    story = small()
    story.start()
    answer = story.ask("cluster", id="hashes")
    assert (answer["cluster_id"], answer["epoch"], answer["holder"]) == ("c1", 1, "a1")
    assert answer["fsync"] is True
    assert answer["counts"]["allocations"]["pending"] == 2
    assert set(answer["tables"]) == TABLES
    assert story.ask("cluster")["tables"] == {}


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"limit":"x"}', b"\xff", b"[" * 5000])
def test_bad_questions_are_answered(body: bytes) -> None:
    """A question that does not decode is answered with an error; without a reply subject it is a dead letter."""
    story = small()
    story.start()
    asked = Message("query", subjects.query("jobs"), body, 1, reply=True)
    (reply,) = story.later(asked, ms=1)
    assert isinstance(reply, Reply)
    assert msgspec.json.decode(reply.data)["error"]["code"] == "invalid"
    told = story.later(msgspec.structs.replace(asked, reply=False), ms=1)
    assert [type(one) for one in told] == [Send, Ack]


def test_a_question_waits_for_its_seq() -> None:
    """A question about a seq not yet seen is answered when it comes, and refused after 2 s."""
    story = small()
    story.start()
    effects = story.feed(story.message("jobs", min_seq=7))
    assert not [one for one in effects if isinstance(one, Reply)]
    story.node("n3")
    assert [one for one in story.later() if isinstance(one, Reply)]
    story.feed(story.message("jobs", min_seq=99))
    replies = [one for one in story.later(Timer("held", 0), ms=2000) if isinstance(one, Reply)]
    assert msgspec.json.decode(replies[0].data)["error"]["code"] == "unavailable"


def test_dead_letters_are_listed() -> None:
    """With `reads_dead_letters` the view reads the stream of dead letters and lists them, newest first."""
    story = Story(reads_dead_letters=True)
    assert Open("dead", 1) in story.feed(Reconnected())
    letter = b'{"subject":"cmd.plan","reason":"no JSON","at_ns":5,"body_base64":"YWJj"}'
    for seq, data in ((3, letter), (4, b"?")):
        message = Message("dead", subjects.dead("cmd.plan"), data, seq, stream_seq=seq)
        assert Ack(seq) in story.feed(message)
    story.start()
    newest, oldest = story.ask("dead")["messages"]
    assert newest["id"] == "4"
    same = {"id": "3", "subject": "cmd.plan", "reason": "no JSON", "at": 5, "size": 3}
    assert oldest == {**same, "at_text": ""}
    assert Open("dead", 5) in story.feed(Reconnected())


def test_an_allocation_goes_by_its_name() -> None:
    """job.group[index] finds the newest of that name, one that has not ended before one that has."""
    story = small()
    story.start()
    first = story.ask("alloc", id="j.web[0]")["allocation"]
    assert (first["name"], first["node"]) == ("j.web[0]", "n1")
    story.log(AllocationsReported(nodes=(0,), numbers=(1,), rows=(0,), statuses=(COMPLETE,)))
    story.plan("j", (1,))
    assert story.ask("alloc", id="j.web[0]")["allocation"]["node"] == "n2"
    for name in ("j.web[9]", "j.api[0]", "k.web[0]", "j.api", "k.web"):
        assert story.ask("alloc", id=name)["error"]["code"] == "not_found"


def test_an_allocation_goes_by_its_group() -> None:
    """job.group finds the only allocation of the group; several are listed; ended ones only if there is no other."""
    story = small()
    story.start()
    error = story.ask("alloc", id="j.web")["error"]
    assert error["code"] == "ambiguous"
    assert error["message"] == "'j.web' is not unique among allocations: j.web[0], j.web[1]"
    ended = AllocationsReported(nodes=(0,), numbers=(1,), rows=(0,), statuses=(COMPLETE,))
    story.log(ended)
    assert story.ask("alloc", id="j.web")["allocation"]["name"] == "j.web[1]"
    story.log(msgspec.structs.replace(ended, numbers=(2,), rows=(1,)))
    assert story.ask("alloc", id="j.web")["error"]["code"] == "ambiguous"


def test_why_a_task_is_not_running_yet() -> None:
    """Between two runs the last event of the task says what it waits for."""
    story = small()
    story.start()
    event = {"kind": "Restarting", "message": "in 15 s, within policy", "t_ns": 1}
    tasks = {"main": {"state": "pending", "restarts": 1, "events": [event]}}
    detail = AllocDetail(row=0, tasks=msgspec.Raw(msgspec.json.encode(tasks)))
    story.log(
        AllocationsReported(nodes=(0,), numbers=(1,), rows=(0,), statuses=(0,), details=(detail,))
    )
    answer = story.ask("alloc", id="j.web[0]")
    assert answer["why"] == "task main ended: Restarting in 15 s, within policy"


@pytest.mark.parametrize(
    ("status", "said", "why"),
    [
        (COMPLETE, "allocation exceeded max_run_duration", "allocation exceeded max_run_duration"),
        (COMPLETE, "Leader Task Dead", "all tasks ended successfully"),
        (FAILED, "the cluster was not heard of for 60 s", "the cluster was not heard of for 60 s"),
    ],
)
def test_why_a_node_ended_an_allocation(status: int, said: str, why: str) -> None:
    """What its node ended it for is the reason where no task failed, unless that is no news."""
    story = small()
    story.start()
    event = {"kind": "Killing", "message": said, "t_ns": 1}
    tasks = {"main": {"state": "dead", "events": [event]}}
    detail = AllocDetail(row=0, tasks=msgspec.Raw(msgspec.json.encode(tasks)))
    story.log(
        AllocationsReported(
            nodes=(0,), numbers=(1,), rows=(0,), statuses=(status,), details=(detail,)
        )
    )
    assert story.ask("alloc", id="j.web[0]")["why"] == why


def test_older_sets_are_spread_over_the_log() -> None:
    """Whatever order they come in, what stays of a long log has no gap of more than twice its share."""
    kept: list[int] = []
    for seq in range(100, 100_001, 100):
        kept = evenly_spread([*kept, seq], 12)
        assert len(kept) <= 12
    gaps = [after - before for before, after in pairwise([0, *kept])]
    assert max(gaps) <= 2 * 100_000 / 12
    assert (
        evenly_spread([5, 6, 7], 0) == []
        and evenly_spread([], 3) == []
        and evenly_spread([9], 1) == [9]
    )
