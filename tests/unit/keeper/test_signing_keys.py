"""Keys that sign identities: made once, rotated, removed, and what a crash or a store of before leaves behind."""

import pytest

from schemas.identities import CreateSigningKey, RemoveSigningKey, SigningKeyCreated
from schemas.variables import KeyCreated
from services.keeper.role import REOPEN_NS
from services.keeper.signing_keys import RETRY_NS
from shared.core.runtime.keeper_messages import (
    EraseSigningKeys,
    KeyStoreUnusable,
    MakeSigningKey,
    OpenKeyStore,
    SigningKeyMade,
    VaultFailed,
)
from shared.core.runtime.messages import LeadershipLost, LogSpace
from shared.core.state.tables.signing_keys import SigningKeyTable
from shared.sim.environment.memory_vault import MemoryKeyStore, MemoryVault, stored_signing_key
from tests.unit.core.state.written_log import WrittenLog
from tests.unit.keeper.keeper_story import SECOND, Story

KEY_1, KEY_2 = f"{1:016x}", f"{2:016x}"


def table(story: Story) -> SigningKeyTable:
    """What the log says of signing keys."""
    return story.role.replica.state.signing_keys


def heir_of(story: Story) -> Story:
    """The next leader, which has read the log and not opened the key store yet."""
    heir = Story(story.log, story.store)
    heir.begin()
    return heir


def rotated() -> Story:
    """A keeper whose second key signs."""
    story = Story().lead()
    story.rotate(KEY_1, "signing")
    story.settle()
    return story


def test_the_first_key_is_durable_before_the_log_has_it() -> None:
    """The vault makes it, then its public part is sent until the log shows it; the next leader makes none."""
    story = Story()
    story.begin()
    story.vault()
    assert [type(one) for one in story.asked] == [MakeSigningKey]
    assert story.store.signing == []
    story.vault()
    assert story.store.signing == [KEY_1]
    public = stored_signing_key(KEY_1).public
    create = CreateSigningKey(key_id=KEY_1, algorithm="RS256", public=public)
    assert story.sent[-1] == create
    story.sent.remove(create)
    story.pass_time(0.6)
    assert create in story.sent
    story.write()
    assert list(table(story).by_id) == [KEY_1]
    story.pass_time(60)
    assert story.sent == []
    heir = heir_of(story)
    heir.settle()
    assert (heir.store.signing, heir.role.signing.in_force()) == ([KEY_1], KEY_1)


def test_a_key_that_a_crash_left_unknown_is_made_known() -> None:
    """A keeper that ended between store and log has the next one go on with its key."""
    story = Story()
    story.begin()
    for _ in range(2):
        story.vault()
    heir = heir_of(story)
    heir.settle()
    assert (heir.store.signing, list(table(heir).by_id)) == ([KEY_1], [KEY_1])


def test_a_cluster_of_an_older_release_gets_its_first_key() -> None:
    """Its log has variables and their keys, and no signing key: the store is not made anew, the key is."""
    log, store = WrittenLog(), MemoryKeyStore()
    log.tx(KeyCreated(key_id=MemoryVault.key_id, public=MemoryVault.public))
    store.is_made = True
    heir = Story(log, store)
    heir.begin()
    assert heir.asked == [OpenKeyStore(cluster_id="c1", may_create=False)]
    heir.settle()
    assert list(table(heir).by_id) == [KEY_1]


def test_a_rotation_makes_one_newer_key() -> None:
    """The older one still verifies. All who name the key in force get the new one, once the log shows it."""
    story = Story().lead()
    tokens = [story.rotate(KEY_1, "signing")]
    story.vault()
    tokens += [story.rotate(KEY_1, "signing")]
    assert not story.answers
    story.settle()
    found = [story.rotated(one) for one in tokens]
    assert [(one.status, one.key_id) for one in found] == [("accepted", KEY_2)] * 2
    assert list(table(story).by_id) == [KEY_1, KEY_2] == story.store.signing
    assert story.role.signing.in_force() == KEY_2
    late = story.rotated(story.rotate(KEY_1, "signing"))
    assert late.error is not None and (late.error.code, late.key_id) == ("conflict", KEY_2)
    assert not story.asked


def test_the_two_kinds_of_keys_are_rotated_apart() -> None:
    """Neither answers for the other, and each verdict names the key of its kind."""
    story = Story().lead()
    sealing = story.rotate(MemoryVault.key_id)
    story.vault()
    signing = story.rotate(KEY_1, "signing")
    story.write()
    assert story.rotated(sealing).key_id == story.store.sealing[-1] != MemoryVault.key_id
    assert signing not in story.answers
    story.settle()
    assert story.rotated(signing).key_id == KEY_2


def test_two_keepers_that_rotate_at_once_make_one_key() -> None:
    """The store has one new key, and the log one fact of it."""
    one = Story().lead()
    two = heir_of(one)
    two.vault()
    tokens = one.rotate(KEY_1, "signing"), two.rotate(KEY_1, "signing")
    one.vault()
    two.vault()
    assert one.store.signing == [KEY_1, KEY_2]
    one.write()
    two.step(*one.log.records[-1:])
    assert [one.rotated(tokens[0]).key_id, two.rotated(tokens[1]).key_id] == [KEY_2] * 2


def test_a_rotation_that_a_crash_cut_is_finished() -> None:
    """The key is in the store and not in the log: the next leader makes it known, and makes no other."""
    story = Story().lead()
    story.rotate(KEY_1, "signing")
    story.vault()
    heir = heir_of(story)
    heir.settle()
    assert list(table(heir).by_id) == [KEY_1, KEY_2] == heir.store.signing
    assert heir.role.signing.in_force() == KEY_2


