"""Write docs/terminal.svg: what a newcomer's first minutes look like, captured from a real cluster.

python -m tests.docs.picture
"""

import os
import sys
import tempfile
from pathlib import Path

from tests.bus.up import Up
from tests.docs.terminal import run, svg

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 92
SESSION = (
    ("job", "plan", "hello.nomad.hcl"),
    ("job", "run", "hello.nomad.hcl"),
    ("job", "status", "hello"),
    ("job", "run", "--var", "count=5", "hello.nomad.hcl"),
    ("job", "history", "hello"),
    ("log", "tail", "-n", "4"),
)


def main() -> None:
    """Run the session and draw it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        up = Up(folder, "--agents", "2")
        try:
            (folder / "hello.nomad.hcl").write_bytes(
                (ROOT / "examples" / "hello.nomad.hcl").read_bytes()
            )
            lines: list[str] = []
            os.chdir(folder)
            for words in SESSION:
                lines.append(f"\x1b[32m$\x1b[0m \x1b[1mcaravan {' '.join(words)}\x1b[0m")
                command = [sys.executable, "-m", "services.cli", *words]
                lines += shown(command, {**up.env, "PYTHONPATH": str(ROOT)})
                lines.append("")
        finally:
            up.end()
    text = svg(lines, "caravan: plan, run, status, history and the log")
    (ROOT / "docs" / "terminal.svg").write_text(text, encoding="utf-8")


def shown(command: list[str], env: dict[str, str]) -> list[str]:
    """What stands on the terminal, without empty lines at its end."""
    kept = run(command, env, columns=COLUMNS)[1].lines
    while kept and not kept[-1].strip():
        kept.pop()
    return kept


if __name__ == "__main__":
    main()
