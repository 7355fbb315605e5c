"""What a node is answered: variables that are named after the job, group and task of an allocation that it runs."""

import msgspec
import pytest

from schemas.base import EvalKey, JobId
from schemas.jobs import GroupSpec, JobRegistered
from schemas.plans import Origin, PlanCommitted, Stops
from schemas.variables import VariableAnswers
from services.keeper.node_questions import ANSWER_NS, PARTS_MAX
from shared.core.runtime.messages import Message
from shared.sim.environment.memory_vault import unseal_items
from tests.unit.core.state.written_log import WrittenLog
from tests.unit.keeper.keeper_story import PUBLIC, SECOND, Story

OF_JOB, OF_GROUP, OF_TASK = "nomad/jobs/web", "nomad/jobs/web/g", "nomad/jobs/web/g/server"


def running() -> tuple[Story, str]:
    """A keeper with variables of every level, and an allocation on node n0."""
    log = WrittenLog()
    log.nodes(2)
    log.jobs("web", "other")
    story = Story(log)
    alloc = story.place()
    story.lead()
    for at, path in enumerate(("nomad/jobs", OF_JOB, OF_TASK, "nomad/jobs/other", "app/db")):
        story.put(path, request_id=f"r{at}", items={"at": path})
        story.settle()
    return story, alloc


def fault(answers: VariableAnswers) -> str:
    """Code of a refusal as a whole."""
    return answers.error.code if answers.error is not None else ""


def test_a_task_reads_what_is_named_after_it() -> None:
    """All four levels in the order of the question; a missing path has another code than a forbidden one."""
    story, alloc = running()
    token = story.ask_as_node(
        "n0", alloc, OF_TASK, "nomad/jobs", OF_GROUP, OF_JOB, "nomad/jobs/other", "app/db"
    )
    assert token not in story.answers
    story.vault()
    found = story.node_answers(token)
    assert fault(found) == ""
    codes = {one.path: one.error.code if one.error else "" for one in found.answers}
    assert codes == {
        OF_TASK: "",
        "nomad/jobs": "",
        OF_GROUP: "not_found",
        OF_JOB: "",
        "nomad/jobs/other": "forbidden",
        "app/db": "forbidden",
    }
    items = {one.path: unseal_items(one.sealed) for one in found.answers if not one.error}
    assert items == {path: {"at": path} for path in (OF_TASK, "nomad/jobs", OF_JOB)}
    row = story.role.replica.state.variables.by_path[OF_TASK]
    assert found.answers[0].revision == row.revision


def test_another_node_is_not_answered() -> None:
    """The node is the one of the subject, which no other node may publish."""
    story, alloc = running()
    token = story.ask_as_node("n1", alloc, OF_JOB)
    assert fault(story.node_answers(token)) == "unavailable"
    assert story.asked == []


@pytest.mark.parametrize("end", ["stopped", "unknown"])
def test_an_allocation_that_does_not_run_reads_nothing(end: str) -> None:
    """One that was stopped, and one that the log does not know yet: the question may be asked again."""
    story, alloc = running()
    if end == "stopped":
        origin = Origin(worker="w", number=1, snapshot_seq=1)
        stops = (Stops(rows=(0,), reason="x"),)
        stop = PlanCommitted(key=EvalKey(0), job_id=JobId("web"), origin=origin, stops=stops)
        story.step(story.log.tx(stop))
    else:
        alloc = alloc[:-1] + ("0" if alloc[-1] != "0" else "1")
    token = story.ask_as_node("n0", alloc, OF_JOB)
    assert fault(story.node_answers(token)) == "unavailable"


def test_a_child_reads_what_is_its_parents() -> None:
    """Launches and dispatches of a job have ids of their own, and the variables of the job."""
    story, _ = running()
    group = GroupSpec(name="g", cpu_mhz=100, memory_mib=64)
    child = JobRegistered(
        submission_id="",
        digest="d",
        job_id=JobId("web/periodic-1"),
        version=0,
        groups=(group,),
        parent=JobId("web"),
    )
    story.step(story.log.tx(child))
    alloc = story.place("web/periodic-1")
    token = story.ask_as_node("n0", alloc, OF_JOB, "nomad/jobs/web/periodic-1")
    story.vault()
    codes = [one.error.code if one.error else "" for one in story.node_answers(token).answers]
    assert codes == ["", "forbidden"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "invalid"),
        (b"no json", "invalid"),
        (b"x" * 9_000, "too_large"),
        (b'{"alloc_id":"a","task":"t","paths":[],"public":"%s"}', "invalid"),
        (b'{"alloc_id":"a","task":"t","paths":["p"],"public":"AA=="}', "invalid"),
        (b'{"alloc_id":"a","task":"t","paths":["p"],"public":"%s","more":1}', "invalid"),
    ],
)
def test_a_question_that_cannot_be_is_refused(body: bytes, code: str) -> None:
    """At once, with a code."""
    story, _ = running()
    data = body.replace(b"%s", msgspec.json.encode(PUBLIC).strip(b'"'))
    story.step(Message("node_variables", "ask.n0.variable", data, 900, reply=True))
    assert fault(story.node_answers(900)) == code


def test_too_many_paths_are_refused() -> None:
    """No question makes more work than it is worth."""
    story, alloc = running()
    paths = [f"p{at}" for at in range(PARTS_MAX + 1)]
    token = story.ask_as_node("n0", alloc, *paths)
    assert fault(story.node_answers(token)) == "invalid"


def test_a_question_that_the_vault_does_not_answer_may_be_asked_again() -> None:
    """After five seconds; what the vault says later goes nowhere."""
    story, alloc = running()
    token = story.ask_as_node("n0", alloc, OF_JOB)
    story.pass_time(ANSWER_NS / SECOND + 1)
    assert fault(story.node_answers(token)) == "unavailable"
    story.vault()
