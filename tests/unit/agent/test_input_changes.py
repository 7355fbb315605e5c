"""The change_mode of templates: performed once, after the pause, and again after a kill of the agent."""

from typing import Any

import pytest

from shared.core.runtime import agent_messages
from shared.core.runtime.agent_messages import (
    ChangeScriptEnded,
    InputChanged,
    KillTask,
    PrepareTask,
    RunChangeScript,
    SignalTask,
    TaskGone,
    WatchInputs,
)
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

SOURCE = '{{ range nomadService "db" }}{{ .Address }}{{ end }}'
ONE, TWO, THREE = "template[0]", "template[1]", "template[2]"
#: of raw_exec.
KILL = "SIGINT"
SCRIPT = {"ChangeMode": "script", "ChangeScript": {"Command": "/bin/reload", "Args": ["x"]}}
HUP = {"ChangeMode": "signal", "ChangeSignal": "SIGHUP"}
TERM = {"ChangeMode": "signal", "ChangeSignal": "SIGTERM"}


def templated(*templates: dict[str, Any], **more: Any) -> Story:
    """A running task with these templates, whose pauses are 0 unless they say so."""
    blocks = [
        {"EmbeddedTmpl": SOURCE, "DestPath": f"local/{at}", "Splay": 0, **one}
        for at, one in enumerate(templates)
    ]
    story = Story(job=job_json(task_json("main", Templates=blocks), **more)).hear(5, alloc())
    return prepared(story).started()


def prepared(story: Story) -> Story:
    """Answer all preparations that are asked for."""
    for effect in story.did(PrepareTask):
        story.step(agent_messages.prepared_inputs(effect))
    return story


def change(name: str = ONE, digest: str = "new", run: int = 1) -> InputChanged:
    return InputChanged(key=7, task="main", run=run, input=name, digest=digest)


def script_ended(reason: str = "", run: int = 1, name: str = ONE) -> ChangeScriptEnded:
    return ChangeScriptEnded(key=7, task="main", run=run, input=name, reason=reason)


def events(story: Story) -> list[tuple[str, str]]:
    return [(one.kind, one.message) for one in story.state().tasks["main"].events]


def signals(story: Story) -> list[str]:
    return [one.signal for one in story.did(SignalTask)]


def scripts(story: Story) -> list[str]:
    return [one.input for one in story.did(RunChangeScript)]


def adopted(story: Story) -> Story:
    """Another life of the agent that finds the run alive."""
    return story.restarted().hear(6, alloc()).started(adopted=True)


def test_a_run_is_followed_from_its_start_to_its_end() -> None:
    """The effect names the inputs and the digests in place; with the end of the task nothing is followed any more."""
    story = templated({}, {"Once": True}, {"EmbeddedTmpl": "fixed"})
    (watch,) = story.did(WatchInputs)
    assert (watch.key, watch.task, watch.run) == (7, "main", 1)
    assert [one.name for one in watch.inputs] == [ONE]
    assert watch.digests == {ONE: "simulated"}
    assert "NOMAD_ALLOC_ID" in watch.launch.env
    story.hear(6, alloc(desired="stop"))
    (none,) = story.did(WatchInputs)
    assert (none.task, none.inputs) == ("main", ())


def test_a_restart_costs_no_attempt_and_comes_at_once() -> None:
    """The run ends by its signal, and the next one begins without a pause; it is followed with the new digest."""
    story = templated({})
    story.did(WatchInputs)
    story.step(change())
    assert signals(story) == [KILL]
    assert ("Restart Signaled", f"{ONE} was rendered anew") in events(story)
    story.exited(None, signal=15)
    assert story.starts()[-1] == ("main", 2)
    assert not story.did(PrepareTask)
    (watch,) = story.started(run=2).did(WatchInputs)
    assert (watch.run, watch.digests) == (2, {ONE: "new"})
    assert story.state().tasks["main"].restarts == 1
    assert all(kind != "Restarting" for kind, _ in events(story))


def test_the_same_content_is_no_change() -> None:
    """A digest that is known, one of another run, and one of a task that is dead do nothing."""
    story = templated({})
    story.step(change(digest="simulated"), change(run=2))
    assert signals(story) == []
    story.hear(6, alloc(desired="stop")).exited(0)
    signals(story)
    story.step(change())
    assert signals(story) == []


