"""Run every benchmark, one after the other, into bench/results: `just bench-all [NAME …]`.

Waits until the machine is idle before each one, and keeps the results that the page may show (`build.py`). A failed
benchmark leaves its old result in place. A benchmark that needs a trace is skipped unless `CARAVAN_TRACE` names its
folder.
"""

import os
import subprocess
import sys
import time

import msgspec

from bench.catalog import BENCHMARKS
from bench.harness.runner import IDLE_LOAD_MAX, BenchResult
from bench.report.build import RESULTS, ROOT, SEPARATE_PAGE, unpublishable_reason

#: So long the load may take to fall; afterwards the benchmark runs all the same, and its result says so.
PATIENCE_S = 240.0
_RESULT = msgspec.json.Decoder(BenchResult)


def main(wanted: list[str]) -> int:
    """Run these, or all; exit 1 when one gave no figure."""
    known = list(BENCHMARKS)
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        print(
            f"no benchmark {', '.join(unknown)}; expected one of {', '.join(known)}",
            file=sys.stderr,
        )
        return 1
    trace = os.environ.get("CARAVAN_TRACE", "")
    if not wanted:
        wanted = [name for name in known if trace or name not in SEPARATE_PAGE]
    begun = time.monotonic()
    bad: list[str] = []
    for name in wanted:
        waited = wait_until_idle()
        start = time.monotonic()
        said = run_one(name, trace if name in SEPARATE_PAGE else "")
        took = time.monotonic() - start
        print(
            f"{name}: {said or 'kept'}, {took:.0f} s, waited {waited:.0f} s for quiet", flush=True
        )
        if said:
            bad.append(name)
    minutes = (time.monotonic() - begun) / 60
    print(f"{len(wanted) - len(bad)} of {len(wanted)} kept, {minutes:.1f} minutes", flush=True)
    return 1 if bad else 0


def run_one(name: str, trace: str) -> str:
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
    if done.returncode or (why := unpublishable_reason(name, result)):
        return (
            why
            if not done.returncode
            else f"exit {done.returncode}: {unpublishable_reason(name, result)}"
        )
    path = RESULTS / f"{name}.json"
    draft = path.with_suffix(".draft")
    draft.write_text(lines[-1] + "\n", encoding="utf-8")
    draft.rename(path)
    return ""


def wait_until_idle() -> float:
    """Wait until the load is low, as long as patience lasts; returns how long it took."""
    start = time.monotonic()
    while os.getloadavg()[0] > IDLE_LOAD_MAX and time.monotonic() - start < PATIENCE_S:
        time.sleep(2)
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
