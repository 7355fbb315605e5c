"""Templates: what is rendered, where it is written, and what of a template is refused on the node."""

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir, TaskDirs
from services.agent.inputs import forked_helpers
from services.agent.inputs.input_handler import InputContext, InputFailed
from services.agent.inputs.templates import handler as handler_module
from services.agent.inputs.templates import renderer as module
from services.agent.inputs.templates.handler import FILE_BYTES_MAX, TemplateHandler
from services.agent.inputs.templates.settings import TemplateSettings
from shared.core.runtime.agent_messages import TaskInput, TaskLaunch
from shared.core.runtime.input_specs import TemplateInput
from shared.core.state.ids import alloc_id
from tests.bounds import level
from tests.integration.agent_node import job, projection, sh
from tests.integration.test_agent_raw_exec import a_node

ALLOC = "a" * 36
VIEW = {"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets"}
#: The helper on the strictest machine: once it gave up its rights it can neither load a module nor open a file.
STRICTEST = """
import sys
from services.agent.inputs.templates import render_helper
give_up = render_helper._give_up_rights
class Refusing:
    def find_spec(self, name, *_):
        raise ModuleNotFoundError(f"late import of {name}")
def look(event, args):
    if event in ("open", "socket.__new__", "subprocess.Popen", "os.fork"):
        raise PermissionError(13, "Permission denied", str(args[:1]))
def and_refuse(parent_pid):
    give_up(parent_pid)
    sys.meta_path.insert(0, Refusing())
    sys.addaudithook(look)
render_helper._give_up_rights = and_refuse
render_helper.main()
"""


@pytest.fixture(autouse=True)
def _strictest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HELPER", STRICTEST)


class Home:
    """A data directory with one task."""

    def __init__(self, data: DataDir) -> None:
        self.data = data
        self.places = data.places(ALLOC, "main")
        AllocDirs(data.top, memory=False).prepare(self.places)
        self.handler = TemplateHandler(data.top, self._view)
        self.view: Mapping[str, str] = {}
        self.env: dict[str, str] = {"A": "x"}

    def renew(self, settings: TemplateSettings | None = None) -> None:
        """Begin with another handler."""
        self.handler.close()
        self.handler = TemplateHandler(self.data.top, self._view, settings)

    def _view(self, _driver: str, places: TaskDirs) -> Mapping[str, str]:
        return self.view or places.variables()

    def rendered(self, data: str = "", *beside: TaskInput, at: int = 0, **fields: Any) -> Path:
        """Render one template; returns its destination when that is `local/x`."""
        spec = TemplateInput(**{"data": data, "destination": "local/x", **fields})
        wanted = as_input(spec, at)
        about = InputContext(
            key=7,
            alloc_id=ALLOC,
            task="main",
            run=1,
            places=self.places,
            launch=TaskLaunch(env=self.env),
            inputs=(*beside, wanted),
        )
        asyncio.run(self.handler.prepare(about, wanted))
        return self.places.task / "local" / "x"

    def refused(self, data: str = "", *beside: TaskInput, **fields: Any) -> InputFailed:
        """Render one that fails."""
        with pytest.raises(InputFailed) as found:
            self.rendered(data, *beside, **fields)
        assert found.value.kind == "Template Failed"
        return found.value


def as_input(spec: TemplateInput, at: int = 0) -> TaskInput:
    raw = msgspec.Raw(msgspec.json.encode(spec))
    return TaskInput(name=f"template[{at}]", kind="template", spec=raw)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    data = DataDir(tmp_path / "data", "n1")
    made = Home(data)
    yield made
    made.handler.close()
    data.close()


