"""Health by task states: when an allocation is healthy or unhealthy, and how it is reported."""

from typing import Any

import pytest

from schemas.envelope import ENCODER
from schemas.nodes import AllocReport
from services.agent.executor.journal import JournalState
from services.agent.reports import briefly
from services.agent.tasks.resolved_group import resolve_group
from shared.core.runtime import agent_messages
from tests.unit.agent.agent_story import SECOND, Story, alloc, job_json, task_json

RULES = {"HealthCheck": "task_states", "MinHealthyTime": 10 * SECOND}
NO_RESTARTS = {"Attempts": 0, "Interval": 60 * SECOND, "Delay": SECOND, "Mode": "fail"}
UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2


def waiting(*tasks: dict[str, Any], update: dict[str, Any] | None = None, **more: Any) -> Story:
    """An allocation that was just ordered to start."""
    rules = {**RULES, "HealthyDeadline": 60 * SECOND, "ProgressDeadline": 600 * SECOND}
    job = job_json(*tasks, Update={**rules, **(update or {})}, **more)
    return Story(job=job).hear(5, alloc())


def hooked(name: str, hook: str, *, sidecar: bool = False) -> dict[str, Any]:
    return task_json(name, Lifecycle={"Hook": hook, "Sidecar": sidecar})


def said(story: Story) -> tuple[int, str]:
    state = story.state()
    return state.health, state.health_reason


def test_it_is_healthy_when_its_tasks_ran_long_enough() -> None:
    """H1: healthy comes min_healthy_time after the start, not before, and is reported then."""
    story = waiting().started()
    story.wait(9.9).reports()
    assert said(story) == (UNKNOWN, "")
    told = story.wait(0.2).reports()
    assert [(one.health, one.health_version) for one in told[0].states] == [(HEALTHY, 0)]


def test_the_latest_start_counts() -> None:
    """Time counts from the start of the last task."""
    story = waiting(task_json("a"), task_json("b")).started("a").wait(8).started("b")
    assert said(story.wait(9.5)) == (UNKNOWN, "")
    assert said(story.wait(1)) == (HEALTHY, "")


def test_a_restart_begins_the_time_again() -> None:
    """A task that is started again in place, for whatever reason, must run the whole time again."""
    restart = {"Attempts": 3, "Interval": 600 * SECOND, "Delay": SECOND, "Mode": "fail"}
    story = waiting(restart=restart).started().wait(9).exited(1).wait(3)
    story.started(run=2)
    assert said(story.wait(9.5)) == (UNKNOWN, "")
    assert said(story.wait(1)) == (HEALTHY, "")


@pytest.mark.parametrize(
    ("hook", "sidecar", "steps", "health"),
    [
        ("prestart", False, ("pre", "pre-done", "main"), HEALTHY),
        ("prestart", True, ("pre", "main"), HEALTHY),
        ("poststart", False, ("main", "pre", "pre-done"), HEALTHY),
        ("poststart", False, ("main",), UNKNOWN),
        ("poststop", False, ("main",), HEALTHY),
        ("prestop", False, ("main",), HEALTHY),
    ],
)
def test_hooks(hook: str, sidecar: bool, steps: tuple[str, ...], health: int) -> None:  # noqa: FBT001
    """H4: prestart and poststart must have run, or run where they are sidecars; hooks of the end do not count."""
    story = waiting(hooked("pre", hook, sidecar=sidecar), task_json("main"))
    for step in steps:
        name, _, done = step.partition("-")
        story = story.exited(0, name) if done else story.started(name)
    assert said(story.wait(11)) == (health, "")


@pytest.mark.parametrize(
    ("task", "code", "reason"),
    [
        (task_json("main"), 3, "task 'main' failed: Exit Code: 3"),
        (hooked("main", "prestart"), 1, "task 'main' failed: Exit Code: 1"),
    ],
)
def test_a_failed_task_makes_it_unhealthy_at_once(
    task: dict[str, Any], code: int, reason: str
) -> None:
    """H6: unhealthy does not wait for a deadline, and names the task."""
    story = waiting(task, task_json("other"), restart=NO_RESTARTS).started().exited(code)
    assert said(story) == (UNHEALTHY, reason)


def test_an_end_of_a_main_task_makes_it_unhealthy() -> None:
    """A sidecar or main task that ends well while others run is an end all the same."""
    leader = task_json("main", Leader=True)
    never = {**NO_RESTARTS, "Attempts": 0}
    story = waiting(leader, task_json("b"), restart=never).started("main").started("b")
    story.exited(0, "main")
    assert said(story)[0] == UNHEALTHY


