"""The life of an allocation: which task runs when, and that a killed agent neither repeats nor skips a step."""

from typing import Any

import pytest

from services.agent.tasks.supervisor import AgentStep
from shared.core.runtime import agent_messages
from shared.core.runtime.messages import SetTimer
from shared.core.state.ids import alloc_id
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

ONCE = {"Attempts": 0}


def step(name: str, hook: str, *, sidecar: bool = False, **more: Any) -> dict[str, Any]:
    """A task with a place in the life of its allocation."""
    return task_json(name, Lifecycle={"Hook": hook, "Sidecar": sidecar}, **more)


def story(*found: dict[str, Any], kind: str = "service", **group: Any) -> Story:
    """An agent with an order to run a group of these tasks."""
    job = job_json(*found, kind=kind, restart=ONCE)
    job["TaskGroups"][0].update(group)
    return Story(job=job).hear(5, alloc())


def names(one: Story) -> list[str]:
    """Tasks started since the last call."""
    return [task for task, _ in one.starts()]


def ends(one: Story) -> list[str]:
    """Tasks signalled since the last call."""
    return [effect.task for effect in one.did(agent_messages.SignalTask)]


def test_mains_wait_for_prestart() -> None:
    """One-shots must exit 0 and sidecars run before a main task starts; poststart tasks wait for all of these."""
    one = story(
        task_json("a"),
        task_json("b"),
        step("init", "prestart"),
        step("proxy", "prestart", sidecar=True),
        step("hello", "poststart"),
    )
    assert names(one) == ["init", "proxy"]
    assert one.state().status == "pending"
    assert names(one.started("init").exited(0, "init")) == []
    assert names(one.started("proxy")) == ["a", "b"]
    assert names(one.started("a")) == []
    assert names(one.started("b")) == ["hello"]
    one.started("hello").exited(0, "hello")
    assert one.state().status == "running"
    assert one.state().tasks["init"].state == "dead"


def test_a_failed_prestart_fails_all() -> None:
    """A prestart task that fails for good fails the allocation: no main task starts, poststop tasks still run."""
    one = story(task_json("a"), step("init", "prestart"), step("bye", "poststop"))
    one.started("init").exited(1, "init")
    assert one.state().status == "failed"
    assert names(one) == ["init", "bye"]
    one.started("bye").exited(0, "bye")
    assert one.state().tasks["a"].state == "dead"


def test_poststop_is_last() -> None:
    """Poststop tasks run when everything else is dead; the allocation is complete only after them."""
    one = story(
        task_json("a"),
        step("proxy", "prestart", sidecar=True),
        step("bye", "poststop"),
        kind="batch",
    )
    one.started("proxy").started("a").exited(0, "a")
    assert names(one) == ["proxy", "a"]
    assert ends(one) == ["proxy"]
    assert one.state().status == "running"
    assert names(one.exited(None, "proxy", signal=2)) == ["bye"]
    assert one.started("bye").state().status == "running"
    assert one.exited(3, "bye").state().status == "complete"


def test_prestop_runs_before_the_kill_signal() -> None:
    """An order to stop starts prestop tasks; the main task is signalled when they are dead, whatever they said."""
    one = story(task_json("a"), step("drain", "prestop")).started("a")
    one.starts()
    one.hear(6)
    assert names(one) == ["drain"]
    assert ends(one.started("drain")) == []
    assert ends(one.exited(7, "drain")) == ["a"]
    assert one.exited(0, "a").state().status == "complete"


def test_a_prestop_task_has_its_time() -> None:
    """A prestop task that hangs is killed after its kill_timeout, and one that does not come up is not waited for."""
    one = story(task_json("a"), step("drain", "prestop", KillTimeout=2 * SECOND)).started("a")
    one.hear(6).started("drain").wait(2.1)
    assert [kill.task for kill in one.did(agent_messages.KillTask)] == ["drain"]
    assert ends(one) == ["a"]
    late = story(task_json("a"), step("drain", "prestop", KillTimeout=2 * SECOND)).started("a")
    assert ends(late.hear(6).wait(2.1)) == ["a"]
    late.exited(0, "a").started("drain")
    assert ends(late) == ["drain"]
    assert late.exited(0, "drain").state().status == "complete"


