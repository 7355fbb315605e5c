"""Every benchmark, one after the other, into bench/results: `python -m bench.everything [NAME …]`, `just bench-all`.

Decides when the machine is quiet enough to begin the next one, and which results are kept: those that the page may show
(report.py). What stood there before stays where a benchmark fails. A benchmark that wants a trace is left out unless
`CARAVAN_TRACE` names its folder.
"""

import os
import subprocess
import sys
import time

import msgspec

from bench.report import ELSEWHERE, RESULTS, ROOT, refusal
from services.cli.benches import LOAD_MAX, Result, names

#: So long the load may take to fall; afterwards the benchmark runs all the same, and its result says so.
PATIENCE_S = 240.0
_RESULT = msgspec.json.Decoder(Result)


def main(wanted: list[str]) -> int:
    """Run these, or all; exit 1 when one gave no figure."""
    known = names(ROOT / "bench")
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; known are {', '.join(known)}", file=sys.stderr)
        return 1
    trace = os.environ.get("CARAVAN_TRACE", "")
    if not wanted:
        wanted = [name for name in known if trace or name not in ELSEWHERE]
    begun = time.monotonic()
    bad: list[str] = []
    for name in wanted:
        waited = quiet()
        start = time.monotonic()
        said = one(name, trace if name in ELSEWHERE else "")
        took = time.monotonic() - start
        print(
            f"{name}: {said or 'kept'}, {took:.0f} s, waited {waited:.0f} s for quiet", flush=True
        )
        if said:
            bad.append(name)
    minutes = (time.monotonic() - begun) / 60
    print(f"{len(wanted) - len(bad)} of {len(wanted)} kept, {minutes:.1f} minutes", flush=True)
    return 1 if bad else 0


def one(name: str, trace: str) -> str:
    """Run one and keep its result; says why it was not kept."""
    command = [sys.executable, "-m", "services.cli", "bench", name, "--json"]
    command += ["--data", trace] if trace else []
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if not lines:
        return f"printed nothing, exit {done.returncode}"
    try:
        result = _RESULT.decode(lines[-1])
    except msgspec.DecodeError:
        return lines[-1][:200]
    if done.returncode or (why := refusal(name, result)):
        return why if not done.returncode else f"exit {done.returncode}: {refusal(name, result)}"
    path = RESULTS / f"{name}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(lines[-1] + "\n", encoding="utf-8")
    draft.rename(path)
    return ""


def quiet() -> float:
    """Wait until the load is low, as long as patience lasts; returns how long it took."""
    start = time.monotonic()
    while os.getloadavg()[0] > LOAD_MAX and time.monotonic() - start < PATIENCE_S:
        time.sleep(2)
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
