"""Locks of variables: who holds a path, until when, and what others may do meanwhile."""

import pytest

from schemas.variables import ExpireLock, LockVariable
from services.keeper.held_locks import lock_hash
from shared.core.runtime.messages import LeadershipLost, LeadershipWon
from tests.unit.keeper.keeper_story import DATABASE, SECOND, Story

MINE, OTHER = "mine-0123456789abcdef", "other-0123456789abcdef"
TTL_S, DELAY_S = 20, 15


def lock(story: Story, lock_id: str = MINE, *, request_id: str = "l1", path: str = DATABASE) -> int:
    """Ask for a lock; return the token of the answer."""
    return story.ask(
        "lock",
        path=path,
        lock_id=lock_id,
        ttl_ns=TTL_S * SECOND,
        delay_ns=DELAY_S * SECOND,
        request_id=request_id,
    )


def renew(story: Story, lock_id: str = MINE) -> int:
    """Renew a lock; return the token of the answer."""
    return story.ask("renew", path=DATABASE, lock_id=lock_id)


def release(story: Story, lock_id: str = MINE, *, request_id: str = "u1") -> int:
    """Give a lock back; return the token of the answer."""
    return story.ask("release", path=DATABASE, lock_id=lock_id, request_id=request_id)


def status(story: Story, token: int) -> str:
    """Status of an answer, or the code of its refusal."""
    found = story.verdict(token)
    return found.error.code if found.error is not None else found.status


def locked() -> Story:
    """A keeper with one variable, which is locked."""
    story = Story().lead()
    story.put()
    story.settle()
    token = lock(story)
    story.settle()
    assert status(story, token) == "accepted"
    return story


def holder(story: Story) -> str:
    """Who holds the path, as the log has it."""
    return story.role.replica.state.variable_locks.holder(DATABASE)


def test_a_lock_holds_a_path_that_need_not_have_items() -> None:
    """The log has a hash of its id alone; the answer is what the log says."""
    story = Story().lead()
    token = lock(story)
    (command,) = story.sent
    assert isinstance(command, LockVariable)
    assert MINE not in repr(command)
    assert token not in story.answers
    story.settle()
    assert status(story, token) == "accepted"
    assert holder(story) == lock_hash(MINE)
    assert story.get().error is not None


def test_only_the_holder_changes_a_locked_path() -> None:
    """Puts and deletes of others are refused, by the plan applier; reading is free."""
    story = locked()
    refused = [
        story.put(request_id="r2", items={"password": "theirs"}),
        story.put(request_id="r3", items={"password": "theirs"}, lock_id=OTHER),
        story.delete(),
        lock(story, OTHER, request_id="l2"),
    ]
    story.settle()
    assert [status(story, one) for one in refused] == ["conflict"] * 4
    token = story.put(request_id="r4", items={"password": "mine"}, lock_id=MINE)
    story.settle()
    assert status(story, token) == "accepted"
    assert story.items() == {"password": "mine"}
    token = story.delete(request_id="d2", lock_id=MINE)
    story.settle()
    assert status(story, token) == "accepted"


def test_a_lock_lives_as_long_as_it_is_renewed() -> None:
    """A renewal writes nothing; the same lock asked for again renews it, too."""
    story = locked()
    seq = story.log.seq
    for _ in range(3):
        story.pass_time(TTL_S - 1)
        assert status(story, renew(story)) == "accepted"
        story.pass_time(TTL_S - 1)
        assert status(story, lock(story, request_id="again")) == "accepted"
    story.settle()
    assert story.log.seq == seq
    assert status(story, renew(story, OTHER)) == "not_found"


def test_a_silent_holder_loses_its_lock_and_the_path_stays_free_for_a_while() -> None:
    """The keeper sends the expiry until the log shows it; a late renewal is refused."""
    story = locked()
    story.pass_time(TTL_S - 0.1)
    assert story.sent == []
    story.pass_time(0.8)
    expire = ExpireLock(path=DATABASE, lock=lock_hash(MINE))
    assert story.sent == [expire, expire]
    story.settle()
    assert holder(story) == ""
    assert status(story, renew(story)) == "not_found"
    early = lock(story, OTHER, request_id="l2")
    story.settle()
    assert status(story, early) == "conflict"
    story.pass_time(DELAY_S)
    late = lock(story, OTHER, request_id="l3")
    story.settle()
    assert status(story, late) == "accepted"
    story.put(request_id="r9", items={"password": "theirs"}, lock_id=OTHER)
    story.settle()
    assert story.items() == {"password": "theirs"}


def test_a_renewal_that_comes_too_late_is_refused() -> None:
    """Also before the log shows the end of the lock: what was sent cannot be called back."""
    story = locked()
    story.pass_time(TTL_S)
    assert status(story, renew(story)) == "not_found"
    assert holder(story) == lock_hash(MINE)
    story.settle()
    assert holder(story) == ""


def test_a_lock_that_is_given_back_frees_the_path_at_once() -> None:
    """Giving back what one does not hold is done already, and ends no other's lock."""
    story = locked()
    assert status(story, release(story, OTHER, request_id="u0")) == "accepted"
    assert holder(story) == lock_hash(MINE)
    token = release(story)
    story.settle()
    assert status(story, token) == "accepted"
    assert status(story, release(story)) == "accepted"
    other = lock(story, OTHER, request_id="l2")
    story.settle()
    assert status(story, other) == "accepted"
    story.pass_time(TTL_S / 2)
    assert story.sent == []


def test_the_next_leader_gives_every_lock_its_whole_time() -> None:
    """It has not heard of renewals; one that loses its lead counts no longer."""
    story = locked()
    story.pass_time(TTL_S - 1)
    heir = Story(story.log, story.store)
    heir.now_ns = story.now_ns
    heir.begin()
    heir.vault()
    heir.pass_time(TTL_S - 1)
    assert heir.sent == []
    heir.pass_time(1.1)
    assert ExpireLock(path=DATABASE, lock=lock_hash(MINE)) in heir.sent
    story.step(LeadershipLost())
    story.pass_time(60)
    assert story.sent == []
    story.step(LeadershipWon())
    story.pass_time(TTL_S - 1)
    assert not [one for one in story.sent if isinstance(one, ExpireLock)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"lock_id": "short"}, "lock_id must have 16 to 128 characters"),
        ({"ttl_ns": 1}, "ttl is 1e-09 s, it must be 10 to 86400 s"),
        ({"delay_ns": -1}, "delay"),
        ({"path": "nomad/x"}, "reserved"),
        ({"request_id": ""}, "request_id must have 1 to 128 characters"),
    ],
)
def test_a_lock_that_cannot_be_is_refused(body: dict[str, object], says: str) -> None:
    """With the reason, by the keeper or by the plan applier."""
    story = Story().lead()
    right = {"path": DATABASE, "lock_id": MINE, "request_id": "l1"}
    token = story.ask("lock", **{**right, **body})
    story.settle()
    code, reason = story.fault(token)
    assert code == "invalid"
    assert says in reason


def test_locks_need_no_keys() -> None:
    """While the key store is gone locks are taken, renewed and given back."""
    story = locked()
    story.store.is_made = False
    heir = Story(story.log, story.store)
    heir.now_ns = story.now_ns
    heir.begin()
    heir.vault()
    assert heir.role.alarms
    assert status(heir, renew(heir)) == "accepted"
    token = release(heir)
    heir.settle()
    assert status(heir, token) == "accepted"