def test_a_template_is_written_with_the_tasks_environment(home: Home) -> None:
    """Its variables, its directories as it sees them, values of its node; the agent's environment is not seen (S40)."""
    os.environ["AGENT_SECRET"] = "marker"
    home.view = VIEW
    text = (
        '{{ env "A" }} {{ env "NOMAD_TASK_DIR" }} {{ env "node.class" }} [{{ env "AGENT_SECRET" }}]'
        '[{{ env "PATH" }}] {{ timestamp "2006" | len }} {{ .no }}'
    )
    path = home.rendered(text, node={"node.class": "c"})
    assert path.read_text() == "x /local c [][] 4 <no value>"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    home.rendered("<< env `A` >>", left_delimiter="<<", right_delimiter=">>")
    assert path.read_text() == "x"


def test_every_family_of_functions_works_without_a_late_import(home: Home) -> None:
    """The helper has loaded all that they need before it gave up its rights."""
    text = (
        '{{ parseYAML "a: [1, 2]" | toJSON }}{{ parseJSON `{"b":1}` | toYAML }}{{ sha256Hex "a" | len }}'
        '{{ "a" | regexReplaceAll "a" "b" }}{{ base64Encode "x" }}{{ timestamp "Jan" | len }}'
    )
    path = home.rendered(text)
    assert path.read_text() == '{"a":[1,2]}b: 164beA==3'


def test_what_is_equal_stays_untouched(home: Home) -> None:
    """Content, mode and owner (S25); what differs is replaced, not written to."""
    path = home.rendered("one", perms="0600")
    before = path.stat()
    home.rendered("one", perms="0600")
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with path.open("rb") as old:
        home.rendered("two", perms="0600")
        assert (old.read(), path.read_bytes()) == (b"one", b"two")


def test_mode_and_owner_are_those_of_the_block(home: Home) -> None:
    """S44; an agent that is not root can give a file to no other user."""
    if os.geteuid():
        failed = home.refused("x", uid=os.geteuid() + 1)
        assert (failed.recoverable, "root" in str(failed)) == (False, True)
        return
    found = home.rendered("x", perms="4750", uid=100, gid=65_534).stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (100, 65_534, 0o4750)


def test_places_are_relative_to_the_task_or_below_its_references(home: Home) -> None:
    """Missing directories are made; the shared directory may be written to, that of another task may not (S39)."""
    home.view = VIEW
    task = home.places.task
    for place, path in (
        ("a/b/c", task / "a" / "b" / "c"),
        ("/etc/x", task / "etc" / "x"),
        ("/local/y", task / "local" / "y"),
        ("${NOMAD_SECRETS_DIR}/s", task / "secrets" / "s"),
        ("${NOMAD_ALLOC_DIR}/z", home.places.shared / "z"),
        ("/alloc/data/z", home.places.shared / "data" / "z"),
        ("../alloc/w", home.places.shared / "w"),
    ):
        home.rendered(place, destination=place)
        assert path.read_text() == place
    for place in (
        "../../x",
        "../other/x",
        "..",
        "local/../../../../x",
        "${meta.no}/x",
        "a\0b",
        ".",
    ):
        failed = home.refused("x", destination=place)
        assert (failed.recoverable, "destination" in str(failed)) == (False, True), place
    assert not home.refused("x", destination="local/").recoverable


def test_two_templates_with_one_destination_are_refused(home: Home) -> None:
    """Once references are filled in; the message names the other one."""
    other = as_input(TemplateInput(data="y", destination="${NOMAD_TASK_DIR}/x"))
    assert "template[0], too" in str(home.refused("x", other, at=1))


def test_a_source_and_files_are_read_below_the_task(home: Home) -> None:
    """A file may say which file is read next; one that is missing may come with another try."""
    local = home.places.task / "local"
    (local / "t.tpl").write_text('[{{ file "local/name" | trimSpace | file }}]')
    (local / "name").write_text("/local/deep\n")
    (local / "deep").write_bytes(b"d\xff")
    home.view = VIEW
    path = home.rendered(source="local/t.tpl", reads_files=True)
    assert path.read_bytes() == b"[d\xff]"
    failed = home.refused(source="local/no")
    assert (failed.recoverable, "No such file" in str(failed)) == (True, True)
    failed = home.refused('{{ file "local/no" }}', reads_files=True)
    assert (failed.recoverable, "file local/no" in str(failed)) == (True, True)
    assert "not watched" in str(home.refused('{{ file "local/name" }}'))
    (local / "large").write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    assert not home.refused(source="local/large").recoverable