@pytest.mark.parametrize(
    ("update", "starts", "reason"),
    [
        (
            {"HealthyDeadline": 30 * SECOND},
            ("a",),
            "task 'b' was not running by the healthy_deadline of 30 s",
        ),
        (
            {"HealthyDeadline": 30 * SECOND},
            (),
            "; ".join(
                f"task {name!r} was not running by the healthy_deadline of 30 s" for name in "ab"
            ),
        ),
    ],
)
def test_the_deadline_names_the_guilty_tasks(
    update: dict[str, Any], starts: tuple[str, ...], reason: str
) -> None:
    """At the healthy_deadline an allocation without health is unhealthy, with a reason for each task."""
    story = waiting(task_json("a"), task_json("b"), update=update)
    for name in starts:
        story.started(name)
    assert said(story.wait(29.5)) == (UNKNOWN, "")
    assert said(story.wait(1)) == (UNHEALTHY, reason)
    late = sorted({"a", "b"} - set(starts))
    events = {name: task.events for name, task in story.state().tasks.items()}
    assert [name for name, lines in events.items() if lines] == sorted({*starts, *late})
    assert {events[name][-1].kind for name in late} == {"Alloc Unhealthy"}


def test_restarts_up_to_the_deadline_make_it_unhealthy() -> None:
    """A task that runs at the deadline, but not for long enough, is named as such."""
    restart = {"Attempts": 9, "Interval": 600 * SECOND, "Delay": SECOND, "Mode": "fail"}
    story = waiting(restart=restart, update={"HealthyDeadline": 15 * SECOND}).started().wait(8)
    story.exited(1).wait(2).started(run=2).wait(6)
    reason = "task 'main' was not running for the min_healthy_time of 10 s by the healthy_deadline"
    assert said(story) == (UNHEALTHY, f"{reason} of 15 s")


@pytest.mark.parametrize("kind", ["batch", "sysbatch"])
def test_batch_allocations_have_no_health(kind: str) -> None:
    """H6: neither time nor failure gives an allocation of a batch job a health."""
    job = job_json(kind=kind, restart=NO_RESTARTS)
    story = Story(job=job).hear(5, alloc()).started().wait(1000).exited(1)
    assert said(story) == (UNKNOWN, "")


def test_manual_says_nothing() -> None:
    """With health_check manual an operator decides: success, failure and deadline are not reported."""
    story = waiting(update={"HealthCheck": "manual"}, restart=NO_RESTARTS).started().wait(400)
    assert said(story) == (UNKNOWN, "")
    assert said(story.exited(1)) == (UNKNOWN, "")


def test_it_is_said_once() -> None:
    """A healthy allocation that fails later stays healthy, and one that is stopped gets no health."""
    story = waiting(restart=NO_RESTARTS).started().wait(11).exited(1)
    assert said(story) == (HEALTHY, "")
    stopped = waiting().started().hear(6, alloc(desired="stop")).exited(0)
    assert said(stopped.wait(100)) == (UNKNOWN, "")


def test_a_job_without_an_update_block_has_the_defaults() -> None:
    """A service without blocks is healthy after ten seconds; without deployments the migrate block rules."""
    assert said(Story().hear(5, alloc()).started().wait(10.5)) == (HEALTHY, "")
    moved = job_json(
        Update={"MaxParallel": 0, "MinHealthyTime": SECOND},
        Migrate={"MinHealthyTime": 20 * SECOND},
    )
    assert said(Story(job=moved).hear(5, alloc()).started().wait(15)) == (UNKNOWN, "")


def test_another_version_begins_anew() -> None:
    """An update in place is another deployment: no health at first, then a full min_healthy_time."""
    story = waiting().started().wait(20).hear(6, alloc(version=1))
    assert said(story) == (UNKNOWN, "")
    assert said(story.wait(9.5)) == (UNKNOWN, "")
    assert said(story.wait(1)) == (HEALTHY, "")


def test_an_agent_restart_does_not_restart_the_clocks() -> None:
    """H7: time that passed before a restart of the agent counts, where the task ran on, unlike in Nomad."""
    story = waiting().started().wait(8)
    again = story.restarted(now_ns=story.now_ns)
    again.started(adopted=True)
    assert said(again.wait(1.5)) == (UNKNOWN, "")
    assert said(again.wait(1)) == (HEALTHY, "")


