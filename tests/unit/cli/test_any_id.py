"""`caravan status ID`: which command shows what an id is of."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from schemas import queries
from schemas.envelope import ENCODER
from schemas.projections import Query
from services.cli.any_id import status as any_id
from services.cli.runtime.output import CliError, CommandOutput

#: What the view knows: noun -> ids.
KNOWN = {
    "node": ("node-1", "web-node"),
    "alloc": ("5f2c1111", "5f2c2222", "77aa0000"),
    "eval": ("77bb0000", "abcd0000"),
    "deployment": ("de100000",),
    "rollout": ("ro110000",),
}
JOBS = ("web", "web-2", "shop")


async def query_view(_client: Any, noun: str, _answer: Any, query: Query) -> Any:
    """Answer as the view does: a unique beginning, else not_found or ambiguous; a field of another noun is refused."""
    given = msgspec.json.decode(ENCODER.encode(query), type=dict[str, msgspec.Raw])
    fault, path = queries.fault(noun, given)
    if fault:
        raise CliError("invalid", fault, path=path)
    if noun == "jobs":
        found = tuple(one for one in JOBS if one.startswith(query.id))
        return SimpleNamespace(jobs=[SimpleNamespace(id=one) for one in found])
    found = tuple(one for one in KNOWN[noun] if one.startswith(query.id))
    if not found:
        raise CliError("not_found", f"no {noun}")
    if len(found) > 1:
        raise CliError("ambiguous", ", ".join(found))
    return None


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The command that was called, and its id."""
    calls: list[tuple[str, str]] = []

    def with_bus(work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await work(None)

        return asyncio.run(run())

    def called(name: str, argument: str) -> Callable[..., int]:
        def show(_out: CommandOutput, **given: Any) -> int:
            calls.append((name, given[argument]))
            return 0

        return show

    monkeypatch.setattr(any_id, "with_bus", with_bus)
    monkeypatch.setattr(any_id, "query_view", query_view)
    for name, argument in (
        ("job", "job_id"),
        ("node", "node_id"),
        ("alloc", "alloc_id"),
        ("evaluation", "eval_id"),
        ("deployment", "deployment_id"),
        ("rollout", "rollout_id"),
    ):
        monkeypatch.setattr(getattr(any_id, name), "status", called(name, argument))
    return calls


def status(text: str) -> int:
    """Run the command."""
    return any_id.status(CommandOutput(), any_id=text, limit=10, verbose=False)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "job"),
        # Exactly this id goes before everything that begins so: web-2, web-node.
        ("web", "job"),
        ("sho", "job"),
        ("node-1", "node"),
        ("5f2c1", "alloc"),
        ("77b", "evaluation"),
        ("abcd", "evaluation"),
        ("de1", "deployment"),
        ("ro1", "rollout"),
    ],
)
def test_an_id_or_a_unique_beginning_is_shown_by_its_own_command(
    shown: list[tuple[str, str]], text: str, kind: str
) -> None:
    """Each kind has its command, and gets what was typed."""
    assert status(text) == 0
    assert shown == [(kind, text)]


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("zz", "not_found", ("no job, node, allocation",)),
        ("5f2c", "ambiguous", ("5f2c1111", "5f2c2222")),
        ("77", "ambiguous", ("alloc 77", "eval 77")),
        ("we", "ambiguous", ("job web", "job web-2", "node we")),
    ],
)
def test_what_is_nothing_or_several_things_is_refused_by_name(
    shown: list[tuple[str, str]], text: str, code: str, named: tuple[str, ...]
) -> None:
    """The error lists what begins so."""
    with pytest.raises(CliError) as refused:
        status(text)
    assert refused.value.code == code
    assert all(one in refused.value.message for one in named)
    assert shown == []
