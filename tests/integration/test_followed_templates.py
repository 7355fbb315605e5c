"""Templates that read services: they wait for data, are rendered anew when it changes, and fail without harm."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.agent.inputs.forked_helpers import Helpers
from services.agent.inputs.templates import data_reads, missing_data, renderer
from services.agent.inputs.templates import handler as handler_module
from shared.core.runtime.agent_messages import CancelPrepare, TaskPrepareFailed
from tests.bounds import level
from tests.integration.followed_node import ALLOC, FollowedNode, addresses, template

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[FollowedNode]:
    made = FollowedNode(tmp_path / "data")
    yield made
    await made.close()


# ---- before the start ----


async def test_a_start_waits_for_all_templates_and_names_what_is_missing(
    node: FollowedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three names and how many more, over all templates of the task; again when it is other data (S26, S27)."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    one, two = template(addresses("a", "b", "c")), template(addresses("d", "e"), 1, destination="y")
    node.prepare(one, two, template("there", 2, destination="local/z"))
    first = "Missing: nomad.service(a), nomad.service(b), nomad.service(c) and 2 more"
    await level(lambda: node.notes()[-1:] == [first], node.notes)
    for name in ("a", "b", "c"):
        node.services.put(name, name)
    rest = "Missing: nomad.service(d), nomad.service(e)"
    await level(lambda: node.notes()[-1:] == [rest], node.notes)
    assert (node.path().read_text(), node.path("z").read_text()) == ("a b c ", "there")
    # Whichever template is first, what the later one lacks may be named before and behind what both lack.
    assert all(before != after for before, after in pairwise(node.notes())), "no event twice"
    node.services.put("d")
    node.services.put("e", "5")
    await node.answer()
    assert (node.places.task / "y").read_text() == "5 "


async def test_data_that_is_there_says_nothing(node: FollowedNode) -> None:
    """A service without instances is known, too (S24)."""
    node.services.put("a")
    node.services.put_names("a", "b")
    text = "{{ range nomadServices }}{{ .Name }} {{ end }}" + addresses("a")
    await node.prepared(template(text))
    assert (node.path().read_text(), node.notes()) == ("a b ", [])


async def test_an_error_beside_missing_data_waits(node: FollowedNode) -> None:
    """Also for data whose name comes from other data; an error with nothing missing fails the start."""
    text = '{{ with index (nomadService "a") 0 }}{{ range nomadService .Address }}{{ .Address }}{{ end }}{{ end }}'
    node.prepare(template(text))
    await level(lambda: "a" in node.services.asked)
    node.services.put("a", "b")
    await level(lambda: "b" in node.services.asked)
    node.services.put("b", "there")
    await node.answer()
    assert node.path().read_text() == "there"
    node.services.put("a")
    node.prepare(template(text), run=2)
    failed = await node.answer(2)
    assert isinstance(failed, TaskPrepareFailed)
    assert (failed.recoverable, "index out of range" in failed.reason) == (False, True)


async def test_a_wait_holds_no_helper_and_ends_when_it_is_cancelled(node: FollowedNode) -> None:
    """Many that wait hold up no other template; a cancelled wait is answered once, and asks for nothing any more."""
    for run in range(1, 20):
        node.prepare(template(addresses("no")), run=run)
    await level(lambda: node.services.asked.count("no") == 19)
    assert await node.prepared(template("other"), run=99)
    assert node.handler._renderer._helpers._count == 0
    for run in range(1, 20):
        node.runner.cancel(CancelPrepare(key=7, task="main", run=run))
        assert isinstance(await node.answer(run), TaskPrepareFailed)
    assert node.handler._missing._runs == {}


async def test_what_a_template_may_read_is_bounded(
    node: FollowedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In names and in bytes, and by what can be a name; beyond it is a fault that says so."""
    monkeypatch.setattr(data_reads, "SERVICES_MAX", 3)
    monkeypatch.setattr(renderer, "SERVICES_BYTES_MAX", 2000)
    node.services.put("large", *("x" * 100 for _ in range(20)))
    many = '{{ range loop 4 }}{{ nomadService (printf "s%d" .) }}{{ end }}'
    for run, (text, part) in enumerate(
        (
            (many, "more than 3 services"),
            (addresses("large"), "more than 2000 bytes"),
            (addresses("x" * 200), "cannot be the name of a service"),
            (addresses("no name"), "invalid name of a service"),
        )
    ):
        node.prepare(template(text), run=run)
        failed = await node.answer(run)
        assert isinstance(failed, TaskPrepareFailed)
        assert (failed.recoverable, failed.kind, part in failed.reason) == (
            False,
            "Template Failed",
            True,
        ), failed


