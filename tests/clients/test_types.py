"""Types that a public generator makes of schemas/json, in Go and TypeScript, decode recorded messages of every kind.

The commands are those of docs/any-language.md. Each decoder here reads lines of `[kind, text of a message]` and prints,
for each, what it encodes again; nothing that is generated is committed.
"""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import not_tested
from tests.clients.conftest import PAGE
from tests.clients.languages import STEP_S, Language, NotHere, check_tools, workshop
from tests.clients.recorded import Recorded, golden, taped
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.timeout(3 * STEP_S)

KINDS = sorted(path.stem for path in (ROOT / "schemas" / "json").glob("*.json"))
RECORDED_MIN = 200
DOUBLE_MAX = 2**53 - 1
GENERATOR = Language(
    "types",
    tools=("node", "npm"),
    version=("node", "--version"),
    least=(18, 12),
    pins="package-lock.json",
    fetch=("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
)
GO = Language("go", tools=("go",), version=("go", "version"), least=(1, 19))

GO_MAIN = """package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"
	"strings"
)

var kinds = map[string]func() interface{}{
%s
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\\n')
		if err != nil {
			return
		}
		var message [2]string
		if err := json.Unmarshal(line, &message); err != nil {
			log.Fatal(err)
		}
		value := kinds[message[0]]()
		decoder := json.NewDecoder(strings.NewReader(message[1]))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(value); err != nil {
			out.Encode(map[string]string{"fault": err.Error()})
			continue
		}
		out.Encode(value)
	}
}
"""
TYPESCRIPT_MAIN = """import { createInterface } from "readline";
import { Convert } from "./messages";

const kinds: { [kind: string]: (text: string) => string } = {
%s
};

createInterface({ input: process.stdin }).on("line", (line: string) => {
  const [kind, text] = JSON.parse(line);
  try {
    console.log(JSON.stringify(JSON.parse(kinds[kind](text))));
  } catch (fault) {
    console.log(JSON.stringify({ fault: String(fault) }));
  }
});
"""


@pytest.fixture(scope="session")
def tools() -> Iterator[Path]:
    """Install the generator; the folder of its programs. Skips, saying why, where that cannot be done."""
    try:
        with workshop(GENERATOR, "") as made:
            yield made.folder / "node_modules" / ".bin"
    except NotHere as fault:
        not_tested.missing_tool(f"types made of schemas/json: {fault}")


@pytest.fixture(scope="session")
def recorded() -> list[Recorded]:
    """All recorded messages: of every kind, and at least RECORDED_MIN of real clusters."""
    filled, real = golden(), taped()
    assert {one.kind for one in filled} == set(KINDS)
    assert len(real) >= RECORDED_MIN
    return filled + real


def commands(language: str) -> list[list[str]]:
    """Read the page's commands for a language: generate, then build."""
    block = re.search(
        rf"^```types-{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert block, language
    return [shlex.split(line) for line in block[1].splitlines()]


def run(command: list[str], folder: Path, given: str = "") -> str:
    """Run a step in the folder; return its stdout."""
    done = subprocess.run(
        command,
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        timeout=STEP_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def generate(language: str, tools: Path, folder: Path) -> None:
    """Run the page's commands where the schemas are; a program of npx is the installed one."""
    shutil.copytree(ROOT / "schemas", folder / "schemas")
    for command in commands(language):
        shown = [str(part) for word in command for part in _expanded(word, folder)]
        if shown[0] == "npx":
            shown[:2] = [str(tools / shown[1])]
        run(shown, folder)


def _expanded(word: str, folder: Path) -> list[str]:
    found = (
        sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else []
    )
    return found or [word]


def decode(program: list[str], folder: Path, recorded: list[Recorded]) -> list[Any]:
    """Let a program decode the messages; what it encodes again, in their order."""
    lines = "".join(json.dumps([one.kind, one.body.decode()]) + "\n" for one in recorded)
    out = [json.loads(line) for line in run(program, folder, lines).splitlines()]
    assert len(out) == len(recorded)
    return out


def difference(sent: Any, got: Any, path: str = "$") -> str:
    """Say where a message lost something on its way through types; empty: nothing. Empty lists may go."""
    if isinstance(sent, dict) and isinstance(got, dict):
        missing = [
            key for key, value in sent.items() if key not in got and value not in ([], {}, None)
        ]
        if missing:
            return f"{path} lost {missing}"
        pairs = ((f"{path}.{key}", sent[key], got[key]) for key in sent if key in got)
    elif isinstance(sent, list) and isinstance(got, list):
        if len(sent) != len(got):
            return f"{path} has {len(got)} entries instead of {len(sent)}"
        pairs = ((f"{path}[{at}]", *both) for at, both in enumerate(zip(sent, got, strict=True)))
    else:
        return "" if _same(sent, got) else f"{path}: {got!r} instead of {sent!r}"
    return next(filter(None, (difference(one, other, at) for at, one, other in pairs)), "")


def _same(sent: Any, got: Any) -> bool:
    """Compare two values; an integer beyond 2^53 keeps what a double holds of it (`x-exceeds-double`)."""
    if isinstance(sent, int) and abs(sent) > DOUBLE_MAX and isinstance(got, int):
        return float(sent) == float(got)
    is_same = sent == got and isinstance(sent, bool) == isinstance(got, bool)
    return is_same or (sent in ([], {}, None) and not got)


def faults(recorded: list[Recorded], decoded: list[Any]) -> list[str]:
    """Name each message that was not decoded whole."""
    found = []
    for one, got in zip(recorded, decoded, strict=True):
        sent = json.loads(one.body)
        is_refused = isinstance(got, dict) and got.keys() == {"fault"}
        fault = got["fault"] if is_refused else difference(sent, got)
        if fault:
            found.append(f"{one.kind} of {one.place}: {fault[:300]}")
    return found


def test_go_types_decode_recorded_messages(
    tools: Path, recorded: list[Recorded], tmp_path: Path
) -> None:
    """Go's strict decoder, with the generated types, loses nothing of any message, and refuses what is none."""
    try:
        check_tools(GO)
    except NotHere as fault:
        not_tested.missing_tool(f"Go types made of schemas/json: {fault}")
    generate("go", tools, tmp_path)
    # Go's style writes KeptAck as KeptACK.
    types = re.findall(
        r"^func Unmarshal(\w+)", (tmp_path / "messages.go").read_text(), re.MULTILINE
    )
    name_of = {name.lower(): name for name in types}
    made = [
        f'\t"{kind}": func() interface{{}} {{ return new({name_of[kind.lower()]}) }},'
        for kind in KINDS
    ]
    (tmp_path / "main.go").write_text(GO_MAIN % "\n".join(made))
    (tmp_path / "go.mod").write_text("module types\n\ngo 1.19\n")
    run(["env", "CGO_ENABLED=0", "go", "build", "-o", "types"], tmp_path)
    bad = Recorded("Verdict", "a bad message", b'{"status": 5, "submission_id": "x"}')
    *decoded, refused = decode(["./types"], tmp_path, [*recorded, bad])
    assert faults(recorded, decoded) == []
    assert "cannot unmarshal" in refused["fault"]


def test_typescript_types_decode_recorded_messages(
    tools: Path, recorded: list[Recorded], tmp_path: Path
) -> None:
    """The generated converters check every type at run time: they take all messages whole, and refuse a bad one."""
    made = "\n".join(
        f"  {kind}: (text) => Convert.{kind[0].lower()}{kind[1:]}ToJson(Convert.to{kind}(text)),"
        for kind in KINDS
    )
    (tmp_path / "main.ts").write_text("declare const process: any;\n" + TYPESCRIPT_MAIN % made)
    (tmp_path / "readline.d.ts").write_text(
        'declare module "readline" { export function createInterface(of: any): any; }\n'
    )
    generate("typescript", tools, tmp_path)
    bad = Recorded("Verdict", "a bad message", b'{"status": 5, "submission_id": "x"}')
    *decoded, refused = decode(["node", "main.js"], tmp_path, [*recorded, bad])
    assert faults(recorded, decoded) == []
    assert "Invalid value" in refused["fault"]
