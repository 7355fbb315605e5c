"""How many job files of a folder become jobs: `python -m tests.corpus DIR…`, with the reasons for the rest.

Looks at every *.nomad, *.hcl, *.json, *.yaml and *.toml below DIR that holds a job, and reads it as
`job validate` would. Variables without a default get a stand-in of a fitting type, as a person would give one. Nothing
of the files is kept. A job that is read well, and asks its driver for what no job gets, is counted as `forbidden` among
the accepted. Prints one object as its last line; exit 1 below 95 %.
"""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.jobspec.files.load import LoadedJobFile, load_file
from shared.jobspec.hcl.functions.catalog import FUNCTIONS

SUFFIXES = (".nomad", ".hcl", ".json", ".yaml", ".yml", ".toml")
#: What a job file has and a policy, a volume or an agent's configuration has not.
_JOB = re.compile(r'^\s*job\s+"?[\w.${}-]+"?\s*\{', re.MULTILINE)
_INNER = re.compile(r'^\s*(group|task)\s+"', re.MULTILINE)
_UNSET = re.compile(r"variable '([^']+)' has no value")
_STAND_INS = ("1", "true", '["x"]', "{}", "[]", "[{}]")
WANTED = 0.95


def job_files(folder: Path) -> Iterator[Path]:
    """Find what looks like a job file, in order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.endswith(SUFFIXES):
            text = path.read_text(encoding="utf-8", errors="replace")
            if (_JOB.search(text) and _INNER.search(text)) or (
                path.suffix == ".json" and '"TaskGroups"' in text
            ):
                yield path


def loaded(path: Path) -> tuple[LoadedJobFile, float]:
    """Read one file with stand-ins for what it wants from outside; the seconds are those of the last try."""
    content = path.read_bytes()
    variables: dict[str, str] = {}
    for _ in range(40):
        start = time.perf_counter()
        found = load_file(
            content, path.name, variables=variables, read_file=_reader(path), seed="1"
        )
        spent = time.perf_counter() - start
        text = " ".join(one.message for one in found.errors)
        wanted = [name for name in _UNSET.findall(text) if name not in variables]
        wrong = [name for name in re.findall(r"-var ([\w-]+):", text) if name in variables]
        if not wanted and not wrong:
            break
        variables |= dict.fromkeys(wanted, _STAND_INS[0])
        for name in wrong:
            at = _STAND_INS.index(variables[name]) + 1
            variables[name] = _STAND_INS[min(at, len(_STAND_INS) - 1)]
        if wrong and all(variables[name] == _STAND_INS[-1] for name in wrong):
            break
    return found, spent


def _reader(path: Path) -> Any:
    def read(name: str) -> bytes:
        beside = path.parent / name
        return beside.read_bytes() if beside.is_file() else b"stand-in\n"

    return read


def main(folders: list[str]) -> int:
    """Read all, say what happened."""
    times: list[float] = []
    reasons: Counter[str] = Counter()
    refused = forbidden = 0
    for folder in folders:
        for path in job_files(Path(folder)):
            found, spent = loaded(path)
            times.append(spent)
            if found.errors and all(".Config." in one.path for one in found.errors):
                # Read well; its driver's option is never granted (docs/drivers.md).
                forbidden += 1
                reasons[f"forbidden: {found.errors[0].message}"[:100]] += 1
            elif found.errors:
                refused += 1
                first = found.errors[0]
                print(f"{path}:{first.line}: {first.path} {first.message}", file=sys.stderr)
                reasons[re.sub(r"'[^']*'|\d+", "…", first.message)[:100]] += 1
    times.sort()
    count = len(times)
    share = (count - refused) / count if count else 0.0
    print(
        json.dumps(
            {
                "files": count,
                "accepted": count - refused,
                "forbidden": forbidden,
                "share": round(share, 4),
                "median_ms": round(times[count // 2] * 1000, 3) if times else 0,
                "p99_ms": round(times[int(count * 0.99)] * 1000, 3) if times else 0,
                "worst_ms": round(times[-1] * 1000, 3) if times else 0,
                "functions_known": len(FUNCTIONS),
                "reasons": dict(reasons.most_common()),
            }
        )
    )
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