def test_a_boot_of_the_machine_restarts_the_clocks() -> None:
    """The deadline does not pass while the machine is off."""
    story = waiting(update={"HealthyDeadline": 30 * SECOND}).started().wait(5)
    last = [one for one in story.journal if isinstance(one, agent_messages.HealthKept)][-1]
    again = Story(job=story.job, journal=story.journal, heard=False, boot="b2", kernel_boot="k2")
    assert last.boot == ""
    again.now_ns += 300 * SECOND
    again.step(agent_messages.TaskGone(key=7, task="main", run=1, started=True))
    again.hear(6, alloc(), boot_id="b2").wait(20)
    assert said(again)[0] == UNKNOWN


def test_health_is_told_until_it_is_seen_also_after_a_restart() -> None:
    """A verdict is resent like a status, and a restarted agent tells it again from its journal."""
    story = waiting().started().wait(9)
    story.hear(6, alloc(), reports_seen=99).reports()
    told = story.wait(12).reports()
    assert len(told) > 2
    assert {(one.states[0].health) for one in told} == {HEALTHY}
    again = story.restarted(now_ns=story.now_ns)
    assert again.started(adopted=True).wait(1).reports()[-1].states[0].health == HEALTHY


def test_a_clock_set_forward_makes_nothing_healthy() -> None:
    """Time that the clock jumped over is left out: neither healthy nor late."""
    story = waiting().started().wait(5)
    story.now_ns += 3600 * SECOND
    story.step()
    assert said(story) == (UNKNOWN, "")
    assert said(story.wait(1)) == (UNKNOWN, "")
    assert said(story.wait(5)) == (HEALTHY, "")


def test_the_deadline_does_not_count_while_it_may_not_start() -> None:
    """An allocation that waits for an evicted one has not begun: its deadline counts from its own start."""
    job = job_json(Update={**RULES, "HealthyDeadline": 20 * SECOND})
    story = Story(job=job).hear(5, alloc(3)).started(key=3)
    story.hear(6, alloc(3, desired="evict"), alloc(7)).wait(40)
    assert story.state(7).health == UNKNOWN
    story.exited(0, key=3).started(key=7).wait(11)
    assert story.state(7).health == HEALTHY


def test_a_plan_of_an_older_release_is_made_anew() -> None:
    """What was running before an upgrade gets its health from the job's text."""
    story = waiting().started()
    plan = next(one for one in story.journal if isinstance(one, agent_messages.AllocKept))
    old = bytes(plan.plan).replace(b'"job_type":"service",', b"")
    assert old != bytes(plan.plan)
    journal = [
        agent_messages.AllocKept(alloc=plan.alloc, plan=type(plan.plan)(old), first_ns=1)
        if one is plan
        else one
        for one in story.journal
        if not isinstance(one, agent_messages.HealthKept)
    ]
    again = Story(job=story.job, journal=journal, boot="b2", heard=False, now_ns=story.now_ns)
    again.started(adopted=True).hear(9, alloc(), boot_id="b2").wait(10.5)
    assert said(again) == (HEALTHY, "")


def test_the_journal_keeps_the_last_health() -> None:
    """A compacted journal has one health for each allocation, and none of a forgotten one."""
    state = JournalState()
    kept = agent_messages.AllocKept(alloc=alloc())
    last = agent_messages.HealthKept(key=7, health=HEALTHY)
    for entry in (kept, agent_messages.HealthKept(key=7), last):
        state.take(entry)
    assert state.entries() == [kept, last]
    state.take(agent_messages.AllocForgotten(key=7))
    assert state.entries() == []


@pytest.mark.parametrize(
    ("healths", "runs"),
    [((), ()), ((0, 0), ()), ((1, 1, 1), (1, 3)), ((0, 1, 1, 2), (0, 1, 1, 2, 2, 1))],
)
def test_brief_columns(healths: tuple[int, ...], runs: tuple[int, ...]) -> None:
    """Healths are runs like statuses; where none is known the column is empty."""
    states = [
        AllocReport(key=at, row=at, status="running", health=one) for at, one in enumerate(healths)
    ]
    said = briefly(states)
    assert said.healths == runs
    assert said.health_versions == ((-1, len(healths)) if runs else ())


def test_rules_of_a_group() -> None:
    """A group's block wins over its job's, field by field."""
    job = job_json(Update={"MinHealthyTime": 3 * SECOND, "HealthyDeadline": 9 * SECOND})
    job["TaskGroups"][0]["Update"] = {"HealthyDeadline": 7 * SECOND}
    found = resolve_group(ENCODER.encode(job), "g").health
    assert found is not None
    assert (found.min_healthy_ns, found.deadline_ns) == (3 * SECOND, 7 * SECOND)
    assert (found.uses_checks, found.is_manual) == (True, False)
