"""Identities of tasks: tokens that the keeper signs, as files and variables of a task, renewed at half of their lives.

A token is in the memory of this process, in its file and in the environment of its task, and nowhere else. After a
restart of the agent a running task keeps its token: what is known of it is when it must be renewed (`token_times.py`).
A start needs a new one then, as the token in memory is gone. Next: `keeper_tokens.py`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import msgspec

from services.agent.backoff import Backoff
from services.agent.drivers.driver import Driver, OwningDriver, StartRefused
from services.agent.inputs.identities.keeper_tokens import (
    SignedToken,
    TokenRefused,
    TokenSource,
    TokenUnavailable,
)
from services.agent.inputs.identities.token_times import (
    TokenTimes,
    boot_time_s,
    keep_times,
    kept_times,
    token_mark,
)
from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.places import resolve_place
from services.agent.inputs.templates.handler import TaskView
from services.agent.inputs.templates.missing_data import MissingData
from services.agent.inputs.thread_writes import write_in_thread
from services.agent.safe_open import is_swapped, replace_below
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import IDENTITY, IdentityInput
from shared.protocol.identity_names import DEFAULT_IDENTITY

#: Nomad's word for an input that cannot be had.
FAILED = "Task hook failed"
EVENT = "Identity"
VARIABLE = "NOMAD_TOKEN"
#: A start asks again after so long.
RESEND_S = 1.0
#: The keeper may learn of an allocation later than its node: a refusal counts after so long.
GRACE_S = 5.0
#: A renewal that fails is tried again after so long, doubled each time; and so often once the token has expired.
RETRY_FIRST_S, RETRY_LONGEST_S, RETRY_EXPIRED_S = 1.0, 3600.0, 10.0
#: A token is renewed after this part of its life, and up to so much of it later.
RENEW_AFTER, RENEW_SPREAD = 0.5, 0.1
#: Sleeps are no longer than this: the machine may sleep, too.
_SLEEP_S = 30.0
_MODE = 0o600

#: (driver, user) -> uid and gid of the task.
TaskOwner = Callable[[str, str], tuple[int, int]]


def task_owner(drivers: Mapping[str, Driver]) -> TaskOwner:
    """Ask drivers whose tasks are; without an answer they are the agent's user's."""

    def owner(name: str, user: str) -> tuple[int, int]:
        driver: object = drivers.get(name)
        return driver.owner(user) if isinstance(driver, OwningDriver) else (-1, -1)

    return owner


class _Held:
    """The token of one identity of one task."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: None: this life of the agent has none.
        self.token: str | None = None
        self.times: TokenTimes | None = None


