"""Templates against recorded results: of Go's own text/template, and of consul-template 0.42.1 for its functions."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shared.gotemplate.template import parse_template
from tests.not_tested import missing_tool
from tests.unit.gotemplate.no_data import NoData

HERE = Path(__file__).parent
CORE = HERE / "core_cases.json"
FUNCTIONS = HERE / "function_cases.json"
#: `range` over numbers, `else with` and `break` as they are recorded.
GO_LEAST = (1, 24)


def cases(path: Path) -> list[dict[str, str]]:
    return json.loads(path.read_text(encoding="utf-8"))


def result(template: str) -> dict[str, Any]:
    parsed = parse_template(template)
    if parsed.faults:
        return {"template": template, "fails": "parse"}
    rendered = parsed.render(NoData({"HOME": "/h", "A": "x", "EMPTY": ""}))
    if rendered.fault:
        return {"template": template, "fails": "run"}
    # Bytes that are no text are replaced in the record.
    data = rendered.text.encode("utf-8", "surrogateescape")
    return {"template": template, "output": data.decode("utf-8", "replace")}


@pytest.mark.parametrize("path", [CORE, FUNCTIONS], ids=lambda one: one.stem)
def test_recorded_results_are_met(path: Path) -> None:
    """Each recorded template has the recorded output, or fails at the recorded step: parsing or running."""
    wrong = [(result(one["template"]), one) for one in cases(path)]
    assert [pair for pair in wrong if pair[0] != pair[1]] == []


@pytest.mark.full("needs Go")
def test_the_record_is_what_go_says() -> None:
    """The Go that is installed makes the same record of the core cases."""
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        missing_tool("Go, which makes the record of templates")
    release = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True)
    found = tuple(int(one) for one in release.stdout.strip().removeprefix("go").split(".")[:2])
    if found < GO_LEAST:
        missing_tool(f"Go {GO_LEAST}, which makes the record of templates; {found} is here")
    run = [go, "run", str(HERE / "reference.go")]
    text = CORE.read_text(encoding="utf-8")
    made = subprocess.run(run, input=text, capture_output=True, text=True, check=True).stdout
    assert json.loads(made) == json.loads(text)
