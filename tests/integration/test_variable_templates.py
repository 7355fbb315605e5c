"""Templates that read variables: waited for, followed, for one task alone, and in no text but the file."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio

from services.agent.inputs.forked_helpers import Helpers
from services.agent.inputs.templates import missing_data
from services.agent.inputs.templates.variable_directory import VariableDirectory
from shared.core.runtime.agent_messages import TaskPrepareFailed
from tests.bounds import level
from tests.fixed_variables import CLUSTER, NODE, VariableCluster
from tests.integration.followed_node import ALLOC, FollowedNode, addresses, template

pytestmark = pytest.mark.asyncio
JOB = "nomad/jobs/web"
TASK = "nomad/jobs/web/g/main"
MARKER = "marker-7d1f"


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[FollowedNode]:
    made = FollowedNode(tmp_path / "data")
    yield made
    await made.close()


def password(path: str = JOB) -> str:
    """A template that prints an item."""
    return f'{{{{ with nomadVar "{path}" }}}}{{{{ .password }}}}{{{{ end }}}}'


def listed(text: str) -> str:
    return f"{{{{ range {text} }}}}{{{{ .Path }}}} {{{{ end }}}}"


async def refusal(node: FollowedNode, text: str, run: int = 1) -> TaskPrepareFailed:
    node.prepare(template(text), run=run)
    failed = await node.answer(run)
    assert isinstance(failed, TaskPrepareFailed), failed
    return failed


# ---- before the start ----


async def test_a_start_waits_for_a_variable_and_names_it(
    node: FollowedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for one that is known not to exist; others of the task are named beside it."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    node.variables.delete(JOB)
    node.prepare(template(password() + addresses("a")))
    first = f"Missing: nomad.service(a), nomad.var.block({JOB})"
    await level(lambda: node.notes()[-1:] == [first], node.notes)
    node.services.put("a", "1")
    await level(lambda: node.notes()[-1:] == [f"Missing: nomad.var.block({JOB})"], node.notes)
    node.variables.put(JOB, password=MARKER)
    await node.answer()
    assert node.path().read_text() == f"{MARKER}1 "


async def test_all_functions_of_variables(node: FollowedNode) -> None:
    """Items with their meta data, whether a variable exists, and the list of those that the task may read."""
    node.variables.put(JOB, password="p", user="u")
    node.variables.put(TASK, k="v")
    for path in ("nomad/jobs", "nomad/jobs/web/g"):
        node.variables.delete(path)
    text = (
        '{{ with nomadVar "nomad/jobs/web" }}{{ range .Tuples }}{{ .K }}={{ .V }} {{ end }}'
        "{{ .Metadata.ModifyIndex }} {{ .Metadata.CreateIndex }}{{ end }}|"
        '{{ nomadVarExists "nomad/jobs/web" }} {{ nomadVarExists "nomad/jobs" }}|'
        f"{listed('nomadVarList')}|{listed('nomadVarListSafe `nomad/jobs/web/`')}"
        f"|{listed('nomadVarList `nomad/jobs/web/g`')}"
    )
    await node.prepared(template(text))
    expected = f"password=p user=u 101 5|true false|{JOB} {TASK} |{TASK} |{TASK} "
    assert node.path().read_text() == expected


async def test_an_empty_list_is_waited_for_where_it_is_safe(
    node: FollowedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nomadVarListSafe` waits until one exists; `nomadVarList` does not."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    for path in ("nomad/jobs", JOB, "nomad/jobs/web/g", TASK):
        node.variables.delete(path)
    await node.prepared(template("[" + listed("nomadVarList") + "]"))
    assert node.path().read_text() == "[]"
    node.prepare(template(listed("nomadVarListSafe `nomad/jobs/web`")), run=2)
    await level(lambda: node.notes() == ["Missing: nomad.var.list(nomad/jobs/web)"], node.notes)
    node.variables.put("nomad/jobs", k="another prefix")
    node.variables.put(TASK, k="v")
    await node.answer(2)
    assert node.path().read_text() == f"{TASK} "


@pytest.mark.parametrize(
    "text",
    [
        '{{ nomadVar "nomad/jobs/db" }}',
        '{{ nomadVar "nomad/jobs/web/other" }}',
        '{{ nomadVar "nomad/jobs/web/g/side" }}',
        '{{ nomadVar "nomad/jobs/web/" }}',
        '{{ nomadVar "/nomad/jobs/web" }}',
        '{{ nomadVar "nomad/jobs/we" }}',
        '{{ nomadVarExists "nomad/jobs/db" }}',
        '{{ nomadVarList "nomad/jobs/db" }}',
        '{{ nomadVarListSafe "app" }}',
        '{{ nomadVar (print "app/" "db") }}',
    ],
)
async def test_what_a_task_may_not_read_is_refused_by_name(node: FollowedNode, text: str) -> None:
    """A sibling, another group or job, a slash more, a part of a name (S54): with its line, and nothing is asked."""
    failed = await refusal(node, "\n" + text)
    assert (failed.recoverable, failed.kind) == (False, "Template Failed")
    assert failed.reason.startswith("local/x: line 2: ") and "this task may not" in failed.reason
    assert failed.reason.endswith(f"it may read nomad/jobs, {JOB}, nomad/jobs/web/g, {TASK}")
    assert node.variables.asked == []


async def test_a_child_reads_what_its_parent_may(node: FollowedNode) -> None:
    """Of a periodic or dispatched job (S55): the parent's path, not one of its own; a false parent does not count."""
    node.job = "web/dispatch-7-ab"
    node.env = {"NOMAD_JOB_PARENT_ID": "web"}
    node.variables.put(JOB, password="p")
    await node.prepared(template(password()))
    assert node.path().read_text() == "p"
    assert "may not read" in (await refusal(node, password(f"nomad/jobs/{node.job}"), 2)).reason
    node.job = "db"
    assert "may not read" in (await refusal(node, password(), 3)).reason