class IdentityHandler:
    """Prepares and renews the identities of one agent's tasks."""

    kind = IDENTITY
    event_kind = FAILED
    begin_kind = ""
    #: secrets, artifacts and templates may come to use it.
    stage = -2
    #: it waits for the keeper as long as it must.
    timeout_s: float | None = None

    def __init__(
        self,
        source: TokenSource,
        view: TaskView,
        owner: TaskOwner,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self._source = source
        self._view = view
        self._owner = owner
        self._clock = clock
        self._missing = MissingData(EVENT, ", waits for the keeper")
        #: allocation -> (task, identity) -> token.
        self._held: dict[str, dict[tuple[str, str], _Held]] = {}

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Have the token signed, and put it in its places."""
        spec = _spec(wanted)
        try:
            signed = await self._first(about, spec, wanted.name)
        finally:
            self._missing.note(about, wanted.name, ())
        return await self._take(about, spec, signed)

    async def watch(self, about: InputContext, wanted: TaskInput) -> AsyncIterator[bytes]:
        """Renew the token; what an earlier life left is said first, so that no change is lost with it."""
        spec = _spec(wanted)
        held = self._of(about, spec)
        if held.times is None:
            held.times = await asyncio.to_thread(
                kept_times, about.places.top, about.places.runs, spec.identity
            )
            if held.times is not None:
                yield held.times.mark.encode()
        while held.times is None or held.times.life_s:
            if held.times is not None:
                await self._due(held.times)
            yield await self._renewed(about, spec, held)

    def is_over(self, about: InputContext, wanted: TaskInput) -> bool:
        """Say whether the token has expired: a start may have waited for other inputs longer than it lives."""
        times = self._of(about, _spec(wanted)).times
        return times is None or (times.life_s > 0 and times.left_s(self._clock()) <= 0)

    def environment(self, alloc_id: str, task: str, wanted: TaskInput) -> Mapping[str, str]:
        """Return the token as a variable, where the job asks for it. Raises KeyError."""
        spec = _spec(wanted)
        if not spec.env:
            return {}
        held = self._held.get(alloc_id, {}).get((task, spec.identity))
        if held is None or held.token is None:
            raise KeyError(wanted.name)
        is_default = spec.identity == DEFAULT_IDENTITY
        return {VARIABLE if is_default else f"{VARIABLE}_{spec.identity}": held.token}

    def forget(self, alloc_id: str) -> None:
        """Drop the tokens of an allocation that is over."""
        self._held.pop(alloc_id, None)

    # ---- inside ----

    def _of(self, about: InputContext, spec: IdentityInput) -> _Held:
        own = self._held.setdefault(about.alloc_id, {})
        return own.setdefault((about.task, spec.identity), _Held())

    async def _first(self, about: InputContext, spec: IdentityInput, name: str) -> SignedToken:
        """Ask until there is an answer. Raises InputFailed where it stays a refusal."""
        refused_s: float | None = None
        while True:
            try:
                return await self._source.signed(about.alloc_id, about.task, spec.identity)
            except TokenUnavailable:
                refused_s = None
            except TokenRefused as err:
                refused_s = self._clock() if refused_s is None else refused_s
                if self._clock() - refused_s >= GRACE_S:
                    text = f"identity {spec.identity} is not signed: {err}"
                    raise InputFailed(text, recoverable=True, kind=FAILED) from err
            self._missing.note(about, name, (spec.identity,))
            await asyncio.sleep(RESEND_S)

    async def _due(self, times: TokenTimes) -> None:
        """Wait until a token is to be renewed; nodes and tasks that began together do not renew together."""
        # Not for a secret.
        part = RENEW_AFTER + RENEW_SPREAD * random.random()  # noqa: S311
        while (pause_s := times.left_s(self._clock()) - times.life_s * (1 - part)) > 0:  # noqa: ASYNC110 - of a clock.
            await asyncio.sleep(min(pause_s, _SLEEP_S))

    async def _renewed(self, about: InputContext, spec: IdentityInput, held: _Held) -> bytes:
        """Have another token signed, and put it in its places; the one before stays until then."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        told, tries = "", 0
        while True:
            try:
                signed = await self._source.signed(about.alloc_id, about.task, spec.identity)
                return await self._take(about, spec, signed)
            except (TokenUnavailable, TokenRefused, InputFailed) as err:
                tries += 1
                # The first failure may be that of a keeper that is replaced.
                if tries > 1 and str(err) != told:
                    told = str(err)
                    about.note(EVENT, f"identity {spec.identity} is not renewed yet: {err}")
            left_s = 0.0 if held.times is None else held.times.left_s(self._clock())
            await asyncio.sleep(retry_pause_s(backoff.take(), left_s))

    async def _take(self, about: InputContext, spec: IdentityInput, signed: SignedToken) -> bytes:
        """Put a token in its places: first its file, then what is known of it. Raises InputFailed."""
        held = self._of(about, spec)
        times = TokenTimes(
            mark=token_mark(signed.token), received_s=self._clock(), life_s=signed.life_s
        )
        async with held.lock:
            try:
                await write_in_thread(partial(self._write, about, spec, signed.token, times))
            except OSError as err:
                step = f"{err.filename}: " if isinstance(err.filename, str) else ""
                text = f"{spec.file or spec.identity}: {step}{err.strerror or err}"
                is_final = is_swapped(err) or isinstance(err, IsADirectoryError)
                raise InputFailed(text, recoverable=not is_final, kind=FAILED) from err
            held.token, held.times = signed.token, times
        return times.mark.encode()

    def _write(
        self, about: InputContext, spec: IdentityInput, token: str, times: TokenTimes
    ) -> None:
        """Write the files. Raises InputFailed and OSError."""
        if spec.file:
            try:
                place = resolve_place(
                    about.places, spec.file, self._view(spec.driver, about.places)
                )
                owner = self._owner(spec.driver, about.launch.user)
            except ValueError as err:
                raise InputFailed(f"filepath {err}", recoverable=False, kind=FAILED) from err
            except StartRefused as err:
                raise InputFailed(str(err), recoverable=err.recoverable, kind=FAILED) from err
            tops = (about.places.task, about.places.shared)
            if not any(place.is_relative_to(top) and place != top for top in tops):
                text = f"filepath {spec.file[:80]!r} leaves the directories of the task"
                raise InputFailed(text, recoverable=False, kind=FAILED)
            replace_below(about.places.top, place, token.encode(), mode=_MODE, owner=owner)
        keep_times(about.places.top, about.places.runs, spec.identity, times)


def retry_pause_s(pause_s: float, left_s: float) -> float:
    """Return how long a renewal that failed waits: the pause, and less as the token comes to its end."""
    if left_s <= 0:
        return min(pause_s, RETRY_EXPIRED_S)
    return max(min(pause_s, left_s / 2), RETRY_FIRST_S)


def _spec(wanted: TaskInput) -> IdentityInput:
    return msgspec.json.decode(wanted.spec, type=IdentityInput)
