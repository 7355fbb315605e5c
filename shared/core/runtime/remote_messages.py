"""What the agent's role asks of its node for tasks that run elsewhere, and what the node answers.

Only tasks of a driver with the capability `remote` have these. `agent_messages.py` has the other effects, and who
performs them.

What a performer promises:
- A StartTask with `remote` starts what its token names once, however often and wherever it is asked for: where it is
  there already it is found. A TaskStartFailed with `is_open` does not tell whether it is there.
- A RecoverTask with `remote` finds it by the token alone.
- Every DetachTask of a run that is alive is followed by TaskExited with `is_detached`: nothing elsewhere was ended.
- Every EndRemote is answered by RemoteEnded once what the token names is ended and can never begin; before that there
  may be no answer: it is asked again.
- What comes with an epoch below the highest one of its slot has no effect elsewhere.
"""

from hashlib import blake2b

import msgspec

from schemas.base import Wire

NO_HANDLE = msgspec.Raw(b"null")


class RemoteKept(Wire, frozen=True, kw_only=True):
    """Where what runs elsewhere for a task stands, as the journal keeps it; `state` as in RemoteTask."""

    attempt: int
    state: str
    handle: msgspec.Raw = NO_HANDLE


class RemoteRun(Wire, frozen=True, kw_only=True):
    """Names what runs elsewhere for one task. `token` and `slot`: 32 hexadecimal digits."""

    #: of one attempt: the key of idempotency.
    token: str
    #: of all attempts of a task of a slot.
    slot: str
    #: of the allocation that tracks it.
    epoch: int
    generation: int
    attempt: int = 1
    #: how the last tracker, or an earlier life of this one, left it; starting: it may be there.
    state: str = "starting"
    handle: msgspec.Raw = NO_HANDLE


class DetachTask(msgspec.Struct, frozen=True, kw_only=True):
    """Stop tracking a run, and end nothing elsewhere."""

    key: int
    task: str
    run: int


class EndRemote(msgspec.Struct, frozen=True, kw_only=True):
    """End what runs elsewhere for a slot that no allocation tracks."""

    driver: str
    task: str
    remote: RemoteRun


class RemoteEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to EndRemote: nothing of it runs any more."""

    remote: RemoteRun
    task: str


def slot_name(cluster_id: str, generation: int, task: str) -> str:
    """Name the slot of a task, unlike those of all clusters: 32 hexadecimal digits."""
    return blake2b(f"{cluster_id} {generation} {task}".encode(), digest_size=16).hexdigest()


def run_token(slot: str, attempt: int) -> str:
    """Name an attempt of a slot: 32 hexadecimal digits."""
    return blake2b(f"{slot} {attempt}".encode(), digest_size=16).hexdigest()