async def test_values_of_services_stay_text(node: FollowedNode) -> None:
    """Names, tags and addresses with template syntax, lines or quotes are printed as they are, and run nothing."""
    hostile = '{{ env "SECRET" }}\n"; }\r\n\x00{{ end }}'
    node.env = {"SECRET": "marker"}
    node.services.put("a", hostile, tags=(hostile, "ü"))
    text = '{{ range nomadService "a" }}{{ .Address }}|{{ index .Tags 0 }}|{{ .Tags | toJSON }}{{ end }}'
    await node.followed(template(text))
    found = node.path().read_bytes().decode()
    assert found.startswith(f"{hostile}|{hostile}|[") and "marker" not in found
    node.services.put("a", hostile * 2)
    await level(lambda: node.changes() or "index" in str(node.notes()))
    assert "index out of range" in node.notes()[-1], "its tags are gone"
    assert node.path().read_bytes().decode() == found


# ---- while the task runs ----


async def test_a_change_is_written_and_told_once(node: FollowedNode) -> None:
    """Other bytes are another digest; equal ones leave the file as it is, and say nothing (S25, S28)."""
    node.services.put("a", "1")
    one = template(addresses("a"))
    digests = await node.followed(one)
    node.services.put("a", "1", "2")
    await node.reads("1 2 ")
    (change,) = await level(node.changes)
    assert (change.run, change.input) == (1, "template[0]")
    assert change.digest not in {digests["template[0]"], ""}
    node.services.put("a", "1", "2", tags=("unread",))
    node.services.put("b")
    node.services.put("a", "3")
    await node.reads("3 ")
    await level(lambda: len(node.changes()) == 2)
    node.services.put("a", "1")
    await level(lambda: len(node.changes()) == 3)
    assert node.changes()[-1].digest == digests["template[0]"], "the first content again"
    assert all(one.run == 1 for one in node.changes())


async def test_equal_content_leaves_the_file_untouched(node: FollowedNode) -> None:
    """Its inode and time, too, when what changed is not what the template prints."""
    node.services.put("a", "1")
    node.services.put("b", "1")
    one, two = template(addresses("a")), template(addresses("a", "b"), 1, destination="local/y")
    await node.followed(one, two)
    before = node.path().stat()
    node.services.put("a", "1", tags=("new",))
    node.services.put("b", "2")
    await node.reads("1 2 ", "y")
    await level(lambda: [one.input for one in node.changes()] == ["template[1]"])
    after = node.path().stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_changes_of_one_moment_are_one(node: FollowedNode) -> None:
    """A template waits until its data is quiet, for at least as long as it says, and renders once."""
    node.services.put("a", "0")
    await node.followed(
        template(addresses("a"), wait_min_ns=50_000_000, wait_max_ns=60_000_000_000)
    )
    for number in range(1, 20):
        node.services.put("a", str(number))
        await asyncio.sleep(0)
    await node.reads("19 ")
    await level(node.changes)
    assert len(node.changes()) == 1


async def test_a_change_before_it_is_followed_is_not_lost(node: FollowedNode) -> None:
    """Between the rendering and the start, as while an image is pulled, data may change."""
    node.services.put("a", "1")
    one = template(addresses("a"))
    digests = await node.prepared(one)
    node.services.put("a", "2")
    node.watch(one, digests=digests)
    await node.reads("2 ")
    await level(node.changes)
    assert node.changes()[0].digest != digests["template[0]"]


