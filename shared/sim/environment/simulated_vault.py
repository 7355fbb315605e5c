"""The vault of a simulated keeper: performs its effects a little later, unless the keeper has died by then."""

from collections.abc import Callable

from schemas.variables import VariableLife
from shared.core.runtime.keeper_messages import EraseKeys, VaultEffect
from shared.sim.environment.memory_vault import MemoryKeyStore, MemoryVault
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.virtual_time import MS, RandomDraws


class SimulatedVault:
    """One process's vault, on the store that all keepers of the world share."""

    def __init__(
        self,
        context: SimulationContext,
        store: MemoryKeyStore,
        draws: RandomDraws,
    ) -> None:
        self.process: SimulatedProcess | None = None
        self._context = context
        self._vault = MemoryVault(store)
        self._draws = draws
        #: hears of each life whose key is erased, before.
        self.on_erase: Callable[[VariableLife], None] | None = None

    def perform(self, effect: object) -> None:
        """Perform an effect of the keeper, and answer it."""
        assert self.process is not None
        delay_ns = self._draws.between(MS, 30 * MS)
        self._context.loop.after(delay_ns, self._do, self.process.life, effect)

    def _do(self, life: int, effect: VaultEffect) -> None:
        process = self.process
        assert process is not None
        if process.life != life or process.role is None:
            return
        if isinstance(effect, EraseKeys) and self.on_erase is not None:
            for one in effect.lives:
                self.on_erase(one)
        self._context.loop.after(MS, process.take, life, self._vault.perform(effect))