def test_what_the_operator_denies_is_refused_on_the_node(home: Home) -> None:
    """By default executeTemplate, with the name of the setting; patterns name many functions (S41)."""
    text = '{{ define "a" }}{{ sprig_upper "x" }}{{ end }}{{ executeTemplate "a" }}'
    setting = "(CARAVAN_AGENT_TEMPLATE_FUNCTION_DENYLIST)"
    failed = home.refused(text)
    reason = f"local/x: line 1: function executeTemplate is not allowed on this node {setting}"
    assert (failed.recoverable, str(failed)) == (False, reason)
    home.renew(TemplateSettings(function_denylist="writeToFile"))
    assert home.rendered(text).read_text() == "X"
    home.renew(TemplateSettings(function_denylist="sprig_*"))
    local = home.places.task / "local"
    (local / "t.tpl").write_text(text)
    for more in ({"data": text}, {"source": "local/t.tpl"}):
        assert "sprig_upper is not allowed" in str(home.refused(**more))


@pytest.mark.parametrize(
    ("text", "more", "part"),
    [
        ("a\n{{ if }}", {}, "line 2: missing value for if"),
        ("{{ nomadVar `x` }}", {}, "this task may not read variable x: it may read nomad/jobs,"),
        ("{{ key `x` }}", {}, "needs Consul"),
        ("\n\n{{ divide 0 1 }}", {}, "line 3: "),
        ('{{ mustEnv "NO" }}', {}, "NO is empty"),
        ("{{ .no }}", {"error_on_missing_key": True}, ""),
        ("A B", {"env": True}, "line 1 of the rendered text: = is missing"),
    ],
)
def test_a_fault_is_final_and_has_its_line(
    home: Home, text: str, more: dict[str, Any], part: str
) -> None:
    """Another try would fail the same way; nothing is written (S42, S47)."""
    if more.get("error_on_missing_key"):
        text = '{{ with parseJSON `{}` }}{{ .no }}{{ end }}{{ (parseJSON `{"a":1}`).no }}'
        part = "no entry for key"
    failed = home.refused(text, **more)
    assert not failed.recoverable
    assert str(failed).startswith("local/x: ") and part in str(failed)
    assert list((home.places.task / "local").iterdir()) == []


def test_a_template_without_end_costs_itself_alone(home: Home) -> None:
    """Loops, output, recursion, a costly expression and memory end at the budget, for good (A5)."""
    for text, part in (
        ("{{ range loop 1000000000 }}{{ end }}", "limit of steps"),
        ("{{ range loop 90000 }}" + "x" * 100 + "{{ end }}", "output has more"),
        ('{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}', "deeper than"),
        ("{{ sprig_repeat 1000000000 `x` }}", "more than"),
    ):
        failed = home.refused(text)
        assert (failed.recoverable, part in str(failed)) == (False, True), str(failed)
    assert home.rendered("fine").read_text() == "fine"


def test_a_link_of_the_task_leads_nowhere(home: Home, tmp_path: Path) -> None:
    """Neither a source, a file nor a destination is reached through one, or by a second name (A3, A4, S39)."""
    local = home.places.task / "local"
    key = home.places.task.parent / "other" / "secrets"
    key.mkdir(parents=True)
    (key / "key").write_text("marker")
    (local / "link").symlink_to(key / "key")
    (local / "dir").symlink_to(key)
    (local / "hard").hardlink_to(key / "key")
    for place in ("local/link", "local/dir/key", "local/hard", "../other/secrets/key"):
        for more in ({"source": place}, {"data": f'{{{{ file "{place}" }}}}', "reads_files": True}):
            assert "marker" not in str(home.refused(**more))
    assert not home.refused("x", destination="local/dir/new").recoverable
    home.rendered("mine", destination="local/link")
    assert (key / "key").read_text() == "marker"
    assert sorted(one.name for one in key.iterdir()) == ["key"]


