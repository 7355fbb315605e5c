"""Variables: which put, delete, shredding and key is accepted, and what a second copy of each does."""

from typing import Any

import pytest
from msgspec.structs import replace

from schemas.base import SECOND_NS
from schemas.variables import (
    CreateKey,
    DeleteVariable,
    ExpireLock,
    KeyCreated,
    LockVariable,
    PutVariable,
    ReleaseLock,
    ShredVariables,
    VariableDeleted,
    VariableLife,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
    VariablePut,
    VariableRefused,
    VariablesShredded,
)
from shared.core.decide.refusals import refuse_command
from shared.core.state.tables.variables import REFUSED_KEPT
from shared.protocol.variable_paths import (
    CIPHER_BYTES_MAX,
    LIVES_MAX,
    PATH_CHARS_MAX,
    PUTS_MAX,
    PUTS_SPAN_NS,
    SIZE_BYTES_MAX,
    TOTAL_SIZE_BYTES_MAX,
    path_fault,
)
from tests.builders import Cluster

DIGEST = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
KEY = "00112233aabbccdd"


def put(request_id: str = "r1", path: str = "app/db", **fields: Any) -> PutVariable:
    """A put of one item; `fields` override."""
    base: dict[str, Any] = {
        "incarnation": 1,
        "cipher": b"noise",
        "digest": DIGEST,
        "items": 1,
        "size": 10,
    }
    return PutVariable(request_id=request_id, path=path, **(base | fields))


def delete(request_id: str = "d1", path: str = "app/db", **fields: Any) -> DeleteVariable:
    """A delete of the same path."""
    return DeleteVariable(request_id=request_id, path=path, **fields)


def life(incarnation: int, path: str = "app/db") -> VariableLife:
    """One life of the path."""
    return VariableLife(path=path, incarnation=incarnation)


def refusal(world: Cluster, command: PutVariable | DeleteVariable) -> VariableRefused:
    """The one fact of a command that is refused."""
    (event,) = world.do(command)
    assert isinstance(event, VariableRefused)
    assert (event.request_id, event.path) == (command.request_id, command.path)
    return event


def world_with(*commands: PutVariable | DeleteVariable) -> Cluster:
    """A cluster in which these commands were carried out, one after the other."""
    world = Cluster()
    for command in commands:
        assert not any(isinstance(event, VariableRefused) for event in world.do(command))
    return world


# ---- paths ----


@pytest.mark.parametrize(
    "path",
    [
        *("a", "a/b/c", "A-Z_0~9", "x" * PATH_CHARS_MAX, "nomads", "nomad-x/y", "x/nomad"),
        *("nomad/jobs", "nomad/jobs/a", "nomad/jobs/a/b/c", "nomad/job-templates/x"),
    ],
)
def test_paths_that_name_a_variable(path: str) -> None:
    """Nomad's alphabet, and below its reserved level what tasks read."""
    assert path_fault(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        *("", " ", "/a", "a/", "a//b", "/", "a b", "a.b", "ä", "a\n", "x" * (PATH_CHARS_MAX + 1)),
        *("nomad", "nomad/x", "nomad/jobsx", "nomad/job-templates", "nomad/job-templates/x/y"),
    ],
)
def test_paths_that_name_none(path: str) -> None:
    """A put and a delete of such a path are refused with the reason."""
    world = Cluster()
    assert path_fault(path)
    for command in (put(path=path), delete(path=path)):
        (event,) = world.do(command)
        assert isinstance(event, VariableRefused)
        assert (event.code, event.reason) == ("invalid", path_fault(path))
        assert len(event.path) <= PATH_CHARS_MAX


# ---- puts ----


def test_a_put_is_a_fact_with_what_the_keeper_encrypted() -> None:
    """Every field is that of the command; the time is the log's."""
    world = Cluster()
    (event,) = world.do(put())
    assert event == VariablePut(
        path="app/db",
        incarnation=1,
        cipher=b"noise",
        digest=DIGEST,
        items=1,
        size=10,
        at_ns=world.now_ns,
        request_id="r1",
    )
    row = world.state.variables.by_path["app/db"]
    assert (row.revision, row.create_seq, row.modify_ns) == (world.state.seq,) * 2 + (world.now_ns,)


