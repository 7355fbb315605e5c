"""Nomad's own Go API package performs each row of what its CLI and the Terraform provider ask, with its real structs.

A nil pointer or a time that Go cannot read ends a row; so does an answer of what is switched off that is not Nomad's.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import not_tested
from tests.bus.up import Up
from tests.clients.languages import Language, NotHere, workshop

CLIENT = Language(
    "nomad-api",
    client=("bin/nomad-api-rows",),
    tools=("go",),
    version=("go", "version"),
    # Of the package itself.
    least=(1, 26),
    pins="go.sum",
    fetch=("go", "mod", "download"),
    build=("env", "CGO_ENABLED=0", "go", "build", "-o", "bin/", "./..."),
    source=Path(__file__).parent / "go_api",
)
_LINE = re.compile(r"^(ok|FAILED) (.*)$", re.MULTILINE)
_ROW = re.compile(r"^\t\{\"(.*)\", func", re.MULTILINE)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster of one node."""
    running = Up(tmp_path, gateway=True)
    yield running
    running.end()


@pytest.mark.full("needs Go")
def test_every_row_is_served(up: Up) -> None:
    """Each row of the client's sources ran, and none failed."""
    address = up.data_dir / "logs" / "gateway.url"
    up.until(address.exists, "the gateway listens")
    up.until(lambda: up.ask("nodes").get("total") == 1, "a node")
    password = (up.data_dir / "credentials" / "public").read_text().strip()
    env = {"NOMAD_ADDR": address.read_text().strip(), "NOMAD_TOKEN": f"public:{password}"}
    try:
        with workshop(CLIENT, "") as ready:
            told = ready.run(CLIENT.client, env)
    except NotHere as fault:
        not_tested.missing_tool(f"Nomad's Go API package: {fault}")
    results = _LINE.findall(told)
    assert [text for result, text in results if result == "FAILED"] == []
    assert CLIENT.source is not None
    written = [row for one in CLIENT.source.glob("*.go") for row in _ROW.findall(one.read_text())]
    assert sorted(text for _, text in results) == sorted(written)
    assert len(written) > 60
