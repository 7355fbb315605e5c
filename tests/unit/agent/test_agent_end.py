"""The end of tasks with their agent: in the order of their job, and the next life continues what was not over."""

from typing import Any

from shared.core.runtime import agent_messages
from shared.core.runtime.agent_messages import EndTasks, TasksEnded
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

ONCE = {"Attempts": 0}


def sidecar(name: str, **more: Any) -> dict[str, Any]:
    """A task that ends after the main ones."""
    return task_json(name, Lifecycle={"Hook": "prestart", "Sidecar": True}, **more)


def story(*found: dict[str, Any], kind: str = "service", up: tuple[str, ...] = ("a",)) -> Story:
    """An agent that runs a group of these tasks."""
    one = Story(job=job_json(*found, kind=kind, restart=ONCE)).hear(5, alloc())
    for name in up:
        one.started(name)
    one.did(agent_messages.StartTask, agent_messages.SignalTask)
    return one


def signals(one: Story) -> list[tuple[str, str]]:
    """Tasks that were signalled since the last call, and by what."""
    return [(effect.task, effect.signal) for effect in one.did(agent_messages.SignalTask)]


def is_over(one: Story) -> bool:
    """Whether the agent said so since the last call."""
    return bool(one.did(TasksEnded))


def test_each_task_ends_as_its_job_says() -> None:
    """Own signal, delay and time, the leader before the others, sidecars then, poststop last; then all is over."""
    one = story(
        sidecar("proxy"),
        task_json("a", Leader=True, KillSignal="SIGUSR1", KillTimeout=20 * SECOND),
        task_json("b", KillSignal="SIGHUP", ShutdownDelay=3 * SECOND),
        task_json("bye", Lifecycle={"Hook": "poststop"}),
        up=("proxy", "a", "b"),
    )
    assert signals(one.step(EndTasks())) == [("a", "SIGUSR1")]
    assert one.agent.awaited() == {"j.g": "a has SIGUSR1, at most 20 s"}
    assert one.wait(19).did(agent_messages.KillTask) == []
    assert [kill.task for kill in one.wait(1.1).did(agent_messages.KillTask)] == ["a"]
    assert signals(one.exited(137, "a", signal=9)) == []
    assert one.agent.awaited() == {"j.g": "b has its shutdown_delay of 3 s"}
    assert signals(one.wait(3.1)) == [("b", "SIGHUP")]
    assert [task for task, _ in signals(one.exited(0, "b"))] == ["proxy"]
    assert one.starts() == []
    assert one.exited(0, "proxy").starts() == [("bye", 1)]
    assert one.started("bye").agent.awaited() == {"j.g": "bye runs (poststop)"}
    assert not is_over(one)
    assert is_over(one.exited(0, "bye"))
    assert one.agent.awaited() == {}


def test_the_next_life_starts_again_what_its_agent_ended() -> None:
    """At no charge, with the same ids, and not what had ended before; its end tasks wait for its own end."""
    one = story(
        task_json("init", Lifecycle={"Hook": "prestart"}),
        task_json("a"),
        task_json("bye", Lifecycle={"Hook": "poststop"}),
        up=("init",),
    )
    one.exited(0, "init").started("a").step(EndTasks()).exited(0, "a")
    assert one.state().status == "pending"
    assert is_over(one.started("bye").exited(0, "bye"))
    later = one.restarted()
    assert later.starts() == []
    assert later.hear(6, alloc()).starts() == [("a", 2)]
    state = later.started("a", run=2).state()
    assert (state.status, state.tasks["a"].restarts, state.tasks["bye"].state) == (
        "running",
        0,
        "pending",
    )
    assert later.hear(7).exited(0, "a", run=2).starts() == [("bye", 2)]


def test_what_is_over_before_its_signal_is_over_for_good() -> None:
    """An exit with 0 while another task ends is work that is done, and is reported so."""
    one = story(task_json("a", Leader=True), task_json("b"), kind="batch", up=("a", "b"))
    one.step(EndTasks()).exited(0, "b")
    assert is_over(one.exited(0, "a"))
    assert one.restarted().hear(6, alloc()).starts() == [("a", 2)]
    whole = story(task_json("a", ShutdownDelay=5 * SECOND), kind="batch").step(EndTasks())
    assert is_over(whole.exited(0, "a"))
    assert whole.wait(0.1).reports()[-1].states[0].status == "complete"
    assert whole.restarted().hear(6, alloc()).starts() == []