def test_a_clock_that_runs_behind_the_log_dates_no_put_before_it() -> None:
    """The time of a put is never before that of the log."""
    world = Cluster()
    log_ns = world.now_ns
    (event,) = world.later(-30).do(put())
    assert isinstance(event, VariablePut)
    assert event.at_ns == log_ns


@pytest.mark.parametrize(
    "fields",
    [
        {"request_id": ""},
        {"request_id": "r" * 129},
        {"items": 0},
        {"size": SIZE_BYTES_MAX + 1},
        {"size": -1},
        {"cipher": b"x" * (CIPHER_BYTES_MAX + 1)},
        {"digest": ""},
        {"digest": DIGEST[:-1]},
        {"digest": DIGEST.upper()},
        {"digest": f"{DIGEST}\n"},
    ],
)
def test_a_malformed_put_is_refused(fields: dict[str, Any]) -> None:
    """Before anything else, so that no state makes it right."""
    (event,) = Cluster().do(put(**fields))
    assert isinstance(event, VariableRefused)
    assert event.code == "invalid"
    assert event.reason
    assert len(event.request_id) <= 128


def test_the_largest_put_is_accepted() -> None:
    """A bound is the last value that is allowed."""
    largest = put("r" * 128, size=SIZE_BYTES_MAX, cipher=b"x" * CIPHER_BYTES_MAX)
    (event,) = Cluster().do(largest)
    assert isinstance(event, VariablePut)


def test_a_second_copy_of_a_put_changes_nothing() -> None:
    """Neither in the same transaction, nor after another put, nor after the life of the path."""
    world = Cluster()
    assert len(world.do(put(), put())) == 1
    world.do(put("r2"))
    assert world.do(put()) == []
    world.do(delete())
    assert world.do(put()) == []
    assert world.state.variables.find("app/db") is None


def test_a_request_id_is_not_used_for_other_items() -> None:
    """With another digest it is another request, and the first one stands."""
    world = world_with(put())
    refused = refusal(world, put(digest=OTHER))
    assert (refused.code, refused.revision) == ("conflict", world.state.seq - 1)


@pytest.mark.parametrize("command", [put("r2"), delete("r2")])
def test_check_and_set(command: PutVariable | DeleteVariable) -> None:
    """The revision must be the expected one; 0 expects that the path does not exist."""
    world = world_with(put())
    present = world.state.seq
    for expected in (0, present - 1, present + 1):
        refused = refusal(world, replace(command, request_id=f"late{expected}", cas=expected))
        assert (refused.code, refused.revision) == ("conflict", present)
        assert str(present) in refused.reason
        assert not expected or str(expected) in refused.reason
    (event,) = world.do(replace(command, cas=present))
    assert isinstance(event, VariablePut | VariableDeleted)


def test_check_and_set_of_a_path_that_does_not_exist() -> None:
    """Never put or deleted: both are revision 0."""
    world = Cluster()
    refused = refusal(world, put("r0", cas=7))
    assert (refused.code, refused.revision) == ("conflict", 0)
    world.do(put(cas=0), delete())
    refused = refusal(world, put("r2", incarnation=2, cas=7))
    assert (refused.code, refused.revision) == ("conflict", 0)
    (event,) = world.do(put("r3", incarnation=2, cas=0))
    assert isinstance(event, VariablePut)


def test_the_life_that_a_put_is_encrypted_for() -> None:
    """1 for a new path, the present one for one that exists, the next one behind a delete."""
    world = Cluster()
    assert refusal(world, put(incarnation=2)).code == "stale"
    world.do(put())
    assert refusal(world, put("r2", incarnation=2)).code == "stale"
    world.do(delete())
    assert refusal(world, put("r2", incarnation=1)).code == "stale"
    assert refusal(world, put("r3", incarnation=3)).code == "stale"
    (event,) = world.do(put("r4", incarnation=2))
    assert isinstance(event, VariablePut)


