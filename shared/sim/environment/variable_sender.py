"""A scripted sender of commands about variables: it stands for the keeper, and promises no more than the keeper does.

One request at a time, sent again until the log shows its outcome; a copy of an earlier one may come long after it. What
it sends as ciphertext is noise: the log does not read it.
"""

from schemas.envelope import ENCODER, AnyCommand, CommandBatch
from schemas.identities import CreateSigningKey, RemoveSigningKey
from schemas.variables import (
    CreateKey,
    DeleteVariable,
    PutVariable,
    ShredVariables,
    VariableLife,
)
from shared.protocol import subjects
from shared.sim.environment.simulated_process import SimulationContext
from shared.sim.oracle.reference_variables import ReferenceVariables, Request
from shared.sim.virtual_time import MS, SECOND, RandomDraws

_SENDER = "variable-sender"
_RETRY_NS = 250 * MS
_PATHS = ("web", "team/db", "nomad/jobs/service-0")
_RESERVED = "nomad/other"
_SIZE_MAX = 400
_SIGNING_MAX = 3


class VariableSender:
    """The one sender of a world."""

    def __init__(
        self, context: SimulationContext, draws: RandomDraws, model: ReferenceVariables
    ) -> None:
        self.context = context
        #: nothing that it sent waits; so it is in worlds where it never begins.
        self.is_idle = True
        self._draws = draws
        self._model = model
        self._number = 0
        self._is_closing = False
        self._open: AnyCommand | None = None
        #: requests that are over, for late copies.
        self._over: list[Request] = []

    def begin(self, after_ns: int) -> None:
        """Send the first command."""
        self.is_idle = False
        self.context.loop.after(after_ns, self._next)

    def close(self) -> None:
        """Begin nothing new, and have every life that is over shredded."""
        self._is_closing = True

    # ---- commands ----

    def _next(self) -> None:
        if self._is_closing and not self._model.ended:
            self.is_idle = True
            return
        command = self._shred() if self._is_closing else self._any()
        self._open = command
        if isinstance(command, Request):
            self._model.show(command)
        self._try(command)

    def _any(self) -> AnyCommand:
        what = self._draws.below(100)
        if what < 5 or not self._model.keys:
            return self._about_keys()
        if what < 15 and self._model.ended:
            return self._shred()
        if what < 35:
            return self._delete()
        return self._put()

    def _about_keys(self) -> AnyCommand:
        """Make keys of both kinds in turn; of three that sign the oldest is taken away."""
        model = self._model
        number = len(model.signing) + len(model.unsigned)
        if len(model.signing) == _SIGNING_MAX:
            return RemoveSigningKey(key_id=next(iter(model.signing)))
        if len(model.keys) > number:
            return CreateSigningKey(
                key_id=f"{number:016x}", algorithm="RS256", public=self._noise(32)
            )
        return CreateKey(key_id=f"{len(model.keys):016x}", public=self._noise(32))

    def _shred(self) -> ShredVariables:
        """Name all lives that are over, and one that is not."""
        lives = [*self._model.ended, (_PATHS[0], self._model.next_life(_PATHS[0]))]
        return ShredVariables(
            lives=tuple(VariableLife(path=path, incarnation=number) for path, number in lives)
        )

    def _delete(self) -> DeleteVariable:
        path = self._path()
        return DeleteVariable(request_id=self._fresh(), path=path, cas=self._cas(path))

    def _put(self) -> PutVariable:
        draws = self._draws
        path = self._path()
        shred_old = draws.hit(250)
        life = self._model.next_life(path) + (shred_old and path in self._model.live)
        if draws.hit(80):
            # As a keeper whose state is old encrypts it.
            life = max(life - 1, 1)
        return PutVariable(
            request_id=self._fresh(),
            path=path,
            incarnation=life,
            cipher=self._noise(28 + draws.below(_SIZE_MAX)),
            digest=self._noise(16).hex(),
            items=draws.below(20),
            size=draws.below(_SIZE_MAX),
            cas=self._cas(path),
            shred_old=shred_old,
        )

    def _path(self) -> str:
        """A path; one is used so often that it meets the limit of puts."""
        what = self._draws.below(100)
        if what < 3:
            return _RESERVED
        return _PATHS[0] if what < 50 else _PATHS[self._draws.below(len(_PATHS))]

    def _cas(self, path: str) -> int:
        """The revision to expect: none, the present one, or one of before."""
        what = self._draws.below(100)
        present = self._model.live.get(path)
        revision = 0 if present is None else present.revision
        if what < 40:
            return -1
        return revision if what < 75 else max(revision - 1, 0)

    def _fresh(self) -> str:
        self._number += 1
        return f"variable-{self._number}"

    def _noise(self, size: int) -> bytes:
        parts = [self._draws.bits().to_bytes(8, "little") for _ in range(-(-size // 8))]
        return b"".join(parts)[:size]

    # ---- sending ----

    def _try(self, command: AnyCommand) -> None:
        if self._open is not command:
            return
        if self._is_done(command):
            self._open = None
            if isinstance(command, Request) and command.request_id in self._model.told:
                self._over.append(command)
            if self._over and self._draws.hit(400):
                late = self._over[self._draws.below(len(self._over))]
                self.context.loop.after(self._draws.between(10 * MS, SECOND), self._send, late)
            self.context.loop.after(self._draws.between(10 * MS, 100 * MS), self._next)
            return
        self._send(command)
        self.context.loop.after(self._draws.between(20 * MS, _RETRY_NS), self._try, command)

    def _send(self, command: AnyCommand) -> None:
        context = self.context
        data = ENCODER.encode(CommandBatch(sender=_SENDER, commands=(command,)))
        for delay in context.message_faults.hop_delays():
            context.loop.after(delay, context.bus.publish, subjects.command("variable"), data)

    def _is_done(self, command: AnyCommand) -> bool:
        """Whether the log shows what became of a command."""
        match command:
            case CreateKey():
                return command.key_id in self._model.keys
            case CreateSigningKey():
                return command.key_id in self._model.signing
            case RemoveSigningKey():
                return command.key_id in self._model.unsigned
            case ShredVariables():
                lives = ((one.path, one.incarnation) for one in command.lives)
                return not any(life in self._model.ended for life in lives)
            case DeleteVariable() if command.path not in self._model.live and command.cas <= 0:
                # Nothing is written where nothing is to be deleted.
                return True
            case PutVariable() | DeleteVariable():
                return command.request_id in self._model.told
            case _:
                return True
