"""Runs of simulated tasks end once, and nothing that was planned before a power loss happens after it."""

from shared.fleet.simulated_tasks import SimulatedTasks

NAME = (7, "main", 1)


def test_a_run_ends_once() -> None:
    """The second of two ends that were planned is void."""
    tasks = SimulatedTasks()
    run = tasks.start(NAME)
    assert tasks.alive() == []
    assert tasks.come_up(run, pid=12).pid == 12
    assert tasks.alive() == [NAME]
    ended = tasks.end(run, tasks.boot, 143, 15)
    assert ended is not None and (ended.exit_code, ended.signal) == (143, 15)
    assert tasks.end(run, tasks.boot, 0) is None
    assert run.exited() == ended
    assert tasks.alive() == []


def test_a_run_that_was_ended_or_failed_does_not_come_up() -> None:
    """A start that is due later finds the run over."""
    tasks = SimulatedTasks()
    killed, failed = tasks.start(NAME), tasks.start((7, "main", 2))
    assert tasks.may_come_up(killed, tasks.boot)
    tasks.end(killed, tasks.boot, None, 9)
    assert not tasks.may_come_up(killed, tasks.boot)
    told = tasks.fail_start(failed, "no such command", recoverable=False)
    assert (told.key, told.task, told.run, told.recoverable) == (7, "main", 2, False)
    assert not tasks.may_come_up(failed, tasks.boot)


def test_a_power_loss_voids_what_was_planned() -> None:
    """Ends and starts planned under the earlier boot do not happen."""
    tasks = SimulatedTasks()
    run, coming = tasks.start(NAME), tasks.start((7, "side", 1))
    tasks.come_up(run)
    boot = tasks.boot
    tasks.lose_power()
    assert tasks.alive() == []
    assert tasks.end(run, boot, 0) is None
    assert not tasks.may_come_up(coming, boot)