def test_shredding_the_old_ends_the_life_in_the_same_transaction() -> None:
    """The end of the present life, then a put of the next one; of a path that does not exist the put alone."""
    world = Cluster()
    (first,) = world.do(put(shred_old=True))
    assert isinstance(first, VariablePut)
    assert refusal(world, put("r2", incarnation=1, shred_old=True)).code == "stale"
    ended, begun = world.do(put("r2", incarnation=2, shred_old=True))
    assert ended == VariableDeleted(path="app/db", incarnation=1, request_id="r2")
    assert isinstance(begun, VariablePut)
    assert begun.incarnation == 2
    assert world.state.variables.ended == {("app/db", 1): world.state.seq}
    assert world.do(put("r2", incarnation=2, shred_old=True)) == []


def test_a_path_is_not_put_too_often() -> None:
    """Ten within a minute of log time, whatever became of the path; another path has its own count."""
    world = Cluster()
    for number in range(PUTS_MAX - 1):
        world.do(put(f"r{number}"))
    world.do(delete(), put("last", incarnation=2))
    assert refusal(world, put("more", incarnation=2)).code == "rate"
    (event,) = world.do(put("other", "app/other"))
    assert isinstance(event, VariablePut)
    world.later(PUTS_SPAN_NS / SECOND_NS)
    (event,) = world.do(put("more", incarnation=2))
    assert isinstance(event, VariablePut)