def test_a_signal_that_came_too_late_ended_nothing() -> None:
    """The run was over when its signal was sent: its exit is its own, whatever was written before."""
    for by_itself, again in ((True, []), (False, [("a", 2)])):
        one = story(task_json("a"), kind="batch").step(EndTasks())
        end = agent_messages.TaskExited(key=7, task="a", run=1, exit_code=0, by_itself=by_itself)
        assert is_over(one.step(end))
        assert one.restarted().hear(6, alloc()).starts() == again


def test_a_failure_of_its_own_counts() -> None:
    """A task that fails before its signal is charged; with attempts left the next life starts it."""
    one = story(task_json("a", ShutdownDelay=5 * SECOND)).step(EndTasks()).exited(1, "a")
    assert is_over(one)
    assert one.state().status == "failed"
    assert one.restarted().hear(6, alloc()).starts() == []
    policy = {"Attempts": 1, "Interval": 60 * SECOND, "Delay": SECOND, "Mode": "fail"}
    job = job_json(task_json("a", ShutdownDelay=5 * SECOND), restart=policy)
    two = Story(job=job).hear(5, alloc()).started("a").step(EndTasks()).exited(1, "a")
    assert is_over(two)
    later = two.restarted().hear(6, alloc())
    assert later.starts() == [("a", 2)]
    assert later.started("a", run=2).exited(1, "a", run=2).state().status == "failed"


def test_nothing_new_starts_in_an_agent_that_ends() -> None:
    """What is placed here meanwhile waits for the next life, and so does what was about to start."""
    one = story(task_json("a")).step(EndTasks())
    assert one.hear(6, alloc(), alloc(8)).starts() == []
    assert is_over(one.exited(0, "a"))
    assert one.state(8).status == "pending"
    later = one.restarted().hear(7, alloc(), alloc(8))
    assert later.starts() == [("a", 2), ("a", 1)]


def test_an_order_to_stop_that_comes_meanwhile_is_final() -> None:
    """The allocation ends for good, from where it is."""
    one = story(task_json("a"), task_json("bye", Lifecycle={"Hook": "poststop"}))
    assert [task for task, _ in signals(one.step(EndTasks()))] == ["a"]
    assert signals(one.hear(6)) == []
    assert one.exited(0, "a").starts() == [("bye", 1)]
    assert is_over(one.started("bye").exited(0, "bye"))
    assert one.state().status == "complete"
    assert one.restarted().hear(7).starts() == []


def test_asked_again_it_kills() -> None:
    """What runs is killed, what comes up late too, nothing starts any more; the next life starts it all again."""
    one = story(
        sidecar("proxy"),
        task_json("a", KillTimeout=600 * SECOND),
        task_json("bye", Lifecycle={"Hook": "poststop"}),
        up=("proxy",),
    )
    one.step(EndTasks(), EndTasks(at_once=True))
    assert [kill.task for kill in one.did(agent_messages.KillTask)] == ["proxy", "a"]
    one.started("a")
    assert [kill.task for kill in one.did(agent_messages.KillTask)] == ["a"]
    assert not is_over(one.exited(137, "proxy", signal=9))
    assert is_over(one.exited(137, "a", signal=9))
    assert one.starts() == []
    assert sorted(one.restarted().hear(6, alloc()).starts()) == [("a", 2), ("proxy", 2)]


def test_an_agent_that_is_killed_while_it_ends_tasks() -> None:
    """A task with its signal is ended by the next life before it starts again, at no charge."""
    one = story(task_json("a")).step(EndTasks())
    later = one.restarted()
    assert signals(later.started("a", adopted=True)) == [("a", "SIGINT")]
    later.hear(6, alloc()).exited(0, "a")
    assert later.starts() == [("a", 2)]
    assert later.state().tasks["a"].failed is False
    gone = one.restarted().hear(6, alloc()).exited(1, "a")
    assert gone.starts() == [("a", 2)]
