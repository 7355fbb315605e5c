"""Variables and keys at the view: what everybody may know, and nothing of ciphertext and digests."""

import base64

from schemas.envelope import ENCODER
from schemas.identities import SigningKeyCreated, SigningKeyRemoved
from schemas.variables import (
    KeyCreated,
    VariableDeleted,
    VariableLocked,
    VariableLockExpired,
    VariableLockReleased,
    VariablePut,
)
from tests.unit.view.view_story import Story

CIPHER, DIGEST = b"very secret noise", "feedfacefeedface" * 2


def put(path: str, incarnation: int = 1, size: int = 10) -> VariablePut:
    """A put of two items."""
    return VariablePut(
        path=path,
        incarnation=incarnation,
        cipher=CIPHER,
        digest=DIGEST,
        items=2,
        size=size,
        at_ns=1_700_000_000_000_000_000,
        request_id="r",
    )


def ready() -> Story:
    """A view of a cluster with three variables; one path was deleted."""
    story = Story()
    for path in ("web/b", "db", "web/a", "web/gone"):
        story.log(put(path))
    story.log(put("db", size=12), VariableDeleted(path="web/gone", incarnation=1))
    story.start()
    return story


def test_variables_are_listed_by_path() -> None:
    """Those that exist, with what the log has in plain."""
    answer = ready().ask("variables")
    first, *others = answer["variables"]  # type: ignore[misc]
    assert first == {
        "path": "db",
        "revision": 7,
        "create_seq": 4,
        "create_ns": 1_700_000_000_000_000_000,
        "modify_ns": 1_700_000_000_000_000_000,
        "items": 2,
        "size": 12,
        "create_ns_text": "1700000000000000000",
        "modify_ns_text": "1700000000000000000",
        "lock_seq": 0,
        "lock_ttl_ms": 0,
        "lock_delay_ms": 0,
    }
    assert [one["path"] for one in others] == ["web/a", "web/b"]
    assert (answer["total"], answer["seq"], answer["cluster_id"]) == (3, 7, "c1")


def test_variables_by_prefix_and_page() -> None:
    """`total` counts all that fit the prefix."""
    story = ready()
    for query, paths, total in (
        ({"id": "web/"}, ["web/a", "web/b"], 2),
        ({"id": "web/", "limit": 1}, ["web/a"], 2),
        ({"id": "web/", "limit": 1, "offset": 1}, ["web/b"], 2),
        ({"id": "web/gone"}, [], 0),
        ({"limit": 0}, [], 3),
    ):
        answer = story.ask("variables", **query)
        shown = [one["path"] for one in answer["variables"]]  # type: ignore[attr-defined]
        assert (shown, answer["total"]) == (paths, total), query


def locked(path: str) -> VariableLocked:
    """A lock of 10 s that holds a path."""
    ns = 10_000_000_000
    return VariableLocked(
        path=path, lock=DIGEST, ttl_ns=ns, delay_ns=2 * ns, at_ns=1, request_id="r"
    )


def test_a_lock_is_listed_while_it_holds_its_path() -> None:
    """With or without items; one that was given back or has expired is not, and the id's hash never is."""
    story = ready()
    for path in ("web/b", "web/leader", "web/a", "web/lost"):
        story.log(locked(path))
    story.feed()
    answer = story.ask("variables", id="web/")
    shown = [
        (one["path"], one["revision"], one["lock_seq"], one["lock_ttl_ms"], one["lock_delay_ms"])
        for one in answer["variables"]  # type: ignore[attr-defined]
    ]
    held = (10_000, 20_000)
    assert shown == [
        ("web/a", 5, 10, *held),
        ("web/b", 3, 8, *held),
        ("web/leader", 0, 9, *held),
        ("web/lost", 0, 11, *held),
    ]
    assert answer["total"] == 4
    assert DIGEST.encode() not in ENCODER.encode(answer)
    story.log(VariableLockReleased(path="web/b", lock=DIGEST, request_id="r"))
    story.log(VariableLockReleased(path="web/leader", lock=DIGEST, request_id="r"))
    story.log(VariableLockExpired(path="web/lost", lock=DIGEST, free_ns=5))
    story.feed()
    answer = story.ask("variables", id="web/")
    found = [(one["path"], one["lock_seq"]) for one in answer["variables"]]  # type: ignore[attr-defined]
    assert found == [("web/a", 10), ("web/b", 0)]


def test_keys_are_listed_newest_first() -> None:
    """A client seals with the first one."""
    story = ready()
    assert story.ask("keys")["keys"] == []
    for number in (1, 2):
        story.log(KeyCreated(key_id=f"{number:016x}", public=bytes([number]) * 32))
    story.feed()
    answer = story.ask("keys")
    shown = [(one["key_id"], one["create_seq"]) for one in answer["keys"]]  # type: ignore[attr-defined]
    assert shown == [(f"{2:016x}", 9), (f"{1:016x}", 8)]
    newest = answer["keys"][0]["public"]  # type: ignore[index]
    assert base64.b64decode(newest) == bytes([2]) * 32
    assert story.ask("keys", limit=1)["total"] == 2


def test_signing_keys_are_listed_newest_first() -> None:
    """The first one signs; one that was removed is not shown."""
    story = ready()
    for number in (1, 2, 3):
        key_id = f"{number:016x}"
        story.log(SigningKeyCreated(key_id=key_id, algorithm="RS256", public=b"p", at_ns=number))
    story.log(SigningKeyRemoved(key_id=f"{1:016x}"))
    story.feed()
    answer = story.ask("signing_keys")
    shown = [(one["key_id"], one["create_ns"]) for one in answer["keys"]]  # type: ignore[attr-defined]
    assert shown == [(f"{3:016x}", 3), (f"{2:016x}", 2)]
    assert answer["total"] == 2


def test_no_answer_has_ciphertext_or_digests() -> None:
    """Under no name and in no form that the log has."""
    story = ready()
    for noun in ("variables", "keys", "cluster"):
        said = ENCODER.encode(story.ask(noun))
        for secret in (CIPHER, base64.b64encode(CIPHER), DIGEST.encode()):
            assert secret not in said, noun
