"""Scenario files: what is wrong is named by file, path and line; traces are read; what a run writes is whole."""

import json
from pathlib import Path

import pytest

from services.cli.main import main
from shared.archive.export import ExportReader
from shared.core.runtime.replica import Replica
from shared.core.scheduling.explain.verify_decisions import verify_decisions
from shared.errors import ConfigInvalid
from shared.fleet.config_file import FileInvalid
from shared.sim.scenario.parser import read_scenario
from shared.sim.scenario.run import run_scenario
from shared.sim.scenario.traces import trace_jobs

SMALL = """\
name: small
duration: 5m
nodes:
  - {name: node, count: 3, cpu_mhz: 4000, memory_mib: 8192}
arrivals:
  - name: job
    every: 10s
    job: {cpu_mhz: 500, memory_mib: 64, count: {choice: {"1": 2, "3": 1}}, runs: {exponential: 30s}}
faults:
  - {at: 1m, lose: {of: node, count: 1}, back_after: 1m}
"""
JOB = next(line.strip() for line in SMALL.splitlines() if "job: {" in line)
NODES = "sn,cpu_milli,memory_mib,gpu,model\na,32000,65536,2,V100\nb,16000,32768,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time\n"
    "p1,2000,1024,1,500,V100|T4,LS,Running,100,160\n"
    "p0,1000,0,0,0,,BE,Running,40,\n"
)
SWF = """\
; Computer: none
1 0 5 60 4 -1 1048576 4 90 -1 1 1 1 -1 1 -1 -1 -1
2 30 0 10 1 -1 -1 -1 90 -1 1 1 1 -1 1 -1 -1 -1
3 31 -1 -1 -1 -1 -1 2 90 -1 5 1 1 -1 1 -1 -1 -1
"""


def wrong(text: str, folder: Path) -> FileInvalid:
    """What is said of a scenario that cannot be played."""
    with pytest.raises(FileInvalid) as found:
        read_scenario(text.encode(), "s.yaml", folder)
    return found.value


