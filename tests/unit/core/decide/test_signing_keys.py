"""Public keys of identities: which is made known or taken away, and what a second copy of a command does."""

import pytest
from msgspec.structs import replace

from schemas.identities import (
    CreateSigningKey,
    RemoveSigningKey,
    SigningKeyCreated,
    SigningKeyRemoved,
)
from shared.core.decide.refusals import refuse_command
from shared.core.decide.signing_keys import PUBLIC_BYTES_MAX
from tests.builders import Cluster

FIRST, SECOND = "00112233aabbccdd", "ddccbbaa33221100"


def create(key_id: str = FIRST, public: bytes = b"p" * 294) -> CreateSigningKey:
    """Make a key known."""
    return CreateSigningKey(key_id=key_id, algorithm="RS256", public=public)


def test_a_key_is_made_known_once_and_the_newest_signs() -> None:
    """The fact has its log time; a copy of the command changes nothing, and not which key is the newest."""
    world = Cluster()
    (fact,) = world.do(create(), create())
    assert isinstance(fact, SigningKeyCreated)
    assert (fact.key_id, fact.algorithm, fact.public) == (FIRST, "RS256", b"p" * 294)
    assert fact.at_ns == world.state.t_ns > 0
    world.do(create(SECOND))
    assert world.do(create()) == []
    assert list(world.state.signing_keys.by_id) == [FIRST, SECOND]
    assert world.state.signing_keys.newest == SECOND


@pytest.mark.parametrize(
    "command",
    [
        create(FIRST[1:]),
        create(FIRST.upper()),
        create(public=b""),
        create(public=b"p" * (PUBLIC_BYTES_MAX + 1)),
        replace(create(), algorithm="none"),
        replace(create(), algorithm="HS256"),
    ],
)
def test_a_malformed_key_is_not_made_known(command: CreateSigningKey) -> None:
    """Nothing waits for it: it is dropped."""
    assert Cluster().do(command) == []


def test_a_key_that_signs_is_not_taken_away() -> None:
    """Neither the newest one, nor one that is unknown or was taken away before: there is no fact."""
    world = Cluster()
    remove = RemoveSigningKey(key_id=FIRST)
    assert world.do(remove) == []
    world.do(create())
    assert world.do(remove) == []
    world.do(create(SECOND))
    assert world.do(RemoveSigningKey(key_id=SECOND)) == []
    assert world.do(remove, remove) == [SigningKeyRemoved(key_id=FIRST)]
    assert world.do(remove) == []
    assert list(world.state.signing_keys.by_id) == [SECOND]


def test_a_late_copy_does_not_bring_a_key_back() -> None:
    """What was taken away verifies nothing any more, whichever command comes late."""
    world = Cluster()
    world.do(create(), create(SECOND), RemoveSigningKey(key_id=FIRST))
    assert world.do(create()) == []
    assert world.state.signing_keys.newest == SECOND


def test_a_command_that_cannot_be_decided_leaves_no_fact() -> None:
    """Its sender sends it until the log shows it, and waits for no refusal."""
    state = Cluster().state
    for command in (create(), RemoveSigningKey(key_id=FIRST)):
        assert refuse_command(state, command, "invalid", "why") == []