def test_a_swap_while_it_is_rendered_writes_nothing_outside(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that replaces its directory by a link meanwhile fails the start for good (A3)."""
    outside = tmp_path / "outside"
    outside.mkdir()
    local = home.places.task / "local"
    asked = module._asked

    async def and_swap(helper: Any, order: Any) -> Any:
        answer = await asked(helper, order)
        local.rename(local.with_name("old"))
        local.symlink_to(outside)
        return answer

    monkeypatch.setattr(module, "_asked", and_swap)
    assert not home.refused("x").recoverable
    assert list(outside.iterdir()) == []


def test_a_helper_that_dies_is_a_failure_that_may_pass(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last words are the reason; one that hangs is ended."""
    monkeypatch.setattr(module, "_HELPER", "raise SystemExit('broken')")
    home.renew()
    failed = home.refused("x")
    assert (failed.recoverable, "broken" in str(failed)) == (True, True)
    monkeypatch.setattr(module, "_HELPER", "import signal; signal.pause()")
    monkeypatch.setattr(handler_module, "RENDER_S", 0.05)
    monkeypatch.setattr(forked_helpers, "END_S", 0.05)
    home.renew()
    failed = home.refused("x")
    assert (failed.recoverable, "not rendered within" in str(failed)) == (True, True)


# ---- whole tasks ----


def templated(script: str, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A job of one task with templates."""
    return job(sh(script, Templates=list(blocks), Env={"OWN": "own", "BOTH": "task"}, **more))


FILE = {
    "EmbeddedTmpl": 'own={{ env "OWN" }} {{ env "NOMAD_ALLOC_INDEX" }}\n',
    "DestPath": "local/f",
}
ENV = {
    "EmbeddedTmpl": 'BOTH=template\nGREETING="hello \\"{{ env "OWN" }}\\""\nSAME=1',
    "DestPath": "secrets/env",
    "Envvars": True,
}
LATER = {"EmbeddedTmpl": "SAME=2", "DestPath": "local/env", "Envvars": True}


@pytest.mark.asyncio
async def test_a_task_has_its_file_and_its_variables_when_it_starts(tmp_path: Path) -> None:
    """Of two with the same name the later one wins, and both win over the task's own `env` (S36)."""
    script = 'cat local/f; echo "$BOTH $GREETING $SAME"; sleep 600'
    async with a_node(tmp_path, templated(script, FILE, ENV, LATER)) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "running")
        await node.until(lambda: bool(node.task().events))
        kinds = [one.kind for one in node.task().events]
        assert kinds == ["Started"], "templates whose data is there say nothing (S24)"
        await level(lambda: node.output().endswith("2\n"))
        assert node.output() == 'own=own 1\ntemplate hello "own" 2\n'


@pytest.mark.asyncio
async def test_a_template_that_fails_costs_its_own_allocation(tmp_path: Path) -> None:
    """The event names the template, its line and what comes next; the task never starts."""
    broken = {"EmbeddedTmpl": '\n{{ mustEnv "NO" }}', "DestPath": "local/g"}
    async with a_node(tmp_path, templated("exit 0", FILE, broken)) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        events = [(one.kind, one.message) for one in node.task().events]
        assert events[0][0] == "Template Failed"
        assert events[0][1].startswith("template[1]: local/g: line 2: ")
        assert events[1] == ("Not Restarting", "error is not recoverable")
        assert not (node.home.places(alloc_id(1), "main").task / "local" / "g").exists()


@pytest.mark.asyncio
async def test_a_task_does_not_change_the_variables_of_its_next_run(tmp_path: Path) -> None:
    """What it writes over the file of an `env` template stays a file."""
    policy = {"Attempts": 2, "Interval": 10**10, "Delay": 10**7, "Mode": "fail"}
    script = 'echo "$SAME"; echo SAME=evil > local/env; exit 1'
    async with a_node(tmp_path, templated(script, LATER, RestartPolicy=policy)) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        assert node.output() == "2\n2\n2\n"
