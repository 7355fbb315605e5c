"""The client of variables against a door with real boxes: what it sends, and when it sends again."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from shared import variable_client
from shared.errors import BusUnavailable, CommandInvalid
from shared.protocol import subjects
from shared.sealed_box import new_pair
from shared.variable_client import (
    ATTEMPTS,
    NoAnswer,
    OpenedVariable,
    VariableClient,
    VariableFault,
    new_lock_id,
)
from tests.variable_door import FakeDoor

T = TypeVar("T")
ITEMS = {"user": "caravan", "password": "s3cret-ä"}
PUT, GET, DELETE = (subjects.api("variable", verb) for verb in ("put", "get", "delete"))
LOCK, RENEW, RELEASE = (subjects.api("variable", verb) for verb in ("lock", "renew", "release"))
SECOND_NS = 1_000_000_000


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> FakeDoor:
    """A keeper; pauses of the client take no time."""
    monkeypatch.setattr(variable_client, "RETRY_S", 0.0)
    return FakeDoor()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end."""
    return asyncio.run(work)


def test_the_first_key_of_a_cluster_is_waited_for(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put right after the start of a cluster is sealed once its keeper has made a key."""
    pairs, door.pairs = door.pairs, []

    async def made(_pause_s: float) -> None:
        door.pairs = pairs

    monkeypatch.setattr(asyncio, "sleep", made)
    run(VariableClient(door.ask).put("app/db", ITEMS))
    assert door.rows["app/db"].items == ITEMS


def test_what_was_put_is_got(door: FakeDoor) -> None:
    """Items come back as they were put, with revision and times; no request holds a name or a text in plain."""
    client = VariableClient(door.ask)
    revision = run(client.put("app/db", ITEMS))
    found = run(client.get("app/db"))
    assert (found.items, found.revision, found.create_seq) == (ITEMS, revision, revision)
    assert found.create_ns > 0
    sent = b"".join(door.raw)
    assert not any(text.encode() in sent for pair in ITEMS.items() for text in pair)


def test_a_request_without_answer_is_sent_again_under_the_same_id(door: FakeDoor) -> None:
    """Copies are byte-equal: the keeper recognises them, and the put is carried out once."""
    door.silent[PUT] = ATTEMPTS - 1
    # Those without an answer were pending, too.
    door.pending = ATTEMPTS - 1 + 2
    revision = run(VariableClient(door.ask).put("app/db", ITEMS))
    copies = [raw for (subject, _), raw in zip(door.asked, door.raw, strict=True) if subject == PUT]
    assert len(copies) == ATTEMPTS + 2 and len(set(copies)) == 1
    assert revision == door.rows["app/db"].revision == 11


def test_no_more_than_so_many_copies_without_an_answer(door: FakeDoor) -> None:
    """A keeper that says nothing is asked ATTEMPTS times; the error says that the put may have been carried out."""
    door.silent[PUT] = ATTEMPTS
    with pytest.raises(VariableFault, match=r"no keeper answers.*may still take effect") as fault:
        run(VariableClient(door.ask).put("app/db", ITEMS))
    assert (fault.value.code, len(door.sent("put"))) == ("unavailable", ATTEMPTS)


def test_a_keeper_that_ends_with_the_request(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an attempt without an answer another keeper has as long to take over as if there had been none."""
    now_s = [1.0]
    #: what becomes of each put.
    fates = iter(("silent", "absent", "absent", "answered"))

    class Loop:
        """Its clock runs while an answer is waited for."""

        def time(self) -> float:
            return now_s[0]

    async def ask(subject: str, body: bytes, timeout_s: float) -> bytes:
        fate = next(fates) if subject == PUT else "answered"
        if fate == "silent":
            now_s[0] += 2 * timeout_s
            raise BusUnavailable(f"no answer on {subject} within {timeout_s} s")
        if fate == "absent":
            raise BusUnavailable(f"no responder on {subject}")
        return await door.ask(subject, body, timeout_s)

    monkeypatch.setattr(variable_client.asyncio, "get_running_loop", Loop)
    assert run(VariableClient(ask).put("app/db", ITEMS)) == 11


@pytest.mark.parametrize("verb", ["put", "get", "delete"])
def test_without_a_keeper(door: FakeDoor, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was delivered: the client gives up after the time of one attempt; nothing can take effect later."""
    monkeypatch.setattr(variable_client, "ATTEMPT_S", 0.0)
    door.absent = True
    client = VariableClient(door.ask)
    work = client.put("a", ITEMS) if verb == "put" else getattr(client, verb)("a")
    with pytest.raises(VariableFault) as fault:
        run(work)
    assert (fault.value.code, fault.value.message) == ("unavailable", "no keeper answers")


def test_a_cluster_that_never_had_a_keeper(door: FakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key nothing can be sealed, and nothing is sent."""
    monkeypatch.setattr(variable_client, "ATTEMPT_S", 0.0)
    door.pairs = []
    with pytest.raises(VariableFault, match="no keeper answers: the cluster has no key yet"):
        run(VariableClient(door.ask).put("a", ITEMS))
    assert door.sent("put") == []


def test_a_key_that_was_rotated_meanwhile(door: FakeDoor) -> None:
    """The put is sealed anew for the newest key, under its id."""
    door.rotates = 1
    run(VariableClient(door.ask).put("app/db", ITEMS))
    first, second = door.sent("put")
    assert first["request_id"] == second["request_id"] and first["key_id"] != second["key_id"]
    assert door.rows["app/db"].items == ITEMS


def test_a_key_that_is_replaced_again_and_again(door: FakeDoor) -> None:
    """A put is sealed anew once; then the refusal is reported."""
    door.rotates = 2
    with pytest.raises(VariableFault, match="not in force"):
        run(VariableClient(door.ask).put("app/db", ITEMS))
    assert len(door.sent("put")) == 2 and door.rows == {}


def test_check_and_set(door: FakeDoor) -> None:
    """A conflict is reported with the present revision, after one look for another key, and nothing is sent again."""
    client = VariableClient(door.ask)
    revision = run(client.put("app/db", ITEMS, cas=0))
    for work in (client.put("app/db", {"a": "b"}, cas=0), client.delete("app/db", cas=3)):
        with pytest.raises(VariableFault) as fault:
            run(work)
        assert (fault.value.code, fault.value.revision) == ("conflict", revision)
    assert len(door.sent("put")) == 2 and len(door.sent("delete")) == 1
    run(client.delete("app/db", cas=revision))
    assert door.rows == {}


def test_the_second_copy_of_a_delete_finds_it_done(door: FakeDoor) -> None:
    """With check-and-set, too: its id says that it is the same request. Another request is a conflict."""
    client = VariableClient(door.ask)
    revision = run(client.put("app/db", ITEMS))
    door.silent[DELETE] = 1
    run(client.delete("app/db", cas=revision))
    assert door.rows == {} and len(door.sent("delete")) == 2
    with pytest.raises(VariableFault):
        run(VariableClient(door.ask).delete("app/db", cas=revision))


def test_each_question_has_a_pair_of_its_own(door: FakeDoor) -> None:
    """Two gets of one path name two public keys."""
    client = VariableClient(door.ask)
    run(client.put("app/db", ITEMS))
    run(client.get("app/db"))
    run(client.get("app/db"))
    first, second = door.sent("get")
    assert first["public"] != second["public"]


def test_an_answer_for_another_question_does_not_open(
    door: FakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sealed for another key is an error without a piece of the answer."""
    client = VariableClient(door.ask)
    run(client.put("app/db", ITEMS))
    monkeypatch.setattr(variable_client, "new_pair", lambda: (new_pair()[0], new_pair()[1]))
    with pytest.raises(VariableFault, match="cannot be opened") as fault:
        run(client.get("app/db"))
    assert fault.value.code == "failed" and "s3cret" not in str(fault.value)


def test_what_does_not_exist(door: FakeDoor) -> None:
    """A get says so; a delete is done already."""
    client = VariableClient(door.ask)
    with pytest.raises(VariableFault) as fault:
        run(client.get("app/none"))
    assert fault.value.code == "not_found"
    run(client.delete("app/none"))


@pytest.mark.parametrize(
    ("items", "code"),
    [({}, "invalid"), ({"": "x"}, "invalid"), ({"a": "x" * 65_536}, "too_large")],
)
def test_items_that_cannot_be_stored_are_not_sent(
    door: FakeDoor, items: dict[str, str], code: str
) -> None:
    """No items, an empty name, more than 65,536 bytes: refused before anything leaves."""
    with pytest.raises(CommandInvalid) as fault:
        run(VariableClient(door.ask).put("a", items))
    assert fault.value.code == code and door.asked == []


@pytest.mark.parametrize("path", ["", "/a", "a//b", "a b", "nomad/x", "x" * 129])
def test_a_path_that_cannot_be_is_not_sent(door: FakeDoor, path: str) -> None:
    """Nomad's rule of paths holds before anything leaves."""
    with pytest.raises(VariableFault) as fault:
        run(VariableClient(door.ask).put(path, ITEMS))
    assert fault.value.code == "invalid" and door.asked == []


def test_an_answer_that_is_no_json(door: FakeDoor) -> None:
    """The error says which subject answered so."""

    async def ask(_subject: str, _body: bytes, _timeout_s: float) -> bytes:
        return b"<html>"

    with pytest.raises(VariableFault, match=r"query\.keys cannot be read") as fault:
        run(VariableClient(ask).get("a"))
    assert fault.value.code == "failed" and door.asked == []


def test_items_are_in_no_text_of_a_variable() -> None:
    """What prints a variable, as a trace does, shows path and revision."""
    one = OpenedVariable(path="a", revision=3, create_seq=3, create_ns=1, modify_ns=1, items=ITEMS)
    assert repr(one) == str(one) == "OpenedVariable('a', revision=3)"
    assert list(one.__rich_repr__()) == [("path", "a"), ("revision", 3)]


def hold(door: FakeDoor, lock_id: str) -> None:
    """Take the lock of `app/db`."""
    run(VariableClient(door.ask).lock("app/db", lock_id, ttl_ns=15 * SECOND_NS, delay_ns=0))


def test_a_lock_is_asked_for_under_the_same_ids_until_it_is_decided(door: FakeDoor) -> None:
    """Copies are byte-equal, so that it is taken once; another one is refused, since the path is held."""
    door.silent[LOCK], door.pending = 1, 2
    mine = new_lock_id()
    hold(door, mine)
    assert len(door.sent("lock")) == 3
    assert len(set(door.raw)) == 1
    assert door.locks["app/db"].lock_id == mine
    with pytest.raises(VariableFault) as fault:
        hold(door, new_lock_id())
    assert fault.value.code == "conflict"
    hold(door, mine)
    assert door.sent("lock")[-1]["request_id"] != door.sent("lock")[0]["request_id"]


def test_only_with_its_lock_a_held_path_is_changed(door: FakeDoor) -> None:
    """Puts and deletes name it; a lock that was lost stores nothing, also where no other has the path."""
    client, mine = VariableClient(door.ask), new_lock_id()
    hold(door, mine)
    for work in (client.put("app/db", ITEMS), client.put("app/db", ITEMS, lock_id=new_lock_id())):
        with pytest.raises(VariableFault, match="is locked"):
            run(work)
    run(client.put("app/db", ITEMS, lock_id=mine))
    run(client.delete("app/db", lock_id=mine))
    assert not door.rows
    del door.locks["app/db"]
    with pytest.raises(VariableFault, match="is not locked"):
        run(client.put("app/db", ITEMS, lock_id=mine))


def test_a_renewal_is_asked_for_once(door: FakeDoor) -> None:
    """The holder counts the time and asks again; a lock that is gone is refused."""
    client, mine = VariableClient(door.ask), new_lock_id()
    hold(door, mine)
    run(client.renew("app/db", mine))
    door.silent[RENEW] = 1
    with pytest.raises(NoAnswer, match="no keeper answers"):
        run(client.renew("app/db", mine, within_s=0.5))
    assert len(door.sent("renew")) == 2
    del door.locks["app/db"]
    with pytest.raises(VariableFault) as fault:
        run(client.renew("app/db", mine))
    assert fault.value.code == "not_found"


def test_a_lock_is_given_back_once(door: FakeDoor) -> None:
    """Copies without an answer among them; what is not held is given back already."""
    client, mine = VariableClient(door.ask), new_lock_id()
    hold(door, mine)
    door.silent[RELEASE] = 1
    run(client.release("app/db", mine))
    run(client.release("app/db", mine))
    assert not door.locks
    assert len({one["request_id"] for one in door.sent("release")}) == 2


def test_an_id_of_a_lock_cannot_be_guessed() -> None:
    """It is drawn from 128 bits."""
    drawn = {new_lock_id() for _ in range(100)}
    assert len(drawn) == 100
    assert {len(one) for one in drawn} == {32}
