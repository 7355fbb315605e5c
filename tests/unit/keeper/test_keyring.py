"""Rotation of sealing keys: once for all who ask, whatever dies in between, and the log says which is in force."""

import msgspec
import pytest

from schemas.variables import CreateKey, KeyCreated
from shared.core.runtime.keeper_messages import (
    CheckKeys,
    KeysChecked,
    KeyStoreUnusable,
    MakeSealingKey,
    VaultFailed,
)
from shared.core.runtime.messages import LeadershipLost, LogSpace
from shared.sim.environment.memory_vault import MemoryVault
from tests.unit.core.state.written_log import WrittenLog
from tests.unit.keeper.keeper_story import Story

FIRST, SECOND, THIRD = MemoryVault.key_id, f"{1:016x}", f"{2:016x}"
HOUR_S = 3600


def keys(story: Story) -> list[str]:
    """Keys of the log, the one in force behind."""
    return list(story.role.replica.state.variables.keys)


def test_a_rotation_puts_another_key_in_force() -> None:
    """It is answered once the log shows the key; puts that were sealed for either key are taken."""
    story = Story().lead()
    token = story.rotate(FIRST)
    story.vault()
    assert token not in story.answers and keys(story) == [FIRST]
    story.write()
    assert story.rotated(token).status == "accepted"
    assert story.rotated(token).key_id == SECOND and keys(story) == [FIRST, SECOND]
    old, new = story.put(path="a"), story.put(path="b", key_id=SECOND, request_id="r2")
    story.settle()
    assert {story.verdict(one).status for one in (old, new)} == {"accepted"}


def test_one_rotation_for_all_who_ask() -> None:
    """Requests for the key in force join; a later one with that key is a conflict, which names the present key."""
    story = Story().lead()
    first, second = story.rotate(FIRST), story.rotate(FIRST)
    story.vault()
    third = story.rotate(FIRST)
    story.settle()
    assert [story.rotated(one).key_id for one in (first, second, third)] == [SECOND] * 3
    late = story.rotated(story.rotate(FIRST))
    assert late.error is not None and (late.status, late.key_id) == ("refused", SECOND)
    assert late.error.code == "conflict" and SECOND in late.error.message
    assert not story.asked and keys(story) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("remove", {"key_id": FIRST}, "not_found"),
        ("remove", {"kind": "signing"}, "invalid"),
        ("rotate", {"kind": "data", "in_force": FIRST}, "invalid"),
        ("rotate", {"kind": "sealing"}, "invalid"),
        ("rotate", {"kind": "sealing", "in_force": FIRST, "more": 1}, "invalid"),
        ("rotate", {"kind": "sealing", "in_force": "x" * 2000}, "too_large"),
        ("export", {"kind": "sealing", "in_force": FIRST}, "invalid"),
    ],
)
def test_other_requests_are_refused(verb: str, body: dict[str, str], code: str) -> None:
    """What cannot be read, and the removal of a sealing key: nothing is sent, and nothing is asked of the vault."""
    story = Story().lead()
    found = story.rotated(story.ask_for_keys(verb, msgspec.json.encode(body)))
    assert found.error is not None and (found.status, found.error.code) == ("refused", code)
    assert not story.asked and not story.sent


def test_a_rotation_that_the_log_does_not_show_is_pending() -> None:
    """The rotation continues: the command is sent again, and the next request with the same key gets its outcome."""
    story = Story().lead()
    token = story.rotate(FIRST)
    story.vault()
    story.sent.clear()
    story.pass_time(6)
    assert story.rotated(token).status == "pending"
    assert CreateKey(key_id=SECOND, public=MemoryVault.public) in story.sent
    again = story.rotate(FIRST)
    story.settle()
    assert story.rotated(again).key_id == SECOND and keys(story) == [FIRST, SECOND]


def test_a_key_of_a_keeper_that_died_is_told() -> None:
    """A key that was stored, and whose command was lost, gets its fact from the next leader, and no other is made."""
    story = Story().lead()
    story.rotate(FIRST)
    story.vault()
    story.sent.clear()
    other = Story(story.log, story.store)
    other.lead()
    assert keys(other) == [FIRST, SECOND]
    token = other.rotate(SECOND)
    other.settle()
    assert other.rotated(token).key_id == THIRD


