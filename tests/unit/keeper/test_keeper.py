"""The keeper: what it asks of vault and plan applier, what it answers, and what a crash in between leaves."""

import msgspec
import pytest

from schemas.variables import (
    CreateKey,
    DeleteVariable,
    PutVariable,
    ShredVariables,
    VariableAnswer,
    VariableLife,
)
from services.keeper.role import REOPEN_NS
from services.keeper.variable_requests import ANSWER_NS
from shared.core.runtime.keeper_messages import EraseKeys, OpenItems, OpenKeyStore, SealItems
from shared.core.runtime.messages import (
    LeadershipLost,
    LeadershipWon,
    LogSpace,
    Reconnected,
)
from shared.sim.environment.memory_vault import MemoryVault
from tests.unit.keeper.keeper_story import DATABASE, PUBLIC, SECOND, Story


def leading() -> Story:
    """A keeper that leads, with an open key store and a key that the log shows."""
    return Story().lead()


def kept(request_id: str = "r1", **items: str) -> Story:
    """A keeper with one variable."""
    story = leading()
    token = story.put(request_id=request_id, items=items or {"password": "secret"})
    story.settle()
    assert story.verdict(token).status == "accepted"
    return story


# ---- put and get ----


def test_what_is_put_is_what_is_read() -> None:
    """A put is sealed for the first life, decided by the applier, answered by its fact; a get reads the items."""
    story = leading()
    token = story.put(items={"user": "app", "password": "secret"})
    (seal,) = story.asked
    assert isinstance(seal, SealItems)
    assert seal.life == VariableLife(path=DATABASE, incarnation=1)
    story.vault()
    (command,) = story.sent
    assert isinstance(command, PutVariable)
    assert (command.items, command.size, command.incarnation) == (2, 4 + 3 + 8 + 6, 1)
    assert token not in story.answers, "not before the log shows it"
    record = story.write()
    assert record is not None
    verdict = story.verdict(token)
    assert (verdict.status, verdict.revision) == ("accepted", record.seq)
    answer = story.get()
    assert (answer.path, answer.revision, answer.items) == (DATABASE, record.seq, 2)
    assert story.items() == {"user": "app", "password": "secret"}


def test_another_put_is_another_revision_of_the_same_life() -> None:
    """create_seq stays, the revision rises, the key is the same."""
    story = kept()
    first = story.get()
    story.put(request_id="r2", items={"password": "other"})
    story.settle()
    second = story.get()
    assert second.create_seq == first.create_seq == first.revision < second.revision
    assert story.items() == {"password": "other"}
    assert list(story.store.keys) == [(DATABASE, 1)]


def test_a_request_that_is_sent_again_is_carried_out_once() -> None:
    """Whether the first is pending or done; the same id with other items is refused."""
    story = leading()
    first, again = story.put(), story.put()
    story.vault()
    assert len(story.sent) == 1
    story.write()
    assert story.verdict(first) == story.verdict(again)
    late = story.put()
    story.settle()
    assert story.verdict(late) == story.verdict(first)
    other = story.put(items={"password": "other"})
    story.settle()
    assert story.fault(other)[0] == "conflict"
    assert story.items() == {"password": "secret"}


def test_the_same_id_for_other_items_is_refused_while_the_first_is_pending() -> None:
    """The one that came first is carried out."""
    story = leading()
    first = story.put()
    second = story.put(items={"password": "other"})
    story.settle()
    assert story.verdict(first).status == "accepted"
    assert story.verdict(second).error is not None
    assert story.items() == {"password": "secret"}


def test_check_and_set_is_decided_by_the_log() -> None:
    """Two clients that saw the same revision: one is accepted, the other learns the present revision."""
    story = kept()
    seen = story.get().revision
    one = story.put(request_id="r2", items={"password": "one"}, cas=seen)
    two = story.put(request_id="r3", items={"password": "two"}, cas=seen)
    story.settle()
    assert story.verdict(one).status == "accepted"
    assert story.fault(two)[0] == "conflict"
    assert story.verdict(two).revision == story.verdict(one).revision
    assert story.items() == {"password": "one"}


def test_a_put_that_was_sealed_for_a_life_that_ended_is_sealed_again() -> None:
    """A delete is decided first: the put begins the next life, and its client does not notice."""
    story = kept()
    story.delete()
    token = story.put(request_id="r2", items={"password": "new"})
    story.vault()
    assert [type(one) for one in story.sent] == [DeleteVariable, PutVariable]
    story.write()
    assert token not in story.answers
    story.settle()
    assert story.verdict(token).status == "accepted"
    assert story.items() == {"password": "new"}
    assert list(story.store.keys) == [(DATABASE, 2)]


