"""What a prefix of an id names: in commands that read a job, in every `--job`, and in completion."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli import completion, global_options
from services.cli.main import main
from shared.archive.export import Export
from shared.archive.segments import Archive
from shared.sim.engine.engine import SimulationEngine
from shared.sim.engine.run_setup import EngineSetup, NodeJoins
from shared.sim.virtual_time import SECOND, START_NS
from tests.bounds import WAIT_S
from tests.sim.recorded import PROFILE, job, spec


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export of a log with the services import, web-1 and web-2, and a batch job that is complete."""
    engine = SimulationEngine(EngineSetup(seed=3, profile=PROFILE))
    engine.at(START_NS, NodeJoins(spec=spec(1)))
    for number, name in enumerate(("import", "web-1", "web-2")):
        engine.at(START_NS + (2 + number) * SECOND, job(name, 1, "service"))
    engine.at(START_NS + 6 * SECOND, job("done", 1, "batch", cpu=100))
    engine.run(START_NS + 100 * SECOND)
    folder: Path = tmp_path_factory.mktemp("export")
    archive = Archive(folder)
    with archive.locked():
        work = Export(archive, rows_max=1000)
        work.wanted()
        for record in engine.records:
            work.apply(record)
        work.flush()
        work.close()
    return str(folder)


READS = [
    (("job", "inspect", "{}"), "job"),
    (("job", "history", "{}"), "job"),
    (("job", "timeline", "{}"), "job_id"),
]
LISTS = [
    (("eval", "list", "--job", "{}"), "evaluations", "job_id"),
    (("deployment", "list", "--job", "{}"), "deployments", "job"),
    (("rollout", "list", "--job", "{}"), "rollouts", "jobs"),
    (("service", "list", "--job", "{}"), "services", "jobs"),
]


def asked(
    words: tuple[str, ...], text: str, export: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    where = ("--dir" if "timeline" in words else "--from-file", export)
    code = main([*(word.format(text) for word in words), *where, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(("words", "key"), READS)
def test_a_reading_command_takes_a_unique_prefix(
    export: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], key: str
) -> None:
    """`imp` is the job `import`."""
    code, found = asked(words, "imp", export, capsys)
    assert (code, found[key]) == (0, "import")


@pytest.mark.parametrize(("words", "field", "key"), LISTS)
def test_a_list_filters_by_a_unique_prefix(
    export: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], field: str, key: str
) -> None:
    """What is listed for `imp` is what is listed for `import`, and is of that job."""
    code, found = asked(words, "imp", export, capsys)
    assert (code, found) == asked(words, "import", export, capsys)
    assert all("import" in one[key] for one in found[field])
    assert found[field] or field in {"deployments", "rollouts", "services"}


def test_the_log_is_filtered_by_a_unique_prefix(
    export: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`log tail` finds the job in the log itself."""
    tail = ("log", "tail", "--kind", "job.registered", "--job", "{}")
    code, found = asked(tail, "imp", export, capsys)
    assert (code, len(found["events"])) == (0, 1)
    assert "import" in found["events"][0]["text"]


@pytest.mark.parametrize(
    "words", [*(one[0] for one in (*READS, *LISTS)), ("log", "tail", "--job", "{}")]
)
def test_an_ambiguous_prefix_names_the_candidates(
    export: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """`we` is refused with both jobs; `web-2` is one of them, and is taken."""
    code, found = asked(words, "we", export, capsys)
    assert (code, found["error"]["code"]) == (1, "ambiguous")
    assert "web-1, web-2" in found["error"]["message"]
    assert asked(words, "web-2", export, capsys)[0] == 0


@pytest.fixture
def completed(export: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Completion asks the export, two rows a list."""
    monkeypatch.setattr(completion, "_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(completion, "_LIMIT", 2)
    global_options.set_global_options("", "", export)
    yield
    global_options.set_global_options("")


def _ids(export: str, noun: str, field: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main([noun, *(("list",) if noun != "job" else ()), "--from-file", export, "--json"]) == 0
    return [one["id"] for one in json.loads(capsys.readouterr().out)[field]]


def test_completion_asks_with_the_prefix(
    export: str, completed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """An evaluation beyond the first rows of the list is offered once its beginning is typed."""
    ids = _ids(export, "eval", "evaluations", capsys)
    global_options.set_global_options("", "", export)
    assert len(ids) > 2
    for one in ids:
        offered = [value for value, _ in completion.candidates(["eval", "status", one[:6]])]
        assert one[:8] in offered
        assert [value for value, _ in completion.candidates(["eval", "status", one[:12]])] == [one]


@pytest.mark.usefixtures("completed")
def test_completion_names_allocations_by_job_and_group() -> None:
    """`JOB.group` is offered where one allocation of the group has not ended; an id by its beginning."""
    offered = dict(completion.candidates(["alloc", "logs", "imp"]))
    assert set(offered) == {"import.g[0]", "import.g"}
    short = offered["import.g"].partition(" on ")[0]
    assert set(dict(completion.candidates(["alloc", "logs", "import.g["]))) == {"import.g[0]"}
    assert set(dict(completion.candidates(["alloc", "logs", short[:7]]))) == {short}


@pytest.mark.usefixtures("completed")
def test_completion_offers_allocations_that_ended() -> None:
    """`alloc logs` reads those that failed or are complete, too."""
    offered = dict(completion.candidates(["alloc", "logs", "done.g"]))
    assert set(offered) == {"done.g[0]"}
    assert offered["done.g[0]"].endswith("complete")
