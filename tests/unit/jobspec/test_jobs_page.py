"""docs/jobs.md and examples/: what they say of job files is so."""

import re
from pathlib import Path

import pytest

from shared.jobspec import reference_page
from shared.jobspec.checks.supported_fields import SUPPORTED_FIELDS
from shared.jobspec.files.load import load_file
from shared.jobspec.hcl.functions.registry import FUNCTIONS
from shared.jobspec.nomad.base import JobBlock
from shared.jobspec.nomad.block_schema import block_schema
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(
    one
    for one in (ROOT / "examples").iterdir()
    if one.suffix in {".hcl", ".nomad", ".json", ".yaml", ".toml"}
)
#: Every block and parameter of Nomad that has to have a place, by the name it is written with.
NOMAD = {
    JobSpec: "id name type priority region namespace datacenters node_pool all_at_once constraint affinity spread "
    "group update migrate reschedule periodic parameterized multiregion ui meta",
    TaskGroup: "name count task constraint affinity spread ephemeral_disk network volume restart reschedule "
    "update migrate disconnect scaling service shutdown_delay max_run_duration consul meta "
    "stop_after_client_disconnect max_client_disconnect prevent_reschedule_on_lost",
    TaskSpec: "name driver config env meta resources constraint affinity restart kill_timeout user leader kill_signal "
    "shutdown_delay lifecycle logs service template artifact volume_mount dispatch_payload vault consul secret "
    "identity action scaling schedule csi_plugin kind",
}


def test_the_page_is_current() -> None:
    """docs/jobs.md says what Structs, built.py and functions say; `just schemas` writes it again."""
    old = reference_page.PAGE.read_text(encoding="utf-8")
    assert reference_page.render_page(old) == old
    assert all(f"`{name}(" in old for name in FUNCTIONS)


@pytest.mark.parametrize("struct", NOMAD, ids=lambda one: one.__name__)
def test_everything_of_nomads_has_a_place(struct: type[JobBlock]) -> None:
    """Each block and parameter of Nomad has a field under the name that job files use."""
    assert (
        set(NOMAD[struct].split()) - {field.hcl for field in block_schema(struct).fields} == set()
    )


def test_what_is_built_has_a_place() -> None:
    """built.py names no field that is not there."""
    assert [
        (struct.__name__, names - block_schema(struct).by_json.keys())
        for struct, names in SUPPORTED_FIELDS.items()
        if names - block_schema(struct).by_json.keys()
    ] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda one: one.name)
def test_examples_are_jobs(path: Path) -> None:
    """Every example is a valid job without unknown fields."""
    found = load_file(path.read_bytes(), path.name)
    assert found.errors == ()
    assert "known" not in " ".join(found.warnings)


def test_the_pages_own_file_is_a_job() -> None:
    """The file shown in docs/jobs.md is a job."""
    found = re.findall(
        r"```hcl\n(.*?)```", reference_page.PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    (text,) = [one for one in found if "\njob " in one]
    found = load_file(text.encode(), "page.nomad.hcl")
    assert found.errors == ()
    assert found.job_id == "web"
