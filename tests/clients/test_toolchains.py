"""A toolchain that is missing or too old is a failure with CARAVAN_FULL=1, and a skip that says so elsewhere."""

from pathlib import Path

import pytest

from tests import not_tested
from tests.clients import conftest
from tests.clients.languages import LANGUAGES, Language, NotHere, check_tools

WITH_TOOLS = [one for one in LANGUAGES if one.version]


def put_tools(folder: Path, language: Language, release: str) -> None:
    """Write programs of the language's names that tell this release."""
    for tool in language.tools:
        program = folder / tool
        program.write_text(f"#!/bin/sh\necho {tool} version {release}\n")
        program.chmod(0o755)


@pytest.mark.parametrize("language", WITH_TOOLS, ids=lambda one: one.name)
@pytest.mark.parametrize("is_there", [True, False])
def test_in_full_a_toolchain_too_old_or_missing_fails(
    language: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """The same fault is a failure under CARAVAN_FULL=1 and a skip without it, and the report names it either way."""
    if is_there:
        put_tools(tmp_path, language, "0.9")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if is_there else str(tmp_path))
    with pytest.raises(NotHere, match="is needed" if is_there else "no ") as found:
        check_tools(language)
    monkeypatch.setattr(conftest, "SAID", {})
    monkeypatch.setattr(conftest, "ALL", False)
    monkeypatch.setenv("CARAVAN_FULL", "1")
    with pytest.raises(pytest.fail.Exception, match="a tool is missing"):
        conftest.untested(language.name, found.value)
    monkeypatch.delenv("CARAVAN_FULL")
    with pytest.raises(pytest.skip.Exception, match="NOT TESTED"):
        conftest.untested(language.name, found.value)
    assert conftest.SAID[language.name].startswith("NOT TESTED")


def test_a_new_enough_toolchain_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first release that will do passes."""
    language = next(one for one in WITH_TOOLS if one.name == "go")
    put_tools(tmp_path, language, ".".join(map(str, language.least)))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    check_tools(language)


def test_only_what_no_installation_mends_is_skipped_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CARAVAN_FULL=1 turns a missing tool into a failure and leaves a missing feature of the machine a skip."""
    monkeypatch.setenv("CARAVAN_FULL", "1")
    with pytest.raises(pytest.fail.Exception):
        not_tested.missing_tool("x")
    with pytest.raises(pytest.skip.Exception):
        not_tested.missing_feature("x")