def test_a_main_that_ends_by_itself_has_no_prestop() -> None:
    """Where no main task runs any more there is nothing to prepare."""
    one = story(task_json("a"), step("drain", "prestop"), kind="batch").started("a").exited(0, "a")
    assert names(one) == ["a"]
    assert one.state().status == "complete"


def test_postfail_is_told_of_the_failure() -> None:
    """A main task that failed for good starts the postfail tasks with its name, code and signal; then poststop."""
    one = story(task_json("a"), step("tell", "postfail"), step("bye", "poststop")).started("a")
    one.starts()
    one.exited(137, "a", signal=9)
    (start,) = one.did(agent_messages.StartTask)
    for prefix in ("CARAVAN", "NOMAD"):
        assert start.launch.env[f"{prefix}_FAILED_TASK"] == "a"
        assert start.launch.env[f"{prefix}_FAILED_EXIT_CODE"] == "137"
        assert start.launch.env[f"{prefix}_FAILED_SIGNAL"] == "9"
    assert names(one.started("tell").exited(1, "tell")) == ["bye"]
    one.started("bye").exited(0, "bye")
    assert one.state().status == "failed"
    assert one.state().tasks["a"].failed


def test_without_a_failure_there_is_no_postfail() -> None:
    """Postfail tasks are skipped where no main task failed, also when the allocation is stopped."""
    one = story(task_json("a"), step("tell", "postfail")).started("a").hear(6).exited(130, "a")
    assert names(one) == ["a"]
    assert one.state().status == "complete"


def test_the_kill_order_is_nomads() -> None:
    """Leader, then main tasks, then sidecars, each when the ones before are dead."""
    one = story(
        step("proxy", "prestart", sidecar=True),
        task_json("b"),
        task_json("a", Leader=True),
        step("hello", "poststart"),
    )
    one.started("proxy").started("a").started("b").started("hello")
    assert ends(one.hear(6)) == ["a"]
    assert ends(one.exited(0, "a")) == ["b", "hello"]
    assert ends(one.exited(0, "b")) == []
    assert ends(one.exited(0, "hello")) == ["proxy"]
    assert one.exited(0, "proxy").state().status == "complete"


def test_a_sidecar_starts_again_and_ends_with_the_mains() -> None:
    """A sidecar is started again after exit 0; the main task neither waits for that nor starts again."""
    one = Story(
        job=job_json(
            task_json("a"),
            step("proxy", "prestart", sidecar=True),
            kind="batch",
            restart={"Attempts": 2, "Interval": 600 * SECOND, "Delay": SECOND, "Mode": "fail"},
        )
    ).hear(5, alloc())
    one.started("proxy").started("a").exited(0, "proxy")
    one.starts()
    assert one.wait(2).starts() == [("proxy", 2)]
    one.started("proxy", run=2).exited(0, "a")
    assert ends(one) == ["proxy"]
    assert one.exited(None, "proxy", run=2, signal=2).state().status == "complete"


@pytest.mark.parametrize(("mode", "again"), [("failed", ["c"]), ("first", ["a", "b", "c"])])
def test_a_chain_begins_again_where_it_should(mode: str, again: list[str]) -> None:
    """With restart_from prestart tasks run in order; after a failure from the failed one, or from the first."""
    policy = {"Attempts": 3, "Interval": 600 * SECOND, "Delay": SECOND, "Mode": "fail"}
    job = job_json(
        *(step(name, "prestart") for name in "abc"),
        task_json("main"),
        kind="batch",
        restart=policy,
    )
    job["TaskGroups"][0]["RestartFrom"] = mode
    one = Story(job=job).hear(5, alloc())
    assert names(one) == ["a"]
    for name in "ab":
        one.started(name).exited(0, name)
    assert names(one) == ["b", "c"]
    one.started("c").exited(1, "c")
    assert names(one.wait(0.9)) == []
    assert names(one.wait(1)) == again[:1]
    for name in again:
        run = 2 if name in again else 1
        one.started(name, run=run).exited(0, name, run=run)
    assert names(one) == [*again[1:], "main"]