async def test_a_helper_cannot_ask_for_another_path(node: FollowedNode) -> None:
    """What a helper says that its template reads is checked again, whatever became of the helper."""
    word = '{"lacks":[["variable","nomad/jobs/db"]],"missing":["x"]}'
    real = node.handler._renderer._helpers
    node.handler._renderer._helpers = _Liar(word)  # type: ignore[assignment]
    failed = await refusal(node, password())
    node.handler._renderer._helpers = real
    assert "may not read variable nomad/jobs/db" in failed.reason
    assert [path for _, path in node.variables.asked] == [JOB]


class _Liar:
    """Helpers that give one answer to any question."""

    def __init__(self, word: str) -> None:
        self._word = word

    def begin(self, _bytes_max: int) -> "_Liar":
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing was begun."""

    async def ask(self, _line: bytes) -> bytes:
        return self._word.encode()


# ---- while the task runs ----


async def test_a_change_is_written_and_told_once(node: FollowedNode) -> None:
    """A put, a delete, which keeps what was rendered, and a put again; equal content says nothing."""
    node.variables.put(JOB, password="1")
    digests = await node.followed(template(password()))
    node.variables.put(JOB, password="2")
    await node.reads("2")
    (change,) = await level(node.changes)
    assert change.digest != digests["template[0]"]
    node.variables.delete(JOB)
    node.variables.put(JOB, password="2", unread="x")
    node.variables.put(JOB, password="3")
    await node.reads("3")
    await level(lambda: len(node.changes()) == 2)
    node.variables.put(JOB, password="1")
    await level(lambda: len(node.changes()) == 3)
    assert node.changes()[-1].digest == digests["template[0]"]
    assert "1" not in node.changes()[-1].digest.split(), "a keyed digest"


async def test_what_a_variable_says_to_read_is_read(node: FollowedNode) -> None:
    """The name of a service comes from an item; a change of either renders anew."""
    node.variables.put(JOB, ref="a")
    node.services.put("a", "1")
    text = '{{ with nomadVar "nomad/jobs/web" }}{{ range nomadService .ref.Value }}{{ .Address }}{{ end }}{{ end }}'
    await node.followed(template(text))
    assert node.path().read_text() == "1"
    node.services.put("a", "2")
    await node.reads("2")
    node.services.put("b", "3")
    node.variables.put(JOB, ref="b")
    await node.reads("3")


async def test_a_list_follows_what_comes_and_goes(node: FollowedNode) -> None:
    """Each path that the task may read is followed."""
    for path in ("nomad/jobs", JOB, "nomad/jobs/web/g", TASK):
        node.variables.delete(path)
    await node.followed(template(listed("nomadVarList")))
    node.variables.put(TASK, k="v")
    await node.reads(f"{TASK} ")
    node.variables.put("nomad/jobs", k="v")
    await node.reads(f"nomad/jobs {TASK} ")
    node.variables.delete(TASK)
    await node.reads("nomad/jobs ")
    assert node.path().read_text() == "nomad/jobs "


async def test_another_life_of_the_agent_asks_again(node: FollowedNode) -> None:
    """Nothing of a variable outlives the agent but the file; what changed meanwhile is written (S35)."""
    node.variables.put(JOB, password="1")
    one = template(password())
    digests = await node.followed(one)
    await node.restart()
    node.variables.put(JOB, password="2")
    node.watch(one, digests=digests, run=4)
    await node.reads("2")
    await level(node.changes)
    assert [one.run for one in node.changes()] == [4]


async def test_variables_of_the_environment(node: FollowedNode) -> None:
    """A template with `env` gives them to the driver, from memory."""
    node.variables.put(JOB, password=MARKER)
    one = template("PASSWORD=" + password(), env=True)
    await node.followed(one)
    assert node.handler.environment(ALLOC, "main", one) == {"PASSWORD": MARKER}


# ---- rights and secrets ----


async def test_no_rendering_with_items_is_kept(node: FollowedNode) -> None:
    """Each is made by a helper for its own task, whatever equal templates of other tasks made."""
    node.variables.put(JOB, password="1")
    begun: list[int] = []
    begin = node.handler._renderer._helpers.begin

    def counted(bytes_max: int) -> object:
        begun.append(1)
        return begin(bytes_max)

    node.handler._renderer._helpers.begin = counted  # type: ignore[assignment,method-assign]
    for run in (1, 2, 3):
        await node.prepared(template(password()), run=run)
    assert (len(begun), node.handler._renderer._kept) == (3, {})


@pytest.mark.parametrize(
    "text",
    [
        "{{ .password.Value | parseInt }}",
        "{{ .password.Value | sprig_upper | sprig_fail }}",
        "{{ .password.Value | file }}",
        "{{ nomadVar .password.Value }}",
        "{{ .password.Value | base64Decode }}",
        "{{ if eq .password.Value `" + MARKER + "` }}{{ sprig_fail `equal` }}{{ end }}",
    ],
)
async def test_no_item_is_in_the_text_of_a_fault(node: FollowedNode, text: str) -> None:
    """Not whole, not in another form, nor what a condition about it tells; what does not depend on items is said."""
    node.variables.put(JOB, password=MARKER)
    whole = '{{ with nomadVar "nomad/jobs/web" }}' + text + "{{ end }}"
    node.prepare(template(whole, reads_files=True))
    failed = await node.answer()
    assert isinstance(failed, TaskPrepareFailed)
    assert MARKER not in failed.reason and MARKER.upper() not in failed.reason
    assert "equal" not in failed.reason
    assert failed.reason.endswith(("and is not shown", "names data that cannot be had"))
    plain = '{{ with nomadVar "nomad/jobs/web" }}{{ divide 0 1 }}{{ end }}'
    assert "divi" in (await refusal(node, plain, 2)).reason


async def test_no_item_is_in_an_event_about_missing_data(
    node: FollowedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is not named where an item names it."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    node.variables.put(JOB, ref=MARKER)
    node.prepare(
        template('{{ with nomadVar "nomad/jobs/web" }}{{ nomadService .ref.Value }}{{ end }}')
    )
    await level(lambda: MARKER in node.services.asked)
    said = ["Missing: data that an item of a variable names"]
    await level(lambda: node.notes() == said, node.notes)
    assert MARKER not in "".join(node.notes())


async def test_the_words_of_a_helper_that_had_items_are_not_told(node: FollowedNode) -> None:
    """A helper that ends in the middle may have printed anything."""
    node.variables.put(JOB, password=MARKER)
    real = node.handler._renderer._helpers
    node.handler._renderer._helpers = Helpers(f"raise SystemExit('{MARKER}')")
    failed = await refusal(node, password())
    node.handler._renderer._helpers.close()
    node.handler._renderer._helpers = real
    assert (failed.reason, failed.recoverable) == ("local/x: the render helper ended", True)


# ---- with the real directory ----


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[VariableCluster]:
    made = VariableCluster()
    serving = asyncio.create_task(made.serve())
    yield made
    serving.cancel()


async def followed_by(
    node: FollowedNode, cluster: VariableCluster, story: Callable[[], AsyncIterator[None]]
) -> None:
    directory = VariableDirectory(NODE, lambda: CLUSTER)
    asking = asyncio.create_task(directory.run(lambda: cluster.client))
    node.source = directory
    node.begin()
    try:
        async for _ in story():
            assert not asking.done()
    finally:
        asking.cancel()


async def test_a_template_follows_the_keeper(
    node: FollowedNode, cluster: VariableCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first put to the file, over a keeper that is away, with sealed answers."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)

    async def story() -> AsyncIterator[None]:
        cluster.is_silent = True
        one = template(password())
        node.prepare(one)
        await level(lambda: node.notes() == [f"Missing: nomad.var.block({JOB})"], node.notes)
        yield
        cluster.put(JOB, password="1")
        cluster.is_silent = False
        await node.answer()
        assert node.path().read_text() == "1"
        yield
        node.watch(one, digests={})
        for text in ("2", "3"):
            cluster.put(JOB, password=text)
            await node.reads(text)
            yield
        assert {(ask.alloc_id, ask.task) for ask in cluster.asks} == {(ALLOC, "main")}

    await followed_by(node, cluster, story)
