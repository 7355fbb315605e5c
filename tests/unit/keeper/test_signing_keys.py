"""Keys that sign identities: made once, rotated, removed, and what a crash or a store of before leaves behind."""

from functools import partial

import pytest

from schemas.identities import CreateSigningKey, RemoveSigningKey
from schemas.variables import KeyCreated
from services.keeper.signing_keys import RETRY_NS
from shared.core.runtime.keeper_messages import (
    EraseSigningKeys,
    MakeSigningKey,
    OpenKeyStore,
    SigningKeyMade,
    VaultFailed,
)
from shared.core.runtime.messages import LeadershipLost
from shared.core.state.tables.signing_keys import SigningKeyTable
from shared.errors import CommandInvalid
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
    story.call(story.role.signing.rotate)
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


def test_a_rotation_makes_a_newer_key() -> None:
    """The older one still verifies; a second request meanwhile makes no second key."""
    story = Story().lead()
    story.call(story.role.signing.rotate)
    story.call(story.role.signing.rotate)
    story.settle()
    assert list(table(story).by_id) == [KEY_1, KEY_2] == story.store.signing
    assert story.role.signing.in_force() == KEY_2


def test_a_removed_key_is_erased_behind_its_fact() -> None:
    """Not before; the newest one is not even asked about."""
    story = rotated()
    for key_id in (KEY_1, KEY_2, "f" * 16):
        story.call(partial(story.role.signing.remove, key_id))
    assert story.sent == [RemoveSigningKey(key_id=KEY_1)]
    assert story.asked == []
    story.write()
    assert story.asked == [EraseSigningKeys(key_ids=(KEY_1,))]
    story.settle()
    assert story.store.signing == [KEY_2] == list(table(story).by_id)


@pytest.mark.parametrize("when", ["crash", "restored"])
def test_a_removed_key_does_not_come_back(when: str) -> None:
    """Neither by a crash between fact and erasing, nor by an older copy of the store."""
    story = rotated()
    story.call(partial(story.role.signing.remove, KEY_1))
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
    assert KEY_1 in alarm and "rotate" in alarm
    with pytest.raises(CommandInvalid, match="restore it") as caught:
        heir.role.signing.in_force()
    assert caught.value.code == "unavailable"
    heir.call(heir.role.signing.rotate)
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