def test_a_sidecar_in_a_chain_comes_back_once() -> None:
    """A sidecar that ends while the chain stands at it is started again, in one run."""
    policy = {"Attempts": 3, "Interval": 600 * SECOND, "Delay": SECOND, "Mode": "fail"}
    job = job_json(step("p", "prestart", sidecar=True), task_json("main"), restart=policy)
    job["TaskGroups"][0]["RestartFrom"] = "failed"
    one = Story(job=job).hear(5, alloc()).started("p").started("main").exited(1, "p")
    one.starts()
    assert one.wait(2).starts() == [("p", 2)]


def test_pauses_before_the_signal() -> None:
    """The group's shutdown_delay comes before the first signal, a task's own before its own; then kill_timeout."""
    one = story(
        task_json("a", ShutdownDelay=3 * SECOND, KillTimeout=SECOND),
        ShutdownDelay=2 * SECOND,
    ).started("a")
    one.hear(6)
    assert ends(one.wait(4.9)) == []
    assert ends(one.wait(0.2)) == ["a"]
    assert not one.did(agent_messages.KillTask)
    assert len(one.wait(1.1).did(agent_messages.KillTask)) == 1


def test_a_pause_is_not_begun_anew() -> None:
    """A restart of the agent within the group's pause leaves its end where it was."""
    one = story(task_json("a"), ShutdownDelay=10 * SECOND).started("a").hear(6).wait(6)
    again = one.restarted()
    again.now_ns = one.now_ns
    again.started("a", adopted=True)
    # The story's first step came at its own start; the pause ends 10 s after the order.
    ends_ns = [timer.at_ns for timer in again.did(SetTimer) if timer.name == "alloc 7"]
    assert ends_ns[0] == one.now_ns - 6 * SECOND + 10 * SECOND


def test_a_pause_that_is_told_twice_is_waited_for_once() -> None:
    """A second order to stop moves nothing; what a version in place says before the order holds (S87)."""
    one = story(task_json("a"), ShutdownDelay=10 * SECOND).started("a")
    assert one.job is not None
    one.job["TaskGroups"][0]["ShutdownDelay"] = 4 * SECOND
    one.hear(6, alloc(version=1)).wait(1)
    one.hear(7).wait(3).hear(8)
    assert ends(one) == []
    assert ends(one.wait(1.1)) == ["a"]


def test_max_run_duration_is_the_last_day() -> None:
    """The deadline counts from the allocation's arrival, over restarts of agent and task; it ends complete."""
    one = story(
        task_json("a"), step("bye", "poststop"), kind="batch", MaxRunDuration=60 * SECOND
    ).started("a")
    one.wait(30)
    again = one.restarted()
    again.now_ns = one.now_ns
    again.started("a", adopted=True).hear(6, alloc()).starts()
    assert ends(again.wait(29)) == []
    assert ends(again.wait(2)) == ["a"]
    again.exited(None, "a", signal=2)
    assert again.state().status == "complete"
    assert not again.starts()
    said = [event.message for event in again.state().tasks["a"].events]
    assert "allocation exceeded max_run_duration" in said


def test_max_run_duration_of_a_service_is_nothing() -> None:
    """Only batch and sysbatch have a last day."""
    one = story(task_json("a"), MaxRunDuration=60 * SECOND).started("a")
    assert ends(one.wait(600)) == []


def test_silence_ends_what_asks_for_it() -> None:
    """With stop_on_client_after an allocation ends when the cluster was not heard for so long, and is failed."""
    one = story(task_json("a"), Disconnect={"StopOnClientAfter": 60 * SECOND}).started("a")
    one.wait(3600)
    assert ends(one) == ["a"]
    one.exited(None, "a", signal=2)
    assert one.state().status == "failed"
    assert not one.hear(6, alloc()).wait(600).starts()[1:]


def test_whoever_is_heard_is_not_silent() -> None:
    """Any answer counts as hearing, and an agent asks often enough to hear in time."""
    one = story(task_json("a"), Disconnect={"StopOnClientAfter": 6 * SECOND}).started("a")
    one.value = b""
    assert ends(one.wait(600)) == []
    one.value = None
    assert ends(one.wait(7)) == ["a"]