def test_a_key_that_another_keeper_told_is_read() -> None:
    """The log shows a key that this keeper has not read: it opens the store again, and signs with it."""
    story = Story().lead()
    story.store.signing.append(KEY_2)
    public = stored_signing_key(KEY_2).public
    fact = SigningKeyCreated(key_id=KEY_2, algorithm="RS256", public=public, at_ns=1)
    story.step(story.log.tx(fact))
    assert story.asked == [OpenKeyStore(cluster_id="c1", may_create=False)]
    story.settle()
    assert story.role.signing.in_force() == KEY_2 and not story.role.alarms


def test_a_rotation_that_fails_is_refused() -> None:
    """With the vault's reason; the sealing keys are not affected, and the next request begins anew."""
    story = Story().lead()
    token = story.rotate(KEY_1, "signing")
    [asked] = story.asked
    assert isinstance(asked, MakeSigningKey) and asked.known == (KEY_1,)
    story.asked.clear()
    story.step(VaultFailed(token=asked.token, code="unavailable", reason="the store is away"))
    found = story.rotated(token)
    assert found.error is not None and found.error.message == "the store is away"
    again = story.rotate(KEY_1, "signing")
    story.settle()
    assert story.rotated(again).status == "accepted"


def test_a_removed_key_is_erased_behind_its_fact() -> None:
    """Not before. The removal is accepted when the log shows it, and again when it is repeated."""
    story = rotated()
    tokens = [story.remove(KEY_1), story.remove(KEY_1)]
    assert story.sent == [RemoveSigningKey(key_id=KEY_1)]
    assert story.asked == []
    story.write()
    assert story.asked == [EraseSigningKeys(key_ids=(KEY_1,))]
    story.settle()
    assert story.store.signing == [KEY_2] == list(table(story).by_id)
    tokens += [story.remove(KEY_1)]
    found = [story.rotated(one) for one in tokens]
    assert [(one.status, one.key_id) for one in found] == [("accepted", KEY_2)] * 3
    assert not story.sent


def test_a_removal_is_refused() -> None:
    """Of the key in force, and of one that never was; where the log cannot be written of every key."""
    story = rotated()
    found = [story.rotated(story.remove(key_id)) for key_id in (KEY_2, "f" * 16)]
    assert [one.error.code for one in found if one.error] == ["conflict", "not_found"]
    story.step(LogSpace(bytes=1, bytes_max=100, last_seq=1, is_write_failed=True))
    full = [story.rotated(story.remove(KEY_1)), story.rotated(story.rotate(KEY_2, "signing"))]
    assert [one.error.code for one in full if one.error] == ["log_full"] * 2
    assert not story.sent and not story.asked


def test_a_removal_that_the_log_does_not_show_is_pending() -> None:
    """It goes to the log again, also while the store is opened anew."""
    story = rotated()
    token = story.remove(KEY_1)
    story.sent.clear()
    story.step(KeyStoreUnusable(reason="copy the key"))
    story.pass_time(6)
    assert story.rotated(token).status == "pending"
    assert RemoveSigningKey(key_id=KEY_1) in story.sent
    story.write()
    assert list(table(story).by_id) == [KEY_2] and story.store.signing == [KEY_1, KEY_2]
    story.pass_time(REOPEN_NS / SECOND)
    story.settle()
    assert story.store.signing == [KEY_2] == list(table(story).by_id)


@pytest.mark.parametrize("when", ["crash", "restored"])
def test_a_removed_key_does_not_come_back(when: str) -> None:
    """Neither by a crash between fact and erasing, nor by an older copy of the store."""
    story = rotated()
    story.remove(KEY_1)
    story.write()
    if when == "restored":
        story.settle()
        story.store.signing.insert(0, KEY_1)
    heir = heir_of(story)
    heir.settle()
    assert heir.store.signing == [KEY_2] == list(table(heir).by_id)
    assert heir.role.signing.in_force() == KEY_2


def test_a_key_that_is_lost_is_an_alarm_and_not_made_anew() -> None:
    """An operator decides: the store back, or a rotation, after which the new key signs."""
    story = Story().lead()
    story.store.signing.clear()
    heir = heir_of(story)
    heir.settle()
    assert (heir.store.signing, heir.sent) == ([], [])
    (alarm,) = heir.role.alarms
    assert KEY_1 in alarm and "restore it" in alarm and "rotate" in alarm
    heir.rotate(KEY_1, "signing")
    heir.settle()
    assert not heir.role.alarms
    assert heir.role.signing.in_force() == KEY_2


def test_a_first_key_that_is_not_made_is_tried_again() -> None:
    """After a pause, by itself."""
    story = Story()
    story.begin()
    story.vault()
    (asked,) = story.asked
    assert isinstance(asked, MakeSigningKey)
    story.asked.clear()
    story.step(VaultFailed(token=asked.token, code="failed", reason="no"))
    story.write()
    assert story.asked == []
    story.pass_time(RETRY_NS / SECOND)
    story.settle()
    assert list(table(story).by_id) == [KEY_1]


def test_what_an_earlier_leadership_asked_for_means_nothing() -> None:
    """A key that comes late is in the store; the next opening makes it known."""
    story = Story()
    story.begin()
    story.vault()
    (asked,) = story.asked
    story.step(LeadershipLost())
    assert isinstance(asked, MakeSigningKey)
    sent = list(story.sent)
    story.step(SigningKeyMade(token=asked.token, key_id=KEY_1, public=b"p"))
    assert story.sent == sent
