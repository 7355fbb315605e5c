"""What `caravan bench` may claim: no figure behind a failed check, no run on a machine that is too small, no secret."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from bench.harness import host_info
from bench.harness.host_info import HostInfo, HostRequirements
from bench.harness.load_generator import body_template, quantile
from bench.harness.outcome import BenchOutcome, BenchRun, merge_runs, run_line
from bench.latency.latency_under_rate import RateStep, highest_rate
from bench.throughput.fill_slope import time_of_placement
from services.cli.main import main
from services.cli.runtime.output import CliError

FIGURES = {"rate_per_s": 5.0}


def machine(cores: float = 2, memory_mib: int = 4_096) -> HostInfo:
    """A machine of this size."""
    return HostInfo(cpu="x", cores=cores, memory_mib=memory_mib, system="Linux")


def one_run(*, holds: bool = True, fsync: bool = True, rate: float = 5.0) -> BenchRun:
    """One run with one check."""
    return BenchRun(
        result={"rate_per_s": rate},
        checks={"nothing_lost": holds},
        cpu_s={"bus": 1.0},
        rss_mib={"bus": 10.0},
        log_bytes=1,
        fsync=fsync,
    )


def bench(monkeypatch: pytest.MonkeyPatch, *, holds: bool = True, fsync: bool = True) -> None:
    """Put a benchmark in p8's place that says so."""

    def run(size: float, runs: int) -> BenchOutcome:
        del size
        return msgspec.structs.replace(
            merge_runs({"jobs": 1}, [one_run(fsync=fsync)] * runs),
            checks={"nothing_lost": holds},
            result=FIGURES,
        )

    fake = SimpleNamespace(run=run, RUNS=1, NEEDS=HostRequirements(memory_mib=2_048))
    monkeypatch.setitem(sys.modules, "bench.latency.idle_latency", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(host_info, "inspect_host", machine)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.setenv("CARAVAN_BENCH_FSYNC", "1")


def test_a_failed_check_leaves_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, the check is named, and result, result_min and result_max are empty, in JSON and in text."""
    bench(monkeypatch, holds=False)
    assert main(["bench", "p8", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["result"], told["result_min"], told["result_max"]) == ({}, {}, {})
    assert told["checks"] == {"nothing_lost": False}
    assert main(["bench", "p8"]) == 1
    text = capsys.readouterr().out
    assert "no figures: failed checks: nothing_lost" in text and "rate_per_s" not in text


def test_there_is_no_negative_number_of_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An impossible run is refused before anything starts."""
    bench(monkeypatch)
    assert main(["bench", "p8", "--runs", "-3", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["error"]
    assert (told["code"], told["message"]) == ("usage", "--runs must be 1 or more, not -3")


def test_one_bad_run_spoils_all() -> None:
    """A check that failed in one run of several leaves no figure, not even in the line about that run."""
    found = merge_runs({}, [one_run(), one_run(holds=False)])
    assert (found.checks, found.result, found.result_min) == ({"nothing_lost": False}, {}, {})
    assert run_line(one_run(holds=False)) == "FAILED: nothing_lost"
    assert merge_runs({}, [one_run(), one_run(rate=7.0)]).result == {"rate_per_s": 6.0}


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_bus_without_fsync_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """A run without fsync is reported in lines and in JSON."""
    bench(monkeypatch, fsync=False)
    assert main(["bench", "p8", "--no-fsync", *flags]) == 0
    told = capsys.readouterr()
    assert "does not fsync" in told.err
    assert ('"fsync":false' if flags else "does not fsync") in told.out
    assert "does not fsync" in run_line(one_run(fsync=False))


def test_a_busy_machine_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A load above 0.3 before the start is said, and stands in the result."""
    bench(monkeypatch)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.8, 0.0, 0.0))
    assert main(["bench", "p8", "--json"]) == 0
    told = capsys.readouterr()
    assert "load 0.80" in told.err and json.loads(told.out)["load_before"] == 0.8


@pytest.mark.parametrize(
    ("cores", "memory_mib", "size", "said"),
    [
        (2, 1_000, None, "2.0 GiB of memory, has 1000 MiB; try --size 0.25"),
        (1, 4_096, None, "2 cores, has 1; try --size 0.5"),
        (0.5, 600, 1.0, "2.0 GiB of memory"),
        (4, 100, 0.1, "no smaller size fits"),
    ],
)
def test_a_machine_too_small_says_so(
    cores: float, memory_mib: int, size: float | None, said: str
) -> None:
    """What is missing and which part would fit; nothing is scaled down unasked."""
    with pytest.raises(CliError, match=said) as caught:
        host_info.check_requirements(
            "p8", machine(cores, memory_mib), HostRequirements(memory_mib=2_048), size
        )
    assert caught.value.code == "machine"


def test_a_part_that_fits_runs_on_request() -> None:
    """Fewer cores and less memory than all of it wants are enough for a part that was asked for."""
    needs = HostRequirements(memory_mib=2_048)
    host_info.check_requirements("p8", machine(1, 1_000), needs, 0.25)
    host_info.check_requirements("p8", machine(2, 2_048), needs, None)
    assert needs.mib(0.25) <= 1_000 < needs.mib(0.5)


def test_the_command_refuses_before_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 with one error object, and nothing was started."""
    bench(monkeypatch)
    monkeypatch.setattr(host_info, "inspect_host", lambda: machine(memory_mib=1_000))
    assert main(["bench", "p8", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "machine"
    assert main(["bench", "p8", "--json", "--size", "0.1"]) == 0


def test_bounds_of_a_container_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A quota of half a core on a large machine is half a core."""
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text(f"{256 << 20}\n")
    monkeypatch.setattr(host_info, "_CGROUP", tmp_path)
    found = host_info.inspect_host()
    assert (found.cores, found.memory_mib) == (0.5, 256)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    found = host_info.inspect_host()
    assert (
        found.cores >= 1
        and found.memory_mib > 256
        and host_info.host_as_result(found)["cores"] >= 1
    )


# ---- figures ----


def test_moments_lie_between_looks() -> None:
    """P4: placements between two looks are taken to come evenly; what never came has no moment."""
    seen = [(1.0, 100), (2.0, 200), (4.0, 1_000)]
    assert (
        time_of_placement(seen, 50) == 1.0
        and time_of_placement(seen, 150) == 1.5
        and time_of_placement(seen, 600) == 3.0
    )
    assert time_of_placement(seen, 2_000) == float("inf")


def test_a_faster_step_behind_a_slow_one_does_not_count() -> None:
    """P7: the figure is the last step before the first that was too slow."""
    steps = [RateStep(rate, 0.0, late, 0.0) for rate, late in ((1, 0.1), (2, 0.3), (3, 0.1))]
    assert highest_rate(steps, 0.25).rate == 1
    assert highest_rate(steps, 1.0).rate == 3
    assert highest_rate(steps[1:], 0.25).rate == 0


def test_arrivals_are_numbered_bodies() -> None:
    """A body carries its number wherever the mark stood; quantiles take the higher value."""
    body = body_template({"ID": "pod-@@", "Name": "pod-@@"})
    told = json.loads(body(17))
    assert told == {"Job": {"ID": "pod-17", "Name": "pod-17"}, "SubmissionID": "s-17"}
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0 and quantile([1.0], 0.99) == 1.0


def test_stdout_has_the_object_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a benchmark, its log or its processes print goes to stderr."""
    bench(monkeypatch)
    fake = sys.modules["bench.latency.idle_latency"]
    quiet = fake.run

    def loud(size: float, runs: int) -> BenchOutcome:
        print("printed")
        subprocess.run(["/bin/echo", "from a process"], check=True)
        return quiet(size, runs)

    monkeypatch.setattr(fake, "run", loud)
    assert main(["bench", "p8", "--json"]) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["name"] == "p8"
    assert "printed" in told.err and "from a process" in told.err