def test_silence_counts_over_a_restart() -> None:
    """An agent that is restarted in the silence does not begin to count anew."""
    one = story(task_json("a"), Disconnect={"StopOnClientAfter": 60 * SECOND}).started("a")
    one.wait(50)
    again = one.restarted()
    again.now_ns = one.now_ns
    again.started("a", adopted=True)
    assert ends(again.wait(11)) == ["a"]


def test_another_version_counts_at_once_where_it_can() -> None:
    """An update in place tells a live run its new log limits, and its next end has the new kill_timeout."""
    one = story(task_json("a", KillTimeout=20 * SECOND)).started("a")
    one.job = job_json(
        task_json("a", KillTimeout=2 * SECOND, LogConfig={"MaxFiles": 3, "MaxFileSizeMB": 1})
    )
    one.hear(6, alloc(version=1))
    (limits,) = one.did(agent_messages.LimitLogs)
    assert (limits.task, limits.run, limits.logs.files) == ("a", 1, 3)
    assert ends(one) == []
    assert ends(one.hear(7)) == ["a"]
    assert len(one.wait(2.1).did(agent_messages.KillTask)) == 1


def test_a_restart_by_hand_is_free() -> None:
    """An operator's restart ends a run as a stop would and starts the next at once, whatever the policy says."""
    one = story(task_json("a", KillTimeout=2 * SECOND), task_json("b")).started("a").started("b")
    one.starts()
    agent = one.agent

    def restart(name: str) -> bool:
        turn = AgentStep(one.now_ns)
        found = agent._desired.allocs[7]
        done = agent._supervisor.restart(found, found.tasks[name], turn)
        for effect in turn.effects():
            one.done.append(effect)
            if isinstance(effect, SetTimer):
                one.timers[effect.name] = effect.at_ns
        return done

    assert restart("a")
    assert not restart("a")
    assert ends(one) == ["a"]
    assert len(one.wait(2.1).did(agent_messages.KillTask)) == 1
    assert one.exited(None, "a", signal=9).starts() == [("a", 2)]
    state = one.started("a", run=2).state()
    assert (state.status, state.tasks["a"].restarts, state.tasks["b"].restarts) == ("running", 1, 0)
    assert not one.wait(60).did(agent_messages.KillTask)


@pytest.mark.parametrize("sticky", [True, False])
def test_an_heir_waits(sticky: bool) -> None:  # noqa: FBT001
    """An allocation that inherits data starts when its predecessor is dead, and names it; else nothing waits."""
    one = story(task_json("a"), EphemeralDisk={"SizeMB": 10, "Sticky": sticky}).started("a")
    one.starts()
    one.hear(6, alloc(desired="stop"), alloc(8, previous=alloc_id(7)))
    starts = one.did(agent_messages.StartTask)
    assert [start.inherit for start in starts] == ([] if sticky else [""])
    one.exited(130, "a")
    assert [start.inherit for start in one.did(agent_messages.StartTask)] == (
        [alloc_id(7)] if sticky else []
    )


def test_too_little_disk_is_an_event() -> None:
    """What is measured above the group's disk is a task event once, and again after it was below."""
    one = story(task_json("a"), EphemeralDisk={"SizeMB": 100}).started("a")
    for used in (50, 101, 150, 20, 120):
        one.step(agent_messages.DiskUsed(key=7, used_mib=used))
    said = [event.message for event in one.state().tasks["a"].events if "Disk" in event.kind]
    assert said == [
        f"allocation uses {used} MiB of disk, its ask is 100 MiB" for used in (101, 120)
    ]
    assert ends(one) == []


FULL = (
    step("init", "prestart"),
    step("proxy", "prestart", sidecar=True),
    task_json("a"),
    task_json("b"),
    step("hello", "poststart"),
    step("drain", "prestop"),
    step("tell", "postfail"),
    step("bye", "poststop"),
)


