"""Planted bugs of agents, by name; see `mutants.py`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.world.patches import Patch, named


def _stale_projection(patch: Patch, _context: SimulationContext) -> None:
    """The agent obeys any projection, even an older one."""
    desired = named("services.agent.node_reconciler", "NodeReconciler")
    plain = desired.take_projection

    def take(self: Any, message: Any, turn: Any) -> None:
        self.seq = 0
        plain(self, message, turn)

    patch(desired, "take_projection", take)


def _drop_report(patch: Patch, _context: SimulationContext) -> None:
    """The agent treats a sent report as seen."""
    reports = named("services.agent.reports", "Reports")
    plain = reports.compose

    def compose(self: Any, *args: Any) -> Any:
        report = plain(self, *args)
        self._carried.clear()
        return report

    patch(reports, "compose", compose)


def _crowd_in(patch: Patch, _context: SimulationContext) -> None:
    """The agent starts allocations before evicted ones have ended."""

    def never(_: object) -> bool:
        return False

    patch(named("services.agent.node_reconciler", "NodeReconciler"), "_has_leaving", never)


def _hasty_main(patch: Patch, _context: SimulationContext) -> None:
    """Main tasks do not wait for those before them."""

    def passed(_task: object) -> bool:
        return True

    patch(import_module("services.agent.tasks.lifecycle"), "_is_passed", passed)


def _repeat_step(patch: Patch, _context: SimulationContext) -> None:
    """A restarted agent forgets which lifecycle steps are done."""
    task = named("services.agent.tasks.runtime_state", "TaskRuntime")
    phases = named("services.agent.tasks.runtime_state", "TaskPhase")
    plain = task.restore

    def restore(self: Any, kept: Any) -> None:
        plain(self, kept)
        if self.phase is phases.DEAD and self.plan.hook == "prestart":
            self.phase = phases.IDLE

    patch(task, "restore", restore)


def _start_unprepared(patch: Patch, _context: SimulationContext) -> None:
    """The agent starts tasks whose inputs are not prepared."""

    def missing(*_: object, **__: object) -> tuple[object, ...]:
        return ()

    patch(import_module("services.agent.tasks.supervisor"), "missing_inputs", missing)


def _prepare_again(patch: Patch, _context: SimulationContext) -> None:
    """The agent prepares all inputs of a task at each of its starts."""

    def missing(_task: object, inputs: Any, *, is_first: bool) -> Any:
        return inputs if is_first else ()

    patch(import_module("services.agent.tasks.supervisor"), "missing_inputs", missing)


def _keep_variables(patch: Patch, _context: SimulationContext) -> None:
    """The agent takes what an earlier life of it had in memory for its own."""

    def there(task: Any, one: Any, *, is_first: bool) -> bool:
        return one.name in task.prepared and not (one.each_start and is_first)

    patch(import_module("services.agent.tasks.task_inputs"), "_is_there", there)


def _change_forgotten(patch: Patch, _context: SimulationContext) -> None:
    """The journal does not have the changes whose change_mode is due."""
    runtime = named("services.agent.tasks.runtime_state", "TaskRuntime")
    plain = runtime.kept

    def kept(self: Any, key: int) -> Any:
        return replace(plain(self, key), changed=())

    patch(runtime, "kept", kept)


def _change_told_again(patch: Patch, _context: SimulationContext) -> None:
    """The change_mode of what changed before a run began is performed in it."""
    runtime = named("services.agent.tasks.runtime_state", "TaskRuntime")
    plain = runtime.begin_run

    def begin_run(self: Any) -> None:
        changed = dict(self.changed)
        plain(self)
        self.changed = changed

    patch(runtime, "begin_run", begin_run)


def _forget_order(patch: Patch, _context: SimulationContext) -> None:
    """A restarted agent does not continue with the volumes that it had begun."""

    def wake(*_: object) -> None:
        """Do nothing."""

    patch(named("services.agent.tasks.volume_monitor", "VolumeMonitor"), "wake", wake)


def _tracker_kills_on_lost(patch: Patch, _context: SimulationContext) -> None:
    """An agent whose allocation must stop ends what runs elsewhere, whether that is ordered or not."""

    def never(*_: object) -> bool:
        return False

    patch(import_module("services.agent.tasks.lifecycle"), "is_left", never)
    patch(import_module("services.agent.tasks.remote_tasks"), "is_left", never)


def _start_without_token(patch: Patch, _context: SimulationContext) -> None:
    """Every allocation starts under a token of its own."""
    remote_tasks = import_module("services.agent.tasks.remote_tasks")
    plain = remote_tasks.remote_run

    def own(cluster_id: str, alloc: Any, task: Any) -> Any:
        found = plain(cluster_id, alloc, task)
        return found and replace(found, token=f"{found.token}-{alloc.key}", state="starting")

    patch(import_module("services.agent.tasks.supervisor"), "remote_run", own)


def _epoch_ignored(patch: Patch, _context: SimulationContext) -> None:
    """What runs tasks elsewhere obeys a tracker that another one has replaced."""
    runtime = named("shared.sim.environment.remote_runtime", "RemoteRuntime")

    def enter(self: Any, remote: Any) -> bool:
        self.epochs[remote.slot] = max(self.epochs.get(remote.slot, 0), remote.epoch)
        return True

    patch(runtime, "enter", enter)


def _start_unannounced(patch: Patch, _context: SimulationContext) -> None:
    """The agent starts what runs elsewhere before the log knows of it."""
    remote_tasks = import_module("services.agent.tasks.remote_tasks")

    def may(alloc: Any, task: Any, node: Any, reports: Any) -> tuple[bool, bool]:
        is_new = remote_tasks.runs_elsewhere(task, node) and remote_tasks.announce(alloc, task)
        if is_new:
            reports.touch(alloc.key)
        return True, is_new

    patch(import_module("services.agent.tasks.supervisor"), "may_start", may)


AGENT_MUTANTS: dict[str, Callable[[Patch, SimulationContext], None]] = {
    "stale-projection": _stale_projection,
    "drop-report": _drop_report,
    "crowd-in": _crowd_in,
    "hasty-main": _hasty_main,
    "repeat-step": _repeat_step,
    "start-unprepared": _start_unprepared,
    "prepare-again": _prepare_again,
    "keep-variables": _keep_variables,
    "change-forgotten": _change_forgotten,
    "change-told-again": _change_told_again,
    "volume-forgotten": _forget_order,
    "tracker-kills-on-lost": _tracker_kills_on_lost,
    "start-without-token": _start_without_token,
    "start-unannounced": _start_unannounced,
    "epoch-ignored": _epoch_ignored,
}