@pytest.mark.parametrize(
    ("old", "new", "path", "line", "said"),
    [
        ("duration: 5m", "durations: 5m", "durations", 2, "unknown key"),
        ("duration: 5m", "duration: soon", "duration", 2, "soon"),
        ("duration: 5m", "duration: 0s", "duration", 2, "must be more than 0"),
        ("count: 3", "cont: 3", "nodes[0].cont", 4, "unknown key"),
        ("count: 3", "count: 0", "nodes[0].count", 4, "not 0"),
        ("cpu_mhz: 4000", "cpu_mhz: -1", "nodes[0].cpu_mhz", 4, "not -1"),
        ("memory_mib: 8192", "memory_mib: 4000000000", "nodes[0].memory_mib", 4, "not 4000000000"),
        ("cpu_mhz: 4000", "cpu_mhz: fast", "nodes[0].cpu_mhz", 4, "Expected `int`"),
        ("every: 10s", "every: 0s", "arrivals[0].every", 7, "must be more than 0"),
        ("every: 10s", "every: 10s\n    uniform: 5", "arrivals[0].uniform", 8, "at most one of"),
        ("cpu_mhz: 500", "cpu: 500", "arrivals[0].job.cpu", 8, "unknown key"),
        (
            "cpu_mhz: 500",
            "file: gone.nomad",
            "arrivals[0].job.file",
            8,
            "file 'gone.nomad' does not exist",
        ),
        ('{"1": 2, "3": 1}', "{}", "arrivals[0].job.count", 8, "one of between and choice"),
        ("job: {cpu", "trace: {swf: gone.swf}\n    job: {cpu", "arrivals[0]", 6, "one of job"),
        (JOB, "trace: {swf: gone.swf}", "arrivals[0].trace.swf", 8, "with --data"),
        ("lose: {of: node, count: 1}", "stop: ''", "faults[0]", 10, "one of lose"),
        ("count: 1}", "count: 1, share: 0.5}", "faults[0].lose", 10, "one of nodes, count"),
        ("name: small", "policy: {algorithm: best}", "policy.algorithm", 1, "binpack"),
        ("name: small", "seed: {", "", 3, "YAML"),
        ("every: 10s", "every: 1ns", "arrivals[0].every", 7, "jobs in an hour, at most 10000000"),
        ("every: 10s", "every: 20us\n    burst: 100", "arrivals[0].every", 7, "at most 10000000"),
        ("every: 10s", "burst: 1000000000", "arrivals[0].burst", 7, "at most 10000000"),
        ("every: 10s", "burst: 0", "arrivals[0].burst", 7, "at least 1"),
        ("every: 10s", "uniform: 1000000000", "arrivals[0].uniform", 7, "at most 10000000"),
        ("every: 10s", "uniform: 20000000\n    most: 1", "arrivals[0].uniform", 7, "at most"),
        ("every: 10s", "per_hour: 1.0e+8", "arrivals[0].per_hour", 7, "at most 10000000"),
        ("every: 10s", "per_hour: 1000000\n    burst: 11", "arrivals[0].per_hour", 7, "at most"),
        ("every: 10s", "per_hour: .nan", "arrivals[0].per_hour", 7, "not a number"),
        ("every: 10s", "per_hour: .inf", "arrivals[0].per_hour", 7, "not a number"),
        ("every: 10s", "per_hour: 1" + "0" * 400, "arrivals[0].per_hour", 7, "out of range"),
        ("count: 3", "count: .nan", "nodes[0].count", 4, "not a number"),
        ("count: 1}", "share: .nan}", "faults[0].lose.share", 10, "not a number"),
        ("lose:", "every: 1ns, lose:", "faults[0].every", 10, "more than 1000000 times"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, old: str, new: str, path: str, line: int, said: str
) -> None:
    """Unknown keys, impossible nodes, what is missing or said twice: file, path and line."""
    assert old in SMALL
    found = wrong(SMALL.replace(old, new, 1), tmp_path)
    assert (found.path, found.file) == (path, "s.yaml")
    assert said in found.message
    assert found.line == line


def test_a_trace_names_its_lines(tmp_path: Path) -> None:
    """Openb's lists and SWF are read as they are; a field that is none is named by file and line."""
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "w.swf").write_text(SWF)
    text = (
        "nodes: [{name: o, openb: nodes.csv}]\n"
        "arrivals:\n  - {name: pod, trace: {openb: pods.csv}}\n  - {name: hpc, trace: {swf: w.swf}}\n"
    )
    plan = read_scenario(text.encode(), "s.yaml", tmp_path)
    assert [spec.node_id for spec, _ in plan.nodes] == ["o-a", "o-b"]
    assert len(plan.nodes[0][0].pools[0].instances) == 2
    pods, hpc = (
        list(trace_jobs(one.trace, tmp_path)) for one in plan.scenario.arrivals if one.trace
    )
    # In order of time, from the first: its end is not known, so it is a service.
    assert [(one.name, one.at_ns, one.job["Type"]) for one in pods] == [
        ("p0", 0, "service"),
        ("p1", 60_000_000_000, "batch"),
    ]
    task = pods[1].job["TaskGroups"][0]["Tasks"][0]
    assert task["Resources"]["Devices"][0]["Count"] == 0.5
    assert task["Meta"] == {"sim.run_ms": "60000"}
    assert [one.job["TaskGroups"][0]["Count"] for one in hpc] == [4, 1]
    assert hpc[0].job["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] == 1024
    (tmp_path / "w.swf").write_text(SWF + "4 x 0 1\n")
    with pytest.raises(FileInvalid) as found:
        list(trace_jobs(plan.scenario.arrivals[1].trace, tmp_path))  # type: ignore[arg-type]
    assert found.value.line == 5
    (tmp_path / "nodes.csv").write_text(NODES.replace("16000", "many"))
    error = wrong(text, tmp_path)
    assert (error.line, Path(error.file).name) == (3, "nodes.csv")
    assert "cpu_milli" in error.message


def test_a_run_writes_a_log_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its export replays and decides the same again, the report stands beside it, and nothing is ever overwritten."""
    (tmp_path / "s.yaml").write_text(SMALL)
    out = tmp_path / "out"
    assert main(["simulate", str(tmp_path / "s.yaml"), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    records = list(ExportReader(out).records())
    assert len(records) == told["report"]["records"]
    replica = Replica()
    for record in records:
        replica.apply(record)
    decided = verify_decisions(lambda: iter(records))
    assert decided.differences == []
    assert decided.equal == told["report"]["plans"]["committed"] > 20
    report = out / "report"
    assert json.loads((report / "report.json").read_text()) == told["report"]
    assert {one.name for one in report.glob("*.parquet")} == {
        "jobs.parquet",
        "samples.parquet",
        "waiting.parquet",
    }
    page = (report / "report.html").read_text()
    assert page.count("<svg") == page.count("</svg>") >= 4
    assert "prefers-color-scheme" in page
    assert main(["simulate", str(tmp_path / "s.yaml"), "--out", str(out), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "conflict"
    assert json.loads((report / "report.json").read_text()) == told["report"]


def test_two_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of both stand side by side; of the same twice nothing differs."""
    (tmp_path / "a.yaml").write_text(SMALL)
    (tmp_path / "b.yaml").write_text(SMALL.replace("count: 3, cpu_mhz", "count: 2, cpu_mhz"))
    words = ["simulate", "--compare", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    assert main([*words, "--json", "--out", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out)["compared"]
    nodes = next(one for one in told if one["figure"] == "nodes")
    assert (nodes["a"], nodes["b"]) == (3.0, 2.0)
    assert (tmp_path / "out" / "compared.html").read_text().count("<svg") == 3
    assert main([*words[:2], str(tmp_path / "a.yaml"), str(tmp_path / "a.yaml")]) == 0
    assert "no differences" in capsys.readouterr().out


def test_a_run_goes_on_from_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario may begin with a recorded cluster; its log is the recorded one and what came behind."""
    (tmp_path / "s.yaml").write_text(SMALL)
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["simulate", str(tmp_path / "s.yaml"), "--out", str(first), "--json"]) == 0
    capsys.readouterr()
    text = (
        "duration: 2m\ncluster: {export: first, seq: 60}\narrivals:\n"
        "  - {name: late, burst: 5, job: {cpu_mhz: 500, memory_mib: 64, runs: 10s}}\n"
    )
    (tmp_path / "t.yaml").write_text(text)
    assert main(["simulate", str(tmp_path / "t.yaml"), "--out", str(second), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"]["jobs"]["complete"] == 5
    before, after = list(ExportReader(first).records()), list(ExportReader(second).records())
    assert [one.data for one in after[:60]] == [one.data for one in before[:60]]
    replica = Replica()
    for record in after:
        replica.apply(record)
    assert "late-4" in replica.state.jobs.by_id
    # The same jobs again, at their distances, on another cluster.
    again = (
        "duration: 5m\nsettle: 10m\nnodes: [{name: n, count: 5, cpu_mhz: 4000, memory_mib: 4096}]\n"
        "runs: [{lasts: 5s}]\narrivals: [{name: again, trace: {log: first, speed: 2, skip: 3}}]\n"
    )
    (tmp_path / "u.yaml").write_text(again)
    assert main(["simulate", str(tmp_path / "u.yaml"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["report"]
    assert told["jobs"]["complete"] == told["jobs"]["submitted"] == 27
    damaged = next(first.glob("seq-*")) / "records.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert main(["simulate", str(tmp_path / "u.yaml"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "damaged"


def test_what_runs_in_a_recorded_cluster_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `runs`, tasks of the record last as in a fork of it, and the report says so; with `runs`, as they say."""
    text = (
        "duration: 1m\nnodes: [{name: n, count: 2, cpu_mhz: 1000, memory_mib: 4096}]\narrivals:\n"
        "  - {name: long, burst: 2, job: {type: batch, cpu_mhz: 1000, memory_mib: 64, runs: 1h}}\n"
    )
    (tmp_path / "s.yaml").write_text(text)
    first = tmp_path / "first"
    assert main(["simulate", str(tmp_path / "s.yaml"), "--out", str(first), "--json"]) == 0
    capsys.readouterr()
    late = (
        "duration: 5m\ncluster: {export: first}\narrivals:\n"
        "  - {name: late, burst: 1, job: {type: batch, cpu_mhz: 500, memory_mib: 64, runs: 10s}}\n"
    )
    (tmp_path / "t.yaml").write_text(late)
    # As job plan says on the recorded state: there is no room for it.
    assert main(["simulate", str(tmp_path / "t.yaml"), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)["report"]
    assert (report["allocations"]["waiting"], report["series"]["running"][-1]) == (1, 2)
    events, tasks, *_ = report["assumptions"]
    assert events.startswith(f"no external event of the record happens after seq {last_seq(first)}")
    assert tasks == "tasks: 2 without end (no end of their group or job is recorded)"
    (tmp_path / "t.yaml").write_text(f"{late}runs: [{{job: 'long-*', lasts: 20s}}]\n")
    assert main(["simulate", str(tmp_path / "t.yaml"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["jobs"]["complete"] == 1
    assert report["assumptions"][1] == "tasks: none"


def last_seq(folder: Path) -> int:
    """The last seq of an export."""
    return max(one.seq for one in ExportReader(folder).records())


def test_a_seq_beyond_the_export_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster is taken up at a seq that its export has."""
    (tmp_path / "s.yaml").write_text(SMALL)
    first = tmp_path / "first"
    assert main(["simulate", str(tmp_path / "s.yaml"), "--out", str(first), "--json"]) == 0
    capsys.readouterr()
    (tmp_path / "t.yaml").write_text("duration: 2m\ncluster: {export: first, seq: 60000}\n")
    assert main(["simulate", str(tmp_path / "t.yaml"), "--json"]) == 1
    assert "ends at seq" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_what_the_cluster_refuses_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused node ends the run before it begins; a refused job is listed with its reason."""
    both = (
        "duration: 1m\nnodes:\n"
        "  - {name: a, devices: [{name: device.gpu, amount: 10000}]}\n"
        "  - {name: b, devices: [{name: device.gpu, instances: [{id: g}]}]}\n"
    )
    (tmp_path / "s.yaml").write_text(both)
    assert main(["simulate", str(tmp_path / "s.yaml"), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "invalid"
    assert "device.gpu is" in error["message"]
    text = SMALL.replace(
        "cpu_mhz: 500", "constraints: [{attribute: x, operator: near}], cpu_mhz: 500"
    )
    (tmp_path / "s.yaml").write_text(text)
    assert main(["simulate", str(tmp_path / "s.yaml"), "--json"]) == 2
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["jobs"]["submitted"] == 0
    assert report["refused"] == {"invalid": 30}
    assert len(report["refusals"]) == 5
    assert "near" in report["refusals"][0]


def test_a_recorded_cluster_keeps_its_policy_but_for_what_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scenario's policy, and the command's, is laid over that of the cluster it begins with, in the log, too."""
    (tmp_path / "s.yaml").write_text("policy: {reservations_max: 3}\n" + SMALL)
    assert main(["simulate", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "first")]) == 0
    text = "duration: 1m\ncluster: {export: first, seq: 60}\npolicy: {algorithm: spread}\n"
    (tmp_path / "t.yaml").write_text(text)
    words = ["simulate", str(tmp_path / "t.yaml"), "--out", str(tmp_path / "second"), "--json"]
    capsys.readouterr()
    assert main([*words, "--policy", "evaluation_keep_ns=77000000000"]) == 0
    assert json.loads(capsys.readouterr().out)["report"]["algorithm"] == "spread"
    replica = Replica()
    for record in ExportReader(tmp_path / "second").records():
        replica.apply(record)
    policy = replica.state.policy.policy
    told = (policy.algorithm, policy.evaluation_keep_ns, policy.reservations_max)
    assert told == ("spread", 77_000_000_000, 3)


def test_a_name_that_begins_with_another_has_its_own_run_time(tmp_path: Path) -> None:
    """Jobs of `web-blue` are none of `web`, in whatever order the file has them."""
    text = (
        "duration: 2m\nnodes: [{name: n, cpu_mhz: 4000, memory_mib: 4096}]\narrivals:\n"
        "  - {name: web, job: {cpu_mhz: 10, memory_mib: 10, runs: 10s}}\n"
        "  - {name: web-blue, job: {cpu_mhz: 10, memory_mib: 10, runs: 50s}}\n"
    )
    played = run_scenario(
        read_scenario(text.encode(), "s.yaml", tmp_path), opens=lambda _: iter(())
    )
    lasted = {note.name: note.ended_ns - note.first_ns for note in played.jobs.values()}
    # With what it takes to start.
    assert [lasted[name] // 10_000_000_000 for name in ("web", "web-blue")] == [1, 5]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("lose: {nodes: [n-9]}", r"faults\[0\].lose.nodes: there is no node 'n-9'"),
        ("drain: {of: m, count: 1}", r"faults\[0\].drain.of: there is no node class 'm'"),
    ],
)
def test_a_fault_of_nobody_is_refused(tmp_path: Path, fault: str, said: str) -> None:
    """A misspelled node is an error, not a fault without effect."""
    text = (
        "duration: 2m\nnodes: [{name: n, cpu_mhz: 4000, memory_mib: 4096}]\n"
        f"faults: [{{at: 5s, {fault}}}]\n"
    )
    with pytest.raises(ConfigInvalid, match=said):
        run_scenario(read_scenario(text.encode(), "s.yaml", tmp_path), opens=lambda _: iter(()))


@pytest.mark.parametrize(
    "often",
    ["every: 1ns\n    most: 10", "every: 1us\n    until: 1ms", "burst: 10000", "uniform: 10"],
)
def test_few_jobs_are_few_however_they_are_written(tmp_path: Path, often: str) -> None:
    """The bound counts the jobs that there will be: `most` and `until` make them few."""
    plan = read_scenario(SMALL.replace("every: 10s", often).encode(), "s.yaml", tmp_path)
    assert plan.scenario.arrivals[0].job is not None


def test_jobs_are_stopped_once(tmp_path: Path) -> None:
    """A stop that would come again and again is refused, not done once."""
    text = SMALL + "  - {at: 9s, every: 5s, stop: job}\n"
    assert "not allowed with stop" in wrong(text, tmp_path).message
