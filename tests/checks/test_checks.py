"""Style, types, walls and dependencies, by the recipes that a developer runs by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bounds import LONG_S

ROOT = Path(__file__).resolve().parents[2]
JUST = Path(sys.executable).parent / "just"


@pytest.mark.timeout(8 * LONG_S)
@pytest.mark.parametrize("recipe", ["mypy", "basedpyright", "lint", "imports", "deps"])
def test_a_check_finds_nothing(recipe: str) -> None:
    """Each recipe of the Justfile ends with 0; what it found is the reason of the failure."""
    done = subprocess.run(
        [JUST, recipe],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(done.stdout[-8000:], pytrace=False)
