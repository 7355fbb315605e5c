"""Public keys of identities: made known once, and taken away unless they sign (ADR 38).

Nothing waits for a refusal of these commands: what cannot be carried out, or was before, leaves no fact.
"""

import re

from schemas.base import Event
from schemas.identities import (
    CreateSigningKey,
    RemoveSigningKey,
    SigningKeyCreated,
    SigningKeyRemoved,
)
from shared.core.decide.deciders import Deciders, TimedDeciders
from shared.core.state.state import State

#: Of JWT.
ALGORITHMS = frozenset({"RS256"})
#: A key of RSA with 4,096 bits has 550.
PUBLIC_BYTES_MAX = 1_024
_KEY_ID = re.compile(r"[0-9a-f]{16}")


def decide_signing_key(state: State, command: CreateSigningKey, now_ns: int) -> list[Event]:
    """Make a public key known, unless it is or was: the newest one signs."""
    table = state.signing_keys
    is_key = (
        _KEY_ID.fullmatch(command.key_id)
        and command.algorithm in ALGORITHMS
        and 0 < len(command.public) <= PUBLIC_BYTES_MAX
    )
    if not is_key or command.key_id in table.by_id or command.key_id in table.removed:
        return []
    return [
        SigningKeyCreated(
            key_id=command.key_id,
            algorithm=command.algorithm,
            public=command.public,
            at_ns=max(now_ns, state.t_ns),
        )
    ]


def decide_removal(state: State, command: RemoveSigningKey) -> list[Event]:
    """Take a public key away; the newest one stays, since it signs."""
    table = state.signing_keys
    if command.key_id not in table.by_id or command.key_id == table.newest:
        return []
    return [SigningKeyRemoved(key_id=command.key_id)]


DECIDERS: Deciders = {RemoveSigningKey: decide_removal}
TIMED_DECIDERS: TimedDeciders = {CreateSigningKey: decide_signing_key}