class _Node:
    """Runs what the agent starts, one event at a time, and remembers every end."""

    def __init__(self, job: dict[str, Any], failing: str) -> None:
        self.story = Story(job=job, heard=False)
        self.failing = failing
        self.alive: dict[tuple[str, int], str] = {}
        self.over: dict[tuple[str, int], int] = {}
        self.log: list[str] = []

    def pump(self) -> bool:
        """Perform effects, then let one thing happen; says whether anything did."""
        story = self.story
        while begun := story.did(agent_messages.StartTask, agent_messages.RecoverTask):
            for effect in begun:
                self._begin(effect)
        for effect in story.did(agent_messages.SignalTask, agent_messages.KillTask):
            run = (effect.task, effect.run)
            if self.alive.pop(run, None):
                self._end(run, 0)
        for run in sorted(self.alive):
            if self.alive[run] == "told":
                continue
            self.alive[run] = "told"
            self.log.append(f"+{run[0]}")
            story.started(*run)
            return True
        for run in sorted(self.alive):
            name = run[0]
            mains_told = {"+a", "+b", "-hello"} <= set(self.log)
            if name in ("init", "hello", "drain", "tell", "bye") or (
                name == self.failing and mains_told
            ):
                del self.alive[run]
                self._end(run, int(name == self.failing))
                return True
        return False

    def _begin(self, effect: Any) -> None:
        run = (effect.task, effect.run)
        if isinstance(effect, agent_messages.StartTask):
            self.alive[run] = "new"
        elif run in self.over:
            self.story.exited(self.over[run], *run)
        elif run in self.alive:
            if self.alive[run] == "new":
                self.log.append(f"+{run[0]}")
            self.alive[run] = "told"
            self.story.started(*run, adopted=True)
        else:
            self.story.step(agent_messages.TaskGone(key=7, task=run[0], run=run[1], started=False))

    def _end(self, run: tuple[str, int], code: int) -> None:
        self.log.append(f"-{run[0]}")
        self.over[run] = code
        self.story.exited(code, *run)

    def crash(self) -> None:
        """Kill the agent: effects not performed are lost, the journal stays."""
        now_ns = self.story.now_ns
        self.story = self.story.restarted()
        self.story.now_ns = now_ns


@pytest.mark.parametrize("failing", ["a", ""])
def test_a_killed_agent_neither_repeats_nor_skips(failing: str) -> None:
    """Killed after any event of the whole life, the next agent continues: each task runs once, in the same order."""
    job = job_json(*FULL, restart=ONCE)
    whole = _life(job, failing, crash_at=-1)
    assert whole[:4] == ["+init", "+proxy", "-init", "+a"]
    assert whole[-1] == "-bye"
    assert ("+tell" in whole) == bool(failing)
    for crash_at in range(2 * len(whole)):
        log = _life(job, failing, crash_at=crash_at)
        assert sorted(log) == sorted(whole), crash_at
        _in_order(log)


def _in_order(log: list[str]) -> None:
    at = {word: n for n, word in enumerate(log)}
    for before, after in (
        *(("-init", "+a"), ("+proxy", "+a"), ("+a", "+hello"), ("+b", "+hello")),
        *(("-drain", "-b"), ("-b", "-proxy"), ("-proxy", "+bye"), ("-tell", "+bye")),
    ):
        if before in at and after in at:
            assert at[before] < at[after], (before, after, log)


def _life(job: dict[str, Any], failing: str, *, crash_at: int) -> list[str]:
    node = _Node(job, failing)
    seq, wanted, pumped = 5, [alloc()], 0
    node.story.hear(seq, *wanted)
    while True:
        assert pumped < 200, node.log
        if pumped == crash_at:
            node.crash()
            node.story.hear(seq, *wanted)
        pumped += 1
        if node.pump():
            continue
        here = node.story.agent._desired.allocs.get(7)
        if here is None or here.is_dead():
            if pumped > crash_at:
                return node.log
        elif wanted and here.end is None:
            seq, wanted = seq + 1, []
            node.story.hear(seq)
        else:
            # Waiting here forever would hang the test.
            assert node.story.done, node.log
            node.story.wait(1)