def test_noop_changes_the_file_alone() -> None:
    """S28: the task is untouched, it has no event of it, and the journal has the new digest."""
    story = templated({"ChangeMode": "noop"})
    before = events(story)
    story.step(change())
    assert (signals(story), events(story)) == ([], before)
    kept: Any = story.journal[-1]
    assert (kept.prepared, kept.changed) == ({ONE: "new"}, ())
    assert signals(story.wait(60)) == []


def test_signals_are_each_sent_once() -> None:
    """S29: two templates with two signals give both, two with the same one give it once."""
    story = templated(HUP, TERM, HUP)
    story.step(change(ONE), change(TWO), change(THREE))
    assert signals(story) == ["SIGHUP", "SIGTERM"]
    assert story.step(change(ONE, "newer")).starts() == [("main", 1)]
    assert signals(story) == ["SIGHUP"]


def test_a_restart_wins_over_signals_and_scripts() -> None:
    """S30: one restart, no signal of a change, no script."""
    story = templated(HUP, SCRIPT, {})
    story.step(change(ONE), change(TWO), change(THREE))
    assert signals(story) == [KILL]
    assert scripts(story) == []
    prepared(story.exited(0)).started(run=2).wait(60)
    assert (signals(story), scripts(story)) == ([], [])


def test_changes_within_the_pause_are_one() -> None:
    """The pause is below the largest splay of what changed, and the same in a replay."""

    def due_ns() -> int:
        story = templated({**HUP, "Splay": 5 * SECOND}, {**HUP, "Splay": 50 * SECOND})
        story.step(change(ONE), change(TWO))
        assert signals(story) == []
        due_ns = story.timers["inputs"]
        story.step(change(ONE, "newer"))
        assert story.timers["inputs"] == due_ns
        assert signals(story.wait(50)) == ["SIGHUP"]
        return due_ns - story.now_ns + 50 * SECOND

    first = due_ns()
    assert 0 < first < 50 * SECOND
    assert due_ns() == first


def test_a_change_while_the_task_restarts_is_in_its_next_run() -> None:
    """S31: nothing is sent to a run that ends, the task lives, and an event says so."""
    story = templated(HUP, {}).step(change(TWO))
    signals(story)
    story.step(change(ONE))
    assert signals(story) == []
    assert events(story)[-1][1].endswith("change_mode skipped: the task restarts")
    story.exited(0).started(run=2).wait(60)
    assert signals(story) == []
    assert story.state().status == "running"


def test_a_change_between_two_runs_is_in_the_next() -> None:
    """While the task waits for its next start nothing is due."""
    policy = {"Attempts": 2, "Interval": 60 * SECOND, "Delay": 10 * SECOND, "Mode": "fail"}
    story = templated({}, restart=policy).exited(1).step(change()).wait(15)
    assert story.starts()[-1] == ("main", 2)
    story.started(run=2).wait(60)
    assert signals(story) == []


def test_a_script_runs_in_the_task() -> None:
    """References in its command are filled in; an error is an event, and the task runs on (S33)."""
    script = {**SCRIPT, "ChangeScript": {"Command": "/bin/reload", "Args": ["${NOMAD_TASK_NAME}"]}}
    story = templated(script).step(change())
    (effect,) = story.did(RunChangeScript)
    assert (effect.command, effect.timeout_ns) == (("/bin/reload", "main"), 5 * SECOND)
    story.step(script_ended("exit code 1"))
    assert events(story)[-1] == ("Template", f"change_script of {ONE} failed: exit code 1")
    assert story.state().status == "running"
    assert scripts(story.wait(60)) == []


def test_a_change_under_a_script_runs_it_again() -> None:
    """What the script may not have seen gets a script of its own, after the first."""
    story = templated(SCRIPT).step(change())
    scripts(story)
    story.step(change(digest="newer"))
    assert scripts(story) == []
    assert scripts(story.step(script_ended())) == [ONE]
    assert scripts(story.step(script_ended())) == []


def test_a_script_of_an_earlier_run_holds_nothing_up() -> None:
    """What changed in the next run before that script's end is performed once it is over."""
    story = templated(SCRIPT, restart={"Attempts": 2, "Interval": 60 * SECOND, "Mode": "fail"})
    story.step(change())
    assert scripts(story) == [ONE]
    story.exited(1).wait(30).started(run=2).step(change(digest="newer", run=2))
    assert scripts(story) == []
    assert scripts(story.step(script_ended("the task ended"))) == [ONE]