def test_what_was_refused_stays_refused() -> None:
    """A late copy of a command, and the same request again, change nothing; a stale put is tried again."""
    story = kept()
    seen = story.get().revision
    refused = story.put(request_id="r2", items={"password": "two"}, cas=seen + 1)
    story.vault()
    late = list(story.sent)
    story.write()
    assert story.fault(refused)[0] == "conflict"
    story.put(request_id="r3", items={"password": "three"}, cas=seen)
    story.settle()
    story.delete()
    story.settle()
    story.sent = [msgspec.structs.replace(one, cas=0, incarnation=2) for one in late]  # type: ignore[type-var]
    assert story.write() is None
    again = story.put(request_id="r2", items={"password": "two"}, cas=0)
    story.settle()
    assert story.fault(again)[0] == "conflict"
    assert story.get().error is not None


def test_a_late_copy_of_a_delete_that_another_carried_out_ends_no_later_life() -> None:
    """The command names the life that is meant."""
    story = kept()
    story.delete(request_id="d1")
    story.delete(request_id="d2")
    late = story.sent[1]
    story.settle()
    story.put(request_id="r2", items={"password": "new"})
    story.settle()
    story.sent = [late]
    assert story.write() is None
    assert story.items() == {"password": "new"}


@pytest.mark.parametrize(
    ("verb", "body", "code", "says"),
    [
        ("put", {"path": "/a"}, "invalid", "no segment may be empty"),
        ("put", {"path": "nomad/x"}, "invalid", "reserved"),
        ("put", {"request_id": ""}, "invalid", "request_id must have 1 to 128 characters"),
        ("put", {"caz": 1}, "invalid", "caz"),
        ("put", {"sealed": b"x" * 140_000}, "too_large", "are taken"),
        ("put", {"key_id": 7}, "invalid", "key_id"),
        ("get", {"path": "a b"}, "invalid", "only letters"),
        ("get", {"public": b"short"}, "invalid", "public has 5 bytes, it must have 32"),
        ("get", {"path": "nothing/here"}, "not_found", "there is no variable 'nothing/here'"),
        ("delete", {"request_id": "x" * 129}, "invalid", "request_id"),
        ("steal", {}, "invalid", "unknown verb 'steal'; expected one of put, get, delete, lock"),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    verb: str, body: dict[str, object], code: str, says: str
) -> None:
    """At once, with code and reason; nothing is asked of vault or applier."""
    story = kept()
    right: dict[str, dict[str, object]] = {
        "put": {"path": DATABASE, "request_id": "r9", "key_id": "k", "sealed": b"x"},
        "get": {"path": DATABASE, "public": PUBLIC},
        "delete": {"path": DATABASE, "request_id": "d9"},
    }
    token = story.ask(verb, **{**right.get(verb, {}), **body})
    error = msgspec.json.decode(story.answers[token])["error"]
    assert error["code"] == code
    assert says in error["message"]
    assert (story.asked, story.sent) == ([], [])


def test_what_the_vault_cannot_open_is_refused() -> None:
    """Sealed for another path, another request or another key."""
    story = leading()
    token = story.ask(
        "put",
        path="other/path",
        request_id="r1",
        key_id=MemoryVault.key_id,
        sealed=b'{"to":"","context":[],"items":{}}',
    )
    story.settle()
    assert story.verdict(token).status == "refused"
    assert story.fault(token)[0] == "invalid"


# ---- delete and erase ----


def test_a_delete_erases_the_key_behind_its_fact_and_says_so() -> None:
    """The order is: the log says that it is over, the key is erased, the log says that it is erased."""
    story = kept()
    token = story.delete()
    assert (story.asked, len(story.sent)) == ([], 1)
    story.write()
    assert story.verdict(token).status == "accepted"
    (erase,) = story.asked
    assert erase == EraseKeys(lives=(VariableLife(path=DATABASE, incarnation=1),))
    assert story.store.keys
    story.vault()
    assert not story.store.keys
    (shred,) = story.sent
    assert isinstance(shred, ShredVariables)
    story.write()
    assert story.role.replica.state.variables.ended == {}
    assert story.get().error is not None
    story.pass_time(60)
    assert (story.asked, story.sent) == ([], []), "it is done once"


def test_a_delete_of_what_is_not_there_is_done() -> None:
    """Also the second time; with check and set it is refused by the log."""
    story = kept()
    assert story.verdict(story.delete("never/was")).status == "accepted"
    first = story.delete()
    story.settle()
    again, other = story.delete(), story.delete(request_id="d2")
    assert [story.verdict(one).status for one in (first, again, other)] == ["accepted"] * 3
    late = story.delete(request_id="d3", cas=7)
    story.settle()
    assert story.verdict(late).status == "refused"


def test_two_deletes_of_one_path_are_both_done_unless_one_expects_a_revision() -> None:
    """What another has deleted is gone; but not what was expected to be there."""
    story = kept()
    revision = story.get().revision
    plain = story.delete(request_id="d1")
    other = story.delete(request_id="d2")
    late = story.delete(request_id="d3", cas=revision)
    story.settle()
    assert [story.verdict(one).status for one in (plain, other)] == ["accepted"] * 2
    assert story.fault(late)[0] == "conflict"


def test_a_late_copy_of_a_delete_ends_no_later_life() -> None:
    """It was done; the path has begun its next life meanwhile."""
    story = kept()
    story.delete()
    story.settle()
    story.put(request_id="r2", items={"password": "new"})
    story.settle()
    assert story.verdict(story.delete()).status == "accepted"
    story.settle()
    assert story.items() == {"password": "new"}


def test_shred_old_makes_older_items_unreadable() -> None:
    """The put begins another life with another key; that of the life before is erased."""
    story = kept()
    old = story.role.replica.state.variables.by_path[DATABASE]
    story.put(request_id="r2", items={"password": "new"}, shred_old=True)
    story.settle()
    assert story.items() == {"password": "new"}
    assert list(story.store.keys) == [(DATABASE, 2)]
    opened = MemoryVault(story.store).perform(
        OpenItems(
            token=1,
            life=VariableLife(path=DATABASE, incarnation=1),
            request_id="r1",
            revision=old.revision,
            cipher=old.cipher,
            public=PUBLIC,
        )
    )
    assert not hasattr(opened, "sealed")


def test_a_key_that_is_made_behind_the_end_of_its_life_is_erased() -> None:
    """A put is with the vault while its path is deleted and the key erased: the vault makes another one."""
    story = kept()
    story.put(request_id="r2", items={"password": "late"})
    (late,) = story.asked
    story.asked = []
    story.delete()
    story.settle()
    assert not story.store.keys
    story.asked = [late]
    story.settle()
    assert list(story.store.keys) == [(DATABASE, 2)]
    assert story.items() == {"password": "late"}


@pytest.mark.parametrize("erased", [False, True])
def test_a_crash_while_a_life_is_erased_is_made_up_for(erased: bool) -> None:  # noqa: FBT001
    """The next leader finds the life in the log, and erases it, also where that was done already."""
    story = kept()
    story.delete()
    story.write()
    if erased:
        story.store.keys.clear()
    heir = Story(story.log, story.store)
    heir.begin()
    heir.settle()
    assert not heir.store.keys
    assert heir.role.replica.state.variables.ended == {}


def test_a_key_store_of_before_resurrects_nothing() -> None:
    """Keys of lives that the log says are over are erased before anything is answered; those of later lives stay."""
    story = kept()
    before = dict(story.store.keys)
    story.delete()
    story.settle()
    story.put("other/path", request_id="r2")
    story.settle()
    story.store.keys |= before | {("not/yet", 1): 77}
    heir = Story(story.log, story.store)
    heir.begin()
    heir.settle()
    assert sorted(heir.store.keys) == [("not/yet", 1), ("other/path", 1)]
    heir.pass_time(60)
    assert heir.sent == [], "the log knows it already"


# ---- leadership, the key store and failures ----


def test_a_standby_answers_nothing() -> None:
    """Every instance hears a request; the one that leads answers."""
    story = leading()
    standby = Story(story.log, story.store)
    standby.step(*standby.log.records)
    token = standby.put()
    assert (standby.answers, standby.asked, standby.sent) == ({}, [], [])
    assert token in standby.ignored


def test_what_comes_while_the_key_store_opens_waits() -> None:
    """It is answered in order when the store is open."""
    story = Story()
    story.begin()
    token = story.put()
    assert [type(one) for one in story.asked] == [OpenKeyStore]
    story.settle()
    assert story.verdict(token).status == "accepted"


def test_a_new_cluster_makes_its_key_store_once() -> None:
    """The log knows of no key: the store may be made, and its key is sent until the log shows it."""
    story = Story()
    story.begin()
    assert story.asked == [OpenKeyStore(cluster_id="c1", may_create=True)]
    story.vault()
    (first,) = story.sent
    assert first == CreateKey(key_id=MemoryVault.key_id, public=MemoryVault.public)
    story.pass_time(0.6)
    assert story.sent == [first, first]
    story.write()
    story.pass_time(60)
    assert story.sent == []
    heir = Story(story.log, story.store)
    heir.begin()
    assert heir.asked == [OpenKeyStore(cluster_id="c1", may_create=False)]
    heir.vault()
    assert heir.sent == []


def test_a_store_that_is_gone_is_an_alarm_until_it_is_back() -> None:
    """Requests are refused with the reason; the store is tried again by itself."""
    story = kept()
    story.store.is_made = False
    heir = Story(story.log, story.store)
    heir.begin()
    early = heir.put(request_id="r2")
    heir.vault()
    assert list(heir.role.alarms) == ["the keeper cannot use its keys: the key store is gone"]
    late = heir.put(request_id="r3")
    for token in (early, late):
        assert heir.fault(token) == ("unavailable", "the key store is gone")
    heir.store.is_made = True
    heir.pass_time(REOPEN_NS / SECOND)
    heir.settle()
    assert not heir.role.alarms
    assert heir.items() == {"password": "secret"}


def test_one_that_loses_leadership_answers_nothing_more() -> None:
    """Neither what is with the vault, nor what the log shows later; as a leader again it begins anew."""
    story = kept()
    waiting = [story.put(request_id="r2"), story.ask("get", path=DATABASE, public=PUBLIC)]
    story.put("b", request_id="r3")
    story.step(LeadershipLost())
    story.vault()
    story.write()
    assert not set(waiting) & set(story.answers)
    assert set(waiting) <= story.ignored
    story.step(LeadershipWon())
    story.settle()
    assert story.items() == {"password": "secret"}


def test_a_command_is_sent_again_until_the_log_shows_it() -> None:
    """After half a second, and at once to a new applier and a bus that was away; then the answer is pending."""
    story = leading()
    token = story.put()
    story.vault()
    (first,) = story.sent
    story.pass_time(0.6)
    story.step(story.log.takeover())
    story.step(Reconnected())
    assert story.sent == [first] * 4
    story.pass_time(ANSWER_NS / SECOND)
    assert story.verdict(token).status == "pending"
    again = story.put()
    story.vault()
    story.write()
    assert story.verdict(again).status == "accepted"


def test_a_log_that_cannot_be_written_is_told_at_once() -> None:
    """What waits is pending, what comes is refused, what is stored can be read."""
    story = kept()
    waiting = story.put(request_id="r2")
    story.vault()
    story.step(LogSpace(bytes=1, bytes_max=0, last_seq=1, is_write_failed=True))
    assert story.verdict(waiting).status == "pending"
    late = story.put(request_id="r3")
    assert story.fault(late)[0] == "log_full"
    assert story.items() == {"password": "secret"}


def test_a_log_that_is_nearly_full_takes_no_puts() -> None:
    """A put is refused with the reason; what is stored can be read, and deleted."""
    story = kept()
    story.step(LogSpace(bytes=95, bytes_max=100, last_seq=story.log.seq))
    refused = story.put(request_id="r2")
    assert story.fault(refused) == (
        "log_full",
        "the log is 95 % full: only deletes and locks are accepted",
    )
    assert story.items() == {"password": "secret"}
    token = story.delete()
    story.settle()
    assert story.verdict(token).status == "accepted"


def test_a_vault_that_does_not_answer_holds_nobody() -> None:
    """After five seconds a put is pending, and a get is refused as one that may be asked again."""
    story = kept()
    put, get = story.put(request_id="r2"), story.ask("get", path=DATABASE, public=PUBLIC)
    story.pass_time(ANSWER_NS / SECOND + 1)
    assert story.verdict(put).status == "pending"
    answer = msgspec.json.decode(story.answers[get], type=VariableAnswer)
    assert answer.error is not None
    assert answer.error.code == "unavailable"
    story.settle()


def test_no_item_is_in_anything_that_the_keeper_says() -> None:
    """Commands, answers and metrics hold no item; only what the vault sealed or encrypted does, here in plain."""
    story = kept(password="MARKER")
    assert "MARKER" not in repr(story.role.metrics())
    for data in story.answers.values():
        assert b"MARKER" not in data