@pytest.mark.parametrize("change", [False, True])
async def test_another_life_of_the_agent_renders_anew(node: FollowedNode, *, change: bool) -> None:
    """What changed meanwhile is written and told; what did not leaves the file untouched (S35)."""
    node.services.put("a", "1")
    one = template(addresses("a"))
    digests = await node.followed(one)
    await node.restart()
    asked = len(node.services.asked)
    if change:
        node.services.put("a", "2")
    node.watch(one, digests=digests, run=4)
    await level(lambda: len(node.services.asked) > asked)
    if change:
        await node.reads("2 ")
        await level(node.changes)
        assert [one.run for one in node.changes()] == [4]
    node.services.put("a", "3")
    await node.reads("3 ")
    await level(lambda: len(node.changes()) == (2 if change else 1))


async def test_another_life_leaves_an_equal_file_untouched(node: FollowedNode) -> None:
    """Inode and time; the role hears nothing."""
    node.services.put("a", "1")
    one = template(addresses("a"))
    digests = await node.followed(one)
    before = node.path().stat()
    await node.restart()
    node.watch(one, digests=digests)
    made = node.handler._of(_about(), one)
    await level(lambda: made.digest)
    after = node.path().stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert node.changes() == []


def _about() -> Any:
    class About:
        alloc_id, task = ALLOC, "main"

    return About()


async def test_what_reads_nothing_that_changes_is_not_followed(node: FollowedNode) -> None:
    """It ends quietly, also after another life of the agent found what it reads."""
    one = template("fixed")
    digests = await node.followed(one)
    await node.restart()
    node.watch(one, digests=digests)
    task = node.runner._followed._allocs[ALLOC]["main"]
    await level(task.work["template[0]"][1].done)
    assert (node.changes(), node.notes()) == ([], [])


async def test_variables_are_those_of_the_last_rendering(node: FollowedNode) -> None:
    """The running task does not see them, its next start does (S36)."""
    node.services.put("a", "1")
    one = template("DB={{ with nomadService `a` }}{{ (index . 0).Address }}{{ end }}", env=True)
    await node.followed(one)
    assert node.handler.environment(ALLOC, "main", one) == {"DB": "1"}
    node.services.put("a", "2")
    await level(node.changes)
    assert node.handler.environment(ALLOC, "main", one) == {"DB": "2"}


async def test_the_same_inputs_go_with_another_run_and_others_end(node: FollowedNode) -> None:
    """Another run of the task is spoken of from then on; what is not followed any more renders no more (S48)."""
    node.services.put("a", "1")
    one, two = template(addresses("a")), template(addresses("a"), 1, destination="local/y")
    digests = await node.followed(one, two)
    before = node.runner._followed._allocs[ALLOC]["main"].work["template[0]"][1]
    node.watch(one, digests=digests, run=2)
    assert node.runner._followed._allocs[ALLOC]["main"].work["template[0]"][1] is before
    node.services.put("a", "2")
    await level(node.changes)
    assert [(one.run, one.input) for one in node.changes()] == [(2, "template[0]")]
    node.watch(digests={}, run=2)
    node.services.put("a", "3")
    await level(before.done)
    assert (node.path().read_text(), node.path("y").read_text()) == ("2 ", "1 ")


async def test_what_was_said_to_an_earlier_run_is_said_again(node: FollowedNode) -> None:
    """A change may come while the role begins another run: what it knows decides, not what was said."""
    node.services.put("a", "1")
    one = template(addresses("a"))
    digests = await node.followed(one)
    node.services.put("a", "2")
    await level(node.changes)
    node.watch(one, digests=digests, run=2)
    await level(lambda: [(one.run, one.digest) for one in node.changes()][1:])
    first, second = node.changes()
    assert (first.run, second.run, first.digest) == (1, 2, second.digest)
    node.watch(one, digests={"template[0]": second.digest}, run=3)
    node.services.put("a", "3")
    await level(lambda: len(node.changes()) == 3)
    assert node.changes()[2].run == 3


async def test_a_preparation_and_a_change_do_not_undo_each_other(node: FollowedNode) -> None:
    """A task with render_templates is prepared again while its templates are followed; the newest data is in place."""
    node.services.put("a", "1")
    one = template(addresses("a"))
    await node.followed(one)
    for run in range(2, 8):
        node.prepare(one, run=run)
        node.services.put("a", str(run))
    for run in range(2, 8):
        await node.answer(run)
    await node.reads("7 ")
    last = await node.prepared(one, run=9)
    node.watch(one, digests=last, run=9)
    count = len(node.changes())
    node.services.put("a", "8")
    await node.reads("8 ")
    await level(lambda: len(node.changes()) > count)
    assert node.changes()[-1].run == 9