def test_a_script_that_may_not_fail_ends_the_task() -> None:
    """S33: with fail_on_error the task is killed and failed, whatever its restart policy says."""
    fatal = {**SCRIPT, "ChangeScript": {"Command": "/bin/x", "FailOnError": True}}
    story = templated(fatal).step(change())
    story.step(script_ended("exit code 1"))
    assert signals(story) == [KILL]
    story.wait(6)
    assert [one.run for one in story.did(KillTask)] == [1]
    story.exited(None, signal=9)
    assert story.state().status == "failed"
    assert story.starts() == [("main", 1)]


def test_a_killed_agent_runs_a_fatal_script_again() -> None:
    """The end of the task is not in the journal before it is over: the next life finds out again."""
    fatal = {**SCRIPT, "ChangeScript": {"Command": "/bin/x", "FailOnError": True}}
    story = templated(fatal).step(change()).step(script_ended("exit code 1"))
    again = adopted(story)
    assert scripts(again.wait(6)) == [ONE]


def test_a_script_of_the_first_rendering_runs_once() -> None:
    """S34: after the first start, and neither after a restart of the task nor of the agent."""
    first = {"ChangeMode": "script", "ChangeScript": {"Command": "/x", "RunOnFirstRender": True}}
    story = templated({**first, "Splay": 50 * SECOND})
    assert scripts(story) == [ONE]
    story.step(script_ended())
    assert scripts(adopted(story).wait(60)) == []
    story.exited(1).wait(60).started(run=2).wait(60)
    assert scripts(story) == []


def test_a_script_of_the_first_rendering_waits_for_a_run() -> None:
    """A start that fails, and a kill of the agent before it, lose nothing of it."""
    first = {"ChangeMode": "script", "ChangeScript": {"Command": "/x", "RunOnFirstRender": True}}
    block = {"EmbeddedTmpl": SOURCE, "DestPath": "local/0", **first}
    story = Story(job=job_json(task_json("main", Templates=[block]))).hear(5, alloc())
    prepared(story)
    lost = story.restarted().hear(6, alloc())
    lost.step(TaskGone(key=7, task="main", run=1, started=False))
    assert lost.starts() == [("main", 2)]
    assert scripts(lost.started(run=2).wait(60)) == [ONE]
    story.step(agent_messages.TaskStartFailed(key=7, task="main", run=1, reason="no")).wait(60)
    assert scripts(story.started(run=2).wait(60)) == [ONE]


@pytest.mark.parametrize("mode", [HUP, SCRIPT])
def test_a_killed_agent_performs_again_what_was_due(mode: dict[str, Any]) -> None:
    """What the journal has as due is performed by the next life, and no third time."""
    story = templated({**mode, "Splay": 50 * SECOND}).step(change())
    again = adopted(story).wait(60)
    expected = (["SIGHUP"], []) if mode is HUP else ([], [ONE])
    assert (signals(again), scripts(again)) == expected
    again.step(script_ended())
    last = adopted(again).wait(60)
    assert (signals(last), scripts(last)) == ([], [])


def test_a_restart_that_was_due_happens_once() -> None:
    """A killed agent restarts what is alive, starts what has ended, and does neither twice."""
    story = templated({}).step(change())
    assert signals(story) == [KILL]
    alive = adopted(story)
    assert signals(alive) == [KILL]
    alive.exited(0)
    assert alive.starts() == [("main", 2)]
    assert signals(adopted_run(alive, 2)) == []
    ended = story.restarted().hear(6, alloc())
    ended.step(TaskGone(key=7, task="main", run=1, started=True, charged=True))
    assert ended.starts() == [("main", 2)]
    assert signals(adopted_run(ended, 2)) == []


def adopted_run(story: Story, run: int) -> Story:
    return story.restarted().hear(6, alloc()).started(run=run, adopted=True).wait(60)


def test_a_change_found_by_the_next_life_is_performed() -> None:
    """S35: the next life follows with the digests of the journal; another content is a change, the same is none."""
    story = templated(HUP)
    again = adopted(story)
    (watch,) = again.did(WatchInputs)
    assert watch.digests == {ONE: "simulated"}
    assert signals(again.step(change())) == ["SIGHUP"]


def test_a_stop_drops_what_is_due() -> None:
    """A task that ends is sent its end alone."""
    story = templated({**HUP, "Splay": 50 * SECOND}).step(change())
    story.hear(6, alloc(desired="stop")).wait(4)
    assert signals(story) == [KILL]
    story.exited(0).wait(60)
    assert signals(story) == []
    kept = [one for one in story.journal if isinstance(one, agent_messages.TaskKept)]
    assert (kept[-1].state, kept[-1].changed) == ("dead", ())
