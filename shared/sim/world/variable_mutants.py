"""Planted bugs of variables; see mutants.py."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from schemas.variables import DeleteVariable, VariableLife
from shared.core.runtime.keeper_messages import EraseKeys
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.world.patches import Patch, named

_DECISIONS = "shared.core.decide.variables"


def _cas_ignored(patch: Patch, _context: SimulationContext) -> None:
    """A put and a delete are carried out whatever revision they expect."""

    def cas_fault(*_: object) -> str:
        return ""

    patch(import_module(_DECISIONS), "_cas_fault", cas_fault)


def _life_used_twice(patch: Patch, _context: SimulationContext) -> None:
    """The put behind a delete continues the life that is over."""
    table = named("shared.core.state.tables.variables", "VariableTable")

    def incarnation_of_put(self: Any, path: str, *, shred_old: bool = False) -> int:
        row = self.by_path.get(path)
        return 1 if row is None else row.incarnation + (shred_old and row.revision > 0)

    patch(table, "incarnation_of_put", incarnation_of_put)


def _late_delete_heeded(patch: Patch, _context: SimulationContext) -> None:
    """A late copy of a delete ends the life that began since."""

    def was_deleted_by(*_: object) -> bool:
        """Deny it."""
        return False

    patch(import_module(_DECISIONS), "_was_deleted_by", was_deleted_by)


def _erase_before_end(patch: Patch, _context: SimulationContext) -> None:
    """The keeper has a key erased when it asks for the delete, and not behind its fact."""
    keeper = named("services.keeper.role", "Keeper")
    plain = keeper._send  # noqa: SLF001

    def send(self: Any, command: Any, step: Any) -> None:
        plain(self, command, step)
        row = self.replica.state.variables.find(getattr(command, "path", ""))
        if isinstance(command, DeleteVariable) and row is not None:
            life = VariableLife(path=command.path, incarnation=row.incarnation)
            step.emit(EraseKeys(lives=(life,)))

    patch(keeper, "_send", send)


def _keys_come_back(patch: Patch, _context: SimulationContext) -> None:
    """The keeper does not compare a key store that it opens with the lives that are over."""

    def is_over(*_: object) -> bool:
        """Deny it."""
        return False

    patch(named("services.keeper.role", "Keeper"), "_is_over", is_over)


def _expected_by_keeper(patch: Patch, _context: SimulationContext) -> None:
    """The keeper compares the expected revision with its own state, and the plan applier not at all."""
    keeper = named("services.keeper.role", "Keeper")
    plain = keeper._send  # noqa: SLF001

    def send(self: Any, command: Any, step: Any) -> None:
        row = self.replica.state.variables.find(getattr(command, "path", ""))
        revision = 0 if row is None else row.revision
        if getattr(command, "cas", -1) == revision:
            command = replace(command, cas=-1)
        plain(self, command, step)

    patch(keeper, "_send", send)


def _lock_ignored(patch: Patch, _context: SimulationContext) -> None:
    """Puts and deletes of a locked path need no lock."""

    def lock_fault(*_: object) -> str:
        return ""

    patch(import_module(_DECISIONS), "_lock_fault", lock_fault)


VARIABLE_MUTANTS: dict[str, Callable[[Patch, SimulationContext], None]] = {
    "cas-ignored": _cas_ignored,
    "life-used-twice": _life_used_twice,
    "late-delete-heeded": _late_delete_heeded,
    "erase-before-end": _erase_before_end,
    "keys-come-back": _keys_come_back,
    "expected-by-keeper": _expected_by_keeper,
    "lock-ignored": _lock_ignored,
}
