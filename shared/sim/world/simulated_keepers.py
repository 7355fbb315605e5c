"""The keepers of a world, in one world of so many: two on one key store, clients that share paths, and their checks.

Once in the storm an older copy of the key store brings back keys that were erased, and both keepers begin anew.
"""

from schemas.envelope import COMMANDS_DECODER
from shared.core.runtime import messages
from shared.core.runtime.chain import RecordDecoder
from shared.protocol import subjects
from shared.sim.environment.memory_vault import MemoryKeyStore
from shared.sim.environment.role_factory import role_builder
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.environment.simulated_vault import SimulatedVault
from shared.sim.environment.variable_clients import SimulatedClient
from shared.sim.oracle.oracle import Oracle
from shared.sim.oracle.reference_variables import Request
from shared.sim.oracle.variable_checks import VariableChecks
from shared.sim.virtual_time import MS, SECOND, RandomDraws

_ONE_OF, _THIS_ONE = 19, 17
_KEEPERS, _CLIENTS = 2, 3
_COPY_AFTER = (2 * SECOND, 5 * SECOND)
_BACK_AFTER = (6 * SECOND, 10 * SECOND)


class SimulatedKeepers:
    """Keepers, key store and clients of one world; none in most."""

    def __init__(self, context: SimulationContext, seed: int, decode: RecordDecoder) -> None:
        self._context = context
        self._draws = RandomDraws(seed, 700)
        self._decode = decode
        self._checks: VariableChecks | None = None
        self.store = MemoryKeyStore()
        count = _KEEPERS if seed % _ONE_OF == _THIS_ONE else 0
        self._vaults = [
            SimulatedVault(context, self.store, RandomDraws(seed, 710 + n)) for n in range(count)
        ]
        self.processes = [
            SimulatedProcess(
                context, f"keeper-{n}", role_builder("keeper", "Keeper", decode), vault.perform
            )
            for n, vault in enumerate(self._vaults)
        ]
        for vault, process in zip(self._vaults, self.processes, strict=True):
            vault.process = process
        self._clients = [
            SimulatedClient(context, f"client-{n}", RandomDraws(seed, 720 + n))
            for n in range(_CLIENTS if count else 0)
        ]

    def begin(self, oracle: Oracle) -> None:
        """Let clients ask from now on, and judge what they are answered."""
        if not self.processes:
            return
        checks = self._checks = VariableChecks(oracle.ledger, self.store)
        self._context.bus.log.watch(self._on_log)
        self._oracle = oracle
        for vault in self._vaults:
            vault.on_erase = checks.erased
        for client in self._clients:
            client.on_answer = checks.answered
            client.begin(self._draws.between(100 * MS, 2 * SECOND))
        self._context.loop.after(self._draws.between(*_COPY_AFTER), self._copy)

    def close(self) -> None:
        """Let clients ask nothing new."""
        for client in self._clients:
            client.close()

    def stepped(self, process: SimulatedProcess, effects: list[messages.Effect]) -> None:
        """Show the reference model what a keeper asks of the plan applier."""
        if process not in self.processes:
            return
        for effect in effects:
            if isinstance(effect, messages.Send) and effect.subject == subjects.command("variable"):
                for command in COMMANDS_DECODER.decode(effect.data).commands:
                    if isinstance(command, Request):
                        self._oracle.model.variables.show(command)

    def unsettled(self) -> str:
        """Say what waits yet; empty: nothing."""
        if self._checks is None:
            return ""
        waiting = [client.name for client in self._clients if not client.is_idle]
        return f"{waiting} wait for answers" if waiting else self._checks.unsettled()

    def settle(self) -> None:
        """Judge the end."""
        if self._checks is not None:
            self._context.bus.log.unwatch(self._on_log)
            self._checks.settle()

    # ---- inside ----

    def _on_log(self, seq: int, subject: str, data: bytes) -> None:
        record = self._decode(seq, subject, data)
        if record is not None and seq not in self._oracle.forged and self._checks is not None:
            self._checks.follow(record.events, seq)

    def _copy(self) -> None:
        delay_ns = self._draws.between(*_BACK_AFTER) - self._draws.between(*_COPY_AFTER)
        self._context.loop.after(delay_ns, self._bring_back, dict(self.store.keys))

    def _bring_back(self, copy: dict[tuple[str, int], int]) -> None:
        """Put an older copy over the key store; keys that were made since stay."""
        assert self._checks is not None
        erased = {key: number for key, number in copy.items() if key not in self.store.keys}
        self.store.keys |= erased
        self._checks.resurrected |= set(erased)
        self._context.message_faults.faults["keys_brought_back"] += bool(erased)
        for process in self.processes:
            if process.role is not None:
                process.crash()
                self._context.loop.after(self._draws.below(SECOND), self._start, process)

    def _start(self, process: SimulatedProcess) -> None:
        if process.role is None:
            process.start()
