"""`query.plan` and the versions of a job: what would change, told without changing anything."""

import msgspec

from schemas.base import JobId
from schemas.evaluations import Blocked, EvaluationsCreated, NewEvaluation, Waiting
from schemas.nodes import NodesStatusChanged
from shared.jobspec.diff import diff_jobs
from shared.jobspec.submission import read_submission
from tests.unit.view.view_story import Story

JOB = {
    "ID": "web",
    "Datacenters": ["dc1"],
    "TaskGroups": [
        {
            "Name": "web",
            "Count": 2,
            "Tasks": [
                {
                    "Name": "server",
                    "Driver": "raw_exec",
                    "Config": {"command": "true"},
                    "Resources": {"CPU": 1000, "MemoryMB": 64},
                }
            ],
        }
    ],
}


def ready(nodes: int = 2) -> Story:
    story = Story()
    for number in range(nodes):
        story.node(f"n{number}", attributes={"driver.raw_exec": "1"}, disk_mib=10_000)
        story.log(NodesStatusChanged(rows=(number,), status="ready"))
    story.start()
    return story


def edited(count: int = 2, command: str = "true") -> dict[str, object]:
    job = msgspec.json.decode(msgspec.json.encode(JOB))
    job["TaskGroups"][0]["Count"] = count
    job["TaskGroups"][0]["Tasks"][0]["Config"]["command"] = command
    return job


def test_a_new_job_is_planned_without_being_registered() -> None:
    """A plan tells placements, nodes with scores, and the whole job as added; the state stays as it was."""
    story = ready()
    before = story.view.replica.state.hashes()
    answer = story.ask("plan", Job=JOB)
    assert answer["changes"] is True
    assert answer["groups"]["web"]["place"] == 2
    assert sum(one["count"] for one in answer["nodes"]) == 2
    assert all(0 < one["score"] <= 1 for one in answer["nodes"])
    assert answer["unplaced"] == {}
    assert story.view.replica.state.hashes() == before
    assert story.ask("jobs")["total"] == 0


def test_what_finds_no_room_is_told_with_its_reason() -> None:
    """Two nodes hold eight of 1,000 MHz: the rest is unplaced, and says why."""
    answer = ready().ask("plan", Job=edited(count=11))
    assert answer["unplaced"]["web"]["n"] == 3
    assert answer["unplaced"]["web"]["class"] == "capacity"
    assert "cpu exhausted" in answer["unplaced"]["web"]["reasons"][0]
    assert answer["groups"]["web"]["place"] == 11


def test_a_memory_max_above_every_node_is_warned_of() -> None:
    """A plan warns as a submission does, with the task and the largest node; what fits or is unlimited is quiet."""

    def warned(memory_max: int) -> list[str]:
        job = edited()
        job["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMaxMB"] = memory_max  # type: ignore[index]
        found: list[str] = ready().ask("plan", Job=job)["warnings"]
        return found

    (said,) = warned(5000)
    assert said == (
        "group 'web': task 'server': resources: memory_max 5000 MiB:"
        " above the memory of every node in pool 'default'; the largest, n0, has 4096 MiB"
    )
    assert warned(4096) == warned(0) == []


def test_a_job_that_runs_on_every_node_is_planned_node_by_node() -> None:
    """A sysbatch plan places its count on each node, and says which of it finds no room there."""
    answer = ready(3).ask("plan", Job={**JOB, "Type": "sysbatch"})
    assert {one["node"]: one["count"] for one in answer["nodes"]} == {"n0": 2, "n1": 2, "n2": 2}
    assert answer["groups"]["web"]["place"] == 6 and answer["unplaced"] == {}
    answer = ready(3).ask("plan", Job={**edited(count=9), "Type": "sysbatch"})
    assert answer["unplaced"]["web"]["n"] == 15
    assert answer["unplaced"]["web"]["reasons"] == ["cpu exhausted on 3 of 3 nodes"]


def test_an_invalid_job_is_refused_like_a_submission() -> None:
    """A plan of no job names the fault and its path."""
    answer = ready().ask("plan", Job={"ID": "x", "TaskGroups": []})
    assert answer["error"]["code"] == "invalid"
    assert answer["error"]["path"]


def register(story: Story, job: dict[str, object], version: int) -> None:
    """Register a job whose text and groups are those of a real submission, and place it where it is the first."""
    read = read_submission(msgspec.json.encode({"Job": job}), "submit")
    story.text("web", version, read.spec, read.groups)


def test_a_change_is_told_by_field_and_by_group() -> None:
    """A count that grows ignores what runs; another command replaces it; the same text changes nothing."""
    story = ready()
    register(story, edited(), 0)
    story.plan("web", (0, 1))
    story.feed()
    same = story.ask("plan", Job=edited())
    assert (same["changes"], same["diff"], same["groups"]["web"]["ignore"]) == (False, [], 2)
    more = story.ask("plan", Job=edited(count=3))
    assert [(one["kind"], one["path"], one["old"], one["new"]) for one in more["diff"]] == [
        ("edited", "TaskGroups[web].Count", 2, 3)
    ]
    assert (more["groups"]["web"]["place"], more["groups"]["web"]["in_place"]) == (1, 2)
    other = story.ask("plan", Job=edited(command="false"))
    assert (other["groups"]["web"]["destructive"], other["groups"]["web"]["place"]) == (2, 0)
    assert other["version"] == 1
    less = story.ask("plan", Job=edited(count=1))
    assert (less["groups"]["web"]["stop"], less["groups"]["web"]["in_place"]) == (1, 1)