def test_two_keepers_make_one_key() -> None:
    """Both were asked for the same rotation; the store has one new key, and the log one fact of it."""
    one = Story().lead()
    two = Story(one.log, one.store)
    two.begin()
    two.vault()
    tokens = one.rotate(FIRST), two.rotate(FIRST)
    one.vault()
    two.vault()
    assert one.store.sealing == [FIRST, SECOND]
    one.write()
    two.step(*one.log.records[-1:])
    assert [one.rotated(tokens[0]).key_id, two.rotated(tokens[1]).key_id] == [SECOND] * 2


def test_a_key_that_another_keeper_told_is_read() -> None:
    """The log shows a key that this keeper has not read: it opens the store again, and requests wait meanwhile."""
    story = Story().lead()
    story.store.sealing.append(SECOND)
    story.step(story.log.tx(KeyCreated(key_id=SECOND, public=MemoryVault.public)))
    token = story.put(key_id=SECOND)
    assert token not in story.answers
    story.settle()
    assert story.verdict(token).status == "accepted" and keys(story) == [FIRST, SECOND]


def test_a_store_of_before_the_rotation_gets_another_key() -> None:
    """Clients seal for the newest key of the log, which a restored store lacks: the keeper makes one by itself."""
    log = WrittenLog()
    for key_id in (FIRST, THIRD):
        log.tx(KeyCreated(key_id=key_id, public=MemoryVault.public))
    story = Story(log)
    story.store.is_made = True
    story.begin()
    story.settle()
    assert keys(story) == [FIRST, THIRD, SECOND] == [FIRST, THIRD, *story.store.sealing[1:]]


def test_the_vault_is_asked_for_old_keys() -> None:
    """When a key is in force, and each hour; one that is erased is not asked for again."""
    story = Story().lead()
    story.rotate(FIRST)
    story.vault()
    story.write()
    assert story.asked == [CheckKeys(superseded=(FIRST,))]
    story.vault()
    story.pass_time(HOUR_S - 10)
    assert not story.asked
    story.pass_time(20)
    assert story.asked == [CheckKeys(superseded=(FIRST,))]
    story.asked.clear()
    story.step(KeysChecked())
    story.pass_time(HOUR_S + 10)
    assert story.asked == [CheckKeys(superseded=())]


def test_data_keys_that_came_back_are_erased() -> None:
    """A look at the store finds the key of a life that the log says is over: it is erased."""
    story = Story().lead()
    story.put()
    story.settle()
    copy = dict(story.store.keys)
    story.delete()
    story.settle()
    assert not story.store.keys
    story.store.keys.update(copy)
    story.pass_time(HOUR_S + 10)
    story.settle()
    assert not story.store.keys


def test_a_vault_that_fails_refuses_the_rotation() -> None:
    """The reason is passed on; the next request begins anew. A rotation of the keeper's own is tried again."""
    story = Story().lead()
    token = story.rotate(FIRST)
    [asked] = story.asked
    assert isinstance(asked, MakeSealingKey)
    story.asked.clear()
    story.step(VaultFailed(token=asked.token, code="unavailable", reason="the store is away"))
    found = story.rotated(token)
    assert found.error is not None and found.error.message == "the store is away"
    again = story.rotate(FIRST)
    story.settle()
    assert story.rotated(again).status == "accepted"


def test_what_waits_is_left_to_the_next_leader() -> None:
    """After a loss of leadership nothing is answered; without keys a request is refused with the reason."""
    story = Story().lead()
    token = story.rotate(FIRST)
    story.step(LeadershipLost())
    assert token not in story.answers and token in story.ignored
    other = Story().lead()
    other.step(KeyStoreUnusable(reason="copy the key"))
    found = other.rotated(other.rotate(FIRST))
    assert found.error is not None
    assert (found.error.code, found.error.message) == ("unavailable", "copy the key")
    assert other.role.alarms


def test_a_log_that_cannot_be_written_takes_no_rotation() -> None:
    """No key is made that the log could not show."""
    story = Story().lead()
    story.step(LogSpace(bytes=1, bytes_max=100, last_seq=1, is_write_failed=True))
    found = story.rotated(story.rotate(FIRST))
    assert found.error is not None and found.error.code == "log_full"
    assert not story.asked


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"kind":1}'])
def test_the_bytes_of_a_request_may_be_anything(data: bytes) -> None:
    """What is no JSON of a request is refused as every other request is."""
    story = Story().lead()
    found = story.rotated(story.ask_for_keys("rotate", data))
    assert found.error is not None and found.error.code == "invalid"