async def test_a_time_alone_is_no_change(node: FollowedNode) -> None:
    """A template with `timestamp` changes when its data does, and then has the time of that rendering."""
    node.services.put("a", "1")
    one = template("{{ timestamp `unix` | parseInt | lt 5 }} " + addresses("a"))
    digests = await node.followed(one)
    assert node.path().read_text() == "true 1 "
    before = node.path().stat()
    node.services.put("a", "1", tags=("other",))
    node.services.put("b", "marks the end")
    again = await node.prepared(one, run=2)
    assert (again, node.changes()) == (digests, [])
    assert node.path().stat().st_ino == before.st_ino
    node.services.put("a", "2")
    await node.reads("true 2 ")
    await level(node.changes)


# ---- faults ----


async def test_a_fault_later_keeps_the_last_rendering(node: FollowedNode) -> None:
    """One event says so, not again for the same; the next change may end it (S46, S47)."""
    node.services.put("a", "1")
    one = template('{{ (index (nomadService "a") 0).Address }}')
    await node.followed(one)
    for _ in range(3):
        node.services.put("a")
        await level(node.notes)
    (said,) = node.notes()
    assert said.startswith("local/x: line 1: ")
    assert said.endswith("index out of range [0] with length 0; what was rendered before stays")
    assert node.path().read_text() == "1"
    node.services.put("a", "2")
    await node.reads("2")
    await level(node.changes)
    node.services.put("a")
    await level(lambda: len(node.notes()) == 2)


async def test_a_fault_that_may_pass_is_tried_again(
    node: FollowedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a back-off, without a further change, and never as the end of the task."""
    monkeypatch.setattr(handler_module, "RETRY_FIRST_S", 0.01)
    node.services.put("a", "1")
    await node.followed(template(addresses("a")))
    real = node.handler._renderer._helpers
    node.handler._renderer._helpers = Helpers("raise SystemExit('broken')")
    node.services.put("a", "2")
    await level(node.notes)
    assert "broken" in node.notes()[0] and node.path().read_text() == "1 "
    node.handler._renderer._helpers.close()
    node.handler._renderer._helpers = real
    await node.reads("2 ")
    await level(node.changes)
    assert len(node.notes()) == 1


async def test_a_service_that_is_new_to_a_template_is_waited_for(
    node: FollowedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rendering stays meanwhile, and a further change may make the wait needless."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    node.services.put("a", "b")
    node.services.put("b", "1")
    text = '{{ range nomadService "a" }}{{ range nomadService .Address }}{{ .Address }} {{ end }}{{ end }}'
    await node.followed(template(text))
    node.services.put("a", "no")
    await level(lambda: node.notes() == ["Missing: nomad.service(no)"], node.notes)
    assert node.path().read_text() == "1 "
    node.services.put("b", "2")
    node.services.put("a", "b")
    await node.reads("2 ")


async def test_equal_templates_of_many_tasks_are_rendered_once(node: FollowedNode) -> None:
    """A rendering is that of another task only where the helper was given the same: variables that it read decide."""
    node.services.put("a", "1")
    begun: list[int] = []
    begin = node.handler._renderer._helpers.begin

    def counted(*args: Any) -> Any:
        begun.append(1)
        return begin(*args)

    node.handler._renderer._helpers.begin = counted  # type: ignore[assignment,method-assign]
    same = addresses("a")
    own = addresses("a") + '{{ env "A" }}{{ env (print "B" "C") }}'
    node.env = {"A": "x", "BC": "y", "UNREAD": "1"}
    await node.prepared(template(same), template(own, 1, destination="local/y"), run=1)
    begun.clear()
    node.services.put("a", "2")
    for run, unread in enumerate(("2", "3", "4"), start=2):
        node.env["UNREAD"] = unread
        await node.prepared(template(same), template(own, 1, destination="local/y"), run=run)
    assert len(begun) == 2, "each once, for three runs"
    node.env["BC"] = "z"
    await node.prepared(template(own, 1, destination="local/y"), run=9)
    assert (len(begun), node.path("y").read_text()) == (3, "2 xz")