def test_what_touches_no_allocation_is_told_apart() -> None:
    """An update in place creates and stops nothing, and what continues waiting is no change; a new place is one."""
    story = ready()
    job = edited()
    register(story, job, 0)
    story.plan("web", (0, 1))
    story.feed()
    in_place = story.ask("plan", Job={**job, "Priority": 60})
    assert (in_place["changes"], in_place["groups"]["web"]["in_place"]) == (True, 2)
    assert in_place["touches_allocations"] is False
    assert story.ask("plan", Job=edited(count=3))["touches_allocations"] is True
    assert story.ask("plan", Job=edited(count=1))["touches_allocations"] is True


def test_an_unchanged_job_that_waits_changes_nothing() -> None:
    """What waited for a place and continues waiting is shown, and is not counted as a change."""
    story = ready()
    job = edited()
    job["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = 1_000_000
    register(story, job, 0)
    waiting = {"web": Waiting(count=2, reasons=("memory exhausted on 2 nodes",))}
    new = NewEvaluation(job_id=JobId("web"), blocked=Blocked(waiting=waiting))
    story.log(EvaluationsCreated(evaluations=(new,)))
    story.feed()
    same = story.ask("plan", Job=job)
    assert same["unplaced"]["web"]["n"] == 2
    assert (same["changes"], same["touches_allocations"]) == (False, False)
    job["TaskGroups"][0]["Count"] = 3
    assert story.ask("plan", Job=job)["touches_allocations"] is True


def test_versions_are_listed_newest_first() -> None:
    """Each kept version comes with its text and the seq of its registration."""
    story = ready()
    register(story, edited(), 0)
    register(story, edited(count=3), 1)
    story.feed()
    answer = story.ask("job_versions", id="web")
    assert [one["version"] for one in answer["versions"]] == [1, 0]
    assert [one["spec"]["TaskGroups"][0]["Count"] for one in answer["versions"]] == [3, 2]
    assert answer["total"] == 2


def test_named_members_of_lists_are_found_by_name() -> None:
    """A group put in front is one group added, not every later one edited."""
    first = {"TaskGroups": [{"Name": "b", "Count": 1}], "Datacenters": ["dc1"]}
    second = {
        "TaskGroups": [{"Name": "a"}, {"Name": "b", "Count": 1}],
        "Datacenters": ["dc1", "dc2"],
    }
    found = diff_jobs(msgspec.json.encode(first), msgspec.json.encode(second))
    assert [(one.kind, one.path) for one in found] == [
        ("edited", "Datacenters"),
        ("added", "TaskGroups[a]"),
    ]
    back = diff_jobs(msgspec.json.encode(second), msgspec.json.encode(first))
    assert [(one.kind, one.path) for one in back][1] == ("removed", "TaskGroups[a]")


def test_a_node_is_answered_about_jobs_that_are_placed_there() -> None:
    """A job without an allocation on the asking node is not found, whatever exists; nor for an unknown node."""
    story = Story()
    story.node("n1")
    story.node("n2")
    story.job("k", count=1)
    story.plan("k", (0,))
    story.start()
    asked = [story.ask_as(node, id="k", version=0) for node in ("n1", "n2", "n9", "~ZZ")]
    assert asked[0]["spec"] == {"ID": "x"}
    assert [one["error"]["code"] for one in asked[1:]] == ["not_found", "not_found", "invalid"]


def test_a_value_that_was_left_out_is_its_default() -> None:
    """A plain value that one text leaves out is an edit of the default; a block that is new stays added."""
    old = {"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t"}]}]}
    new = {
        "ID": "j",
        "Priority": 60,
        "TaskGroups": [
            {"Name": "g", "Count": 3, "Tasks": [{"Name": "t", "KillTimeout": 9_000_000_000}]}
        ],
        "Meta": {"a": "b"},
    }
    texts = [msgspec.json.encode(one) for one in (old, new)]
    found = {one.path: (one.kind, bytes(one.old), bytes(one.new)) for one in diff_jobs(*texts)}
    assert found["Priority"] == ("edited", b"50", b"60")
    assert found["TaskGroups[g].Count"] == ("edited", b"1", b"3")
    assert found["TaskGroups[g].Tasks[t].KillTimeout"][:2] == ("edited", b"5000000000")
    assert found["Meta"][0] == "added"
    back = {one.path: (one.kind, bytes(one.new)) for one in diff_jobs(*reversed(texts))}
    assert back["Priority"] == ("edited", b"50")
