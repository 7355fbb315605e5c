"""`view.variable.<path>`: which revision a path has, published as it changes, and never an item."""

from typing import Any

import msgspec
import pytest

from schemas.variables import VariableDeleted, VariablePut
from shared.core.runtime.messages import PutRefused, Reconnected
from shared.protocol import subjects
from tests.unit.query.test_services import WEB, story
from tests.unit.view.view_story import Story, puts

HOUR_S = 3_600
PATH = "nomad/jobs/web"
LONG = "/".join("a" * 64)


def put(path: str = PATH, incarnation: int = 1) -> VariablePut:
    """A put."""
    return VariablePut(
        path=path,
        incarnation=incarnation,
        cipher=b"cipher",
        digest="d" * 32,
        items=1,
        size=9,
        at_ns=1,
        request_id="r",
    )


def landed(effects_of: Any) -> dict[str, Any]:
    return {name: one for name, one in effects_of.items() if name.startswith("view.variable.")}


def published(one: Story, *events: Any) -> dict[str, Any]:
    one.log(*events)
    return landed(one.land(one.later(ms=60)))


def test_a_put_and_a_delete_are_published() -> None:
    """The revision is the seq of the put, and 0 of a deleted path, whose value expires; a longer path has a hash."""
    one = story(WEB)
    one.land(one.start())
    value = published(one, put(), put(LONG))
    assert set(value) == {subjects.view_variable(PATH), subjects.view_variable(LONG)}
    first = value[subjects.view_variable(PATH)]
    assert (first["path"], first["revision"], first["cluster_id"]) == (PATH, len(one.records), "c1")
    assert first["seq"] == len(one.records)
    assert set(first) == {"cluster_id", "seq", "path", "revision", "incarnation"}
    assert value[subjects.view_variable(LONG)]["path"] == LONG
    one.log(VariableDeleted(path=PATH, incarnation=1))
    (last,) = [each for each in puts(one.later(ms=60)) if each.subject.startswith("view.variable.")]
    found = msgspec.json.decode(last.data)
    assert (found["revision"], found["seq"], last.ttl_s) == (0, len(one.records), HOUR_S)


def test_a_life_that_follows_in_one_transaction_is_one_value() -> None:
    """A put that ends the former life publishes the new revision alone."""
    one = story(WEB)
    one.land(one.start())
    published(one, put())
    value = published(one, VariableDeleted(path=PATH, incarnation=1), put(incarnation=2))
    assert [each["revision"] for each in value.values()] == [len(one.records)]


@pytest.mark.parametrize("way", ["starts", "reconnects"])
def test_a_view_that_starts_publishes_all_paths(way: str) -> None:
    """Also those that were deleted while no view ran: the value that stands may say otherwise."""
    one = story(WEB)
    one.log(put(), put(LONG))
    one.log(VariableDeleted(path=PATH, incarnation=1))
    value = landed(one.land(one.start()))
    if way == "reconnects":
        # The bus was started again, and has lost all values.
        one.stands.clear()
        value = landed(one.land(one.later(Reconnected())))
    revisions = {each["path"]: each["revision"] for each in value.values()}
    assert revisions == {PATH: 0, LONG: len(one.records) - 1}


def test_an_older_value_of_another_view_is_replaced() -> None:
    """A Put that finds an older value is sent again; a newer one stands."""
    one = story(WEB)
    one.land(one.start())
    one.log(put())
    (sent,) = [each for each in puts(one.later(ms=60)) if each.subject.startswith("view.variable.")]
    older = msgspec.json.decode(sent.data) | {"seq": 1, "revision": 0}
    one.view.step([PutRefused(sent.subject, 7, msgspec.json.encode(older))], one.now_ns)
    (again,) = [each for each in puts(one.later()) if each.subject == sent.subject]
    assert msgspec.json.decode(again.data)["revision"] == len(one.records)
    newer = older | {"seq": len(one.records) + 9}
    one.view.step([PutRefused(sent.subject, 8, msgspec.json.encode(newer))], one.now_ns)
    assert [each for each in puts(one.later()) if each.subject == sent.subject] == []