def test_all_variables_together_have_a_bound() -> None:
    """What replaces a variable counts for what it has more; what was deleted does not count."""
    world = Cluster()
    for number in range(TOTAL_SIZE_BYTES_MAX // SIZE_BYTES_MAX):
        world.do(put(f"r{number}", f"app/{number}", size=SIZE_BYTES_MAX))
    assert world.state.variables.total_size == TOTAL_SIZE_BYTES_MAX
    assert refusal(world, put("more", size=1)).code == "quota"
    (event,) = world.do(put("same", "app/0", size=SIZE_BYTES_MAX))
    assert isinstance(event, VariablePut)
    world.do(delete(path="app/1"))
    (event,) = world.do(put("again", size=1))
    assert isinstance(event, VariablePut)


@pytest.mark.parametrize("command", [put("r2", cas=99), delete("d2", cas=99)])
def test_what_was_refused_for_good_stays_refused(command: PutVariable | DeleteVariable) -> None:
    """A late copy changes nothing, although it would fit now; that of a put for another life is tried again."""
    world = world_with(put())
    assert refusal(world, command).code == "conflict"
    revision = world.state.variables.by_path["app/db"].revision
    assert world.do(replace(command, cas=revision)) == []
    assert refusal(world, put("r3", incarnation=5)).code == "stale"
    (event,) = world.do(put("r3"))
    assert isinstance(event, VariablePut)


def test_refusals_are_remembered_up_to_a_bound() -> None:
    """The oldest is forgotten first."""
    world = world_with(put())
    for number in range(REFUSED_KEPT + 1):
        assert refusal(world, delete(f"d{number}", cas=99)).code == "conflict"
    refused = world.state.variables.refused
    assert len(refused) == REFUSED_KEPT
    assert ("app/db", "d0") not in refused


def test_a_delete_ends_no_later_life_than_it_means() -> None:
    """Another has deleted the path, and put it again; a delete that means no life ends the present one."""
    world = world_with(put(), delete(), put("r2", incarnation=2))
    assert world.do(delete("d2", incarnation=1)) == []
    (event,) = world.do(delete("d3", incarnation=2))
    assert isinstance(event, VariableDeleted)
    world.do(put("r3", incarnation=3))
    (event,) = world.do(delete("d4"))
    assert isinstance(event, VariableDeleted)


def test_the_first_fault_is_told() -> None:
    """In the order: malformed, used request, check and set, life, rate."""
    world = Cluster()
    for number in range(PUTS_MAX):
        world.do(put(f"r{number}"))
    cases = {
        "invalid": put("r1", items=0, digest=OTHER, cas=0, incarnation=7),
        "conflict": put("r1", digest=OTHER, cas=world.state.seq, incarnation=7),
        "stale": put("new", cas=world.state.seq, incarnation=7),
        "rate": put("new", cas=world.state.seq),
    }
    for code, command in cases.items():
        assert world.do(command)[0].code == code  # type: ignore[attr-defined]
    assert world.do(put("new", cas=0, incarnation=7))[0].code == "conflict"  # type: ignore[attr-defined]


# ---- deletes ----


def test_a_delete_of_what_is_not_there_is_done() -> None:
    """No fact: the sender sees that the path does not exist."""
    world = Cluster()
    assert world.do(delete(), delete(cas=0)) == []
    assert refusal(world, delete(cas=3)).code == "conflict"


def test_a_late_copy_of_a_delete_does_not_end_the_next_life() -> None:
    """Whether it expects a revision or not."""
    world = world_with(put())
    revision = world.state.seq
    world.do(delete(cas=revision))
    world.do(put("r2", incarnation=2))
    assert world.do(delete(cas=revision), delete()) == []
    assert world.state.variables.find("app/db") is not None
    (event,) = world.do(delete("d2"))
    assert event == VariableDeleted(path="app/db", incarnation=2, request_id="d2")


@pytest.mark.parametrize("request_id", ["", "r" * 129])
def test_a_delete_has_a_request_id(request_id: str) -> None:
    """Without one no copy of it could be recognised."""
    (event,) = world_with(put()).do(delete(request_id))
    assert isinstance(event, VariableRefused)
    assert event.code == "invalid"


# ---- shredding, keys ----


def test_only_lives_that_are_over_are_shredded() -> None:
    """Others are left out, each is named once, and a second copy finds nothing."""
    world = world_with(put(), delete(), put("r2", incarnation=2))
    command = ShredVariables(lives=(life(2), life(1), life(1), life(1, "app/none")))
    assert world.do(command) == [VariablesShredded(lives=(life(1),))]
    assert world.do(command) == []
    assert world.state.variables.ended == {}


def test_one_fact_shreds_a_bounded_number() -> None:
    """The sender names what is left again."""
    world = Cluster()
    paths = [f"app/{number}" for number in range(LIVES_MAX + 1)]
    for path in paths:
        world.do(put(path, path), delete(path=path))
    command = ShredVariables(lives=tuple(life(1, path) for path in paths))
    (event,) = world.do(command)
    assert isinstance(event, VariablesShredded)
    assert len(event.lives) == LIVES_MAX
    assert world.do(command) == [VariablesShredded(lives=(life(1, paths[-1]),))]


def test_a_key_is_made_known_once() -> None:
    """A second copy changes nothing, another key is the newest then."""
    world = Cluster()
    first = CreateKey(key_id=KEY, public=b"p" * 32)
    assert world.do(first, first) == [KeyCreated(key_id=KEY, public=b"p" * 32)]
    world.do(CreateKey(key_id=KEY[::-1], public=b"q" * 32))
    assert world.do(first) == []
    assert list(world.state.variables.keys) == [KEY, KEY[::-1]]


@pytest.mark.parametrize(
    "command",
    [
        CreateKey(key_id=KEY[1:], public=b"p" * 32),
        CreateKey(key_id=KEY.upper(), public=b"p" * 32),
        CreateKey(key_id=KEY, public=b"p" * 31),
        CreateKey(key_id=KEY, public=b""),
    ],
)
def test_a_malformed_key_is_not_made_known(command: CreateKey) -> None:
    """Nothing waits for it: it is dropped."""
    assert Cluster().do(command) == []


# ---- what cannot be decided ----


def test_a_command_that_cannot_be_decided_is_refused_as_others_are() -> None:
    """With a code that its sender knows; what has no sender that waits has none."""
    world = world_with(put())
    for code in ("invalid", "too_large"):
        (event,) = refuse_command(world.state, put("r2"), code, "why")
        assert event == VariableRefused(
            request_id="r2",
            path="app/db",
            code="invalid",
            reason="why",
            revision=world.state.seq,
        )
    assert refuse_command(world.state, ShredVariables(lives=()), "invalid", "why") == []
    assert refuse_command(world.state, CreateKey(key_id=KEY, public=b""), "invalid", "why") == []


# ---- locks ----

LOCK, THEIRS = "11" * 16, "22" * 16
TTL, DELAY = 20 * SECOND_NS, 15 * SECOND_NS


def lock(request_id: str = "l1", path: str = "app/db", **fields: Any) -> LockVariable:
    """A lock of the same path."""
    base: dict[str, Any] = {"lock": LOCK, "ttl_ns": TTL, "delay_ns": DELAY}
    return LockVariable(request_id=request_id, path=path, **(base | fields))


def test_a_lock_holds_a_path_until_it_is_given_back() -> None:
    """A path without items, too; another lock is refused, the same one again is done; giving back ends no other's."""
    world = Cluster()
    (taken,) = world.do(lock())
    assert isinstance(taken, VariableLocked)
    assert (taken.lock, taken.ttl_ns, taken.delay_ns) == (LOCK, TTL, DELAY)
    assert world.do(lock("l2")) == []
    (refused,) = world.do(lock("l3", lock=THEIRS))
    assert isinstance(refused, VariableRefused)
    assert (refused.code, refused.revision) == ("locked", 0)
    assert world.do(ReleaseLock(request_id="u1", path="app/db", lock=THEIRS)) == []
    (released,) = world.do(ReleaseLock(request_id="u2", path="app/db", lock=LOCK))
    assert isinstance(released, VariableLockReleased)
    assert world.do(ReleaseLock(request_id="u3", path="app/db", lock=LOCK)) == []
    (taken,) = world.do(lock("l4", lock=THEIRS))
    assert isinstance(taken, VariableLocked)


def test_a_locked_path_is_changed_by_its_holder_alone() -> None:
    """Puts and deletes name the lock; on a path that is not locked they must not."""
    world = Cluster()
    assert refusal(world, put("r0", lock=LOCK)).code == "locked"
    world.do(lock())
    assert refusal(world, put("r1")).code == "locked"
    assert refusal(world, put("r2", lock=THEIRS)).code == "locked"
    (event,) = world.do(put("r3", lock=LOCK))
    assert isinstance(event, VariablePut)
    assert refusal(world, delete("d1")).code == "locked"
    (ended,) = world.do(delete("d2", lock=LOCK))
    assert isinstance(ended, VariableDeleted)
    assert world.state.variable_locks.holder("app/db") == LOCK


def test_a_path_stays_free_behind_an_expired_lock() -> None:
    """Until its delay is over in log time; a late word about a lock that has ended changes nothing."""
    world = Cluster()
    world.do(lock())
    assert world.do(ExpireLock(path="app/db", lock=THEIRS)) == []
    (expired,) = world.do(ExpireLock(path="app/db", lock=LOCK))
    assert isinstance(expired, VariableLockExpired)
    assert expired.free_ns == world.now_ns + DELAY
    assert world.do(ExpireLock(path="app/db", lock=LOCK)) == []
    (event,) = world.do(put())
    assert isinstance(event, VariablePut)
    (refused,) = world.do(lock("l2", lock=THEIRS))
    assert isinstance(refused, VariableRefused)
    assert refused.code == "locked"
    world.later(DELAY / SECOND_NS)
    (taken,) = world.do(lock("l3", lock=THEIRS))
    assert isinstance(taken, VariableLocked)


def test_paths_that_were_locked_are_forgotten_when_they_are_free() -> None:
    """The table does not grow by locks that have expired."""
    world = Cluster()
    world.do(lock(path="app/a"))
    world.do(ExpireLock(path="app/a", lock=LOCK))
    world.later(DELAY / SECOND_NS)
    world.do(lock("l2", path="app/b"))
    assert list(world.state.variable_locks.by_path) == ["app/b"]


@pytest.mark.parametrize(
    "command",
    [
        lock(lock="short"),
        lock(ttl_ns=1),
        lock(ttl_ns=90_000 * SECOND_NS),
        lock(delay_ns=-1),
        lock(path="nomad/x"),
        lock(request_id=""),
    ],
)
def test_a_malformed_lock_is_refused(command: LockVariable) -> None:
    """Whatever the state."""
    (refused,) = Cluster().do(command)
    assert isinstance(refused, VariableRefused)
    assert refused.code == "invalid"
