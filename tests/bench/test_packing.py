"""P21 on a small fleet of its own, in the trace's format: the trace itself is never part of the tree."""

from pathlib import Path

import msgspec
import pytest

from bench.packing import fewest_nodes, gpu_trace, gpu_trace_packing
from bench.packing.packers import POLICIES, packer
from bench.packing.trace_variants import TRACE_VARIANTS
from services.cli.runtime.output import CliError

NODES = """sn,cpu_milli,memory_mib,gpu,model
n-0,64000,262144,2,P100
n-1,96000,393216,8,G2
n-2,96000,393216,8,G2
n-3,104000,524288,2,T4
n-4,8000,61440,1,P100
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p-0,12000,16384,1,1000,
p-1,6000,12288,1,460,
p-2,3152,5600,1,810,T4|P100
p-3,20000,50000,0,0,
p-4,4000,22888,1,320,T9
p-5,24000,90000,2,1000,
p-6,4000,15258,1,230,
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write a fleet and two variants; one has no column for models."""
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_gpuspec33.csv").write_text(PODS)
    without = "".join(line.rpartition(",")[0] + "\n" for line in PODS.splitlines())
    (tmp_path / "openb_pod_list_multigpu20.csv").write_text(without)
    return tmp_path


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_packs_a_fleet(trace: Path, policy: str) -> None:
    """P21: nothing over capacity, nothing refused that fitted, twice the same, keys as promised."""
    found = gpu_trace_packing.run(1.0, 2, data=str(trace), variant="gpuspec33", policy=policy)
    assert len(found.checks) == 3 and all(found.checks.values()), found.checks
    assert 0 < found.result["at_100_pct"] <= found.result["at_130_pct"] <= 100
    assert found.result["policy"] == policy and found.size["gpus"] == 21
    assert [one["seed"] for one in found.result["per_seed"]] == [1, 2]
    assert found.result["fgd_at_130_pct"] > 0


@pytest.mark.parametrize("name", ["mine", "gpushare100", "cpu_250-b"])
def test_any_list_of_the_trace_is_a_variant(trace: Path, name: str) -> None:
    """A list of pods is found by the name in its file's name; one that would leave the folder is refused."""
    (trace / f"openb_pod_list_{name}.csv").write_text(PODS)
    found = gpu_trace_packing.run(1.0, 1, data=str(trace), variant=name)
    assert all(found.checks.values()) and found.result["variant"] == name
    with pytest.raises(CliError, match=name):
        gpu_trace_packing.run(1.0, 1, data=str(trace), variant=f"../{name}")


def test_no_column_of_models_takes_any(trace: Path) -> None:
    """A list without a column for models packs; at a part of the size there are fewer nodes."""
    found = gpu_trace_packing.run(0.5, 1, data=str(trace), variant="multigpu20")
    assert all(found.checks.values()) and found.size["nodes"] == 2


def test_the_ledger_sees_what_policies_do_wrong(trace: Path) -> None:
    """Over capacity, on the wrong model, on too few instances, or refused though it fitted: each is found."""
    read = gpu_trace_packing.read(str(trace), "gpuspec33", 1.0)
    whole, _, bound, *_ = read.pods
    for ask, row, instances in (
        (whole, 4, (0,)),
        (bound, 1, (0,)),
        (whole, 1, ()),
        (whole, 1, (8,)),
    ):
        ledger = gpu_trace_packing.PackingLedger(read)
        ledger.place(ask, row, instances)
        assert not ledger.within_capacity
    ledger = gpu_trace_packing.PackingLedger(read)
    ledger.place(whole, 1, (0,))
    assert ledger.within_capacity and ledger.none_refused_that_fitted
    ledger.refuse(whole)
    assert not ledger.none_refused_that_fitted


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (("", ""), "--data DIR is needed"),
        (("openb_node_list_gpu_node.csv", None), "cannot read the trace"),
        (("openb_node_list_gpu_node.csv", "sn,cpu_milli\n"), "no rows"),
        (("openb_pod_list_gpuspec33.csv", "cpu_milli,memory_mib\n5,x\n"), "memory_mib"),
        (
            ("openb_pod_list_gpuspec33.csv", "cpu_milli,memory_mib,num_gpu,gpu_milli\n1,1,2,500\n"),
            "is invalid",
        ),
    ],
)
def test_a_trace_that_is_not_there_is_named(
    trace: Path, spoil: tuple[str, str | None], said: str
) -> None:
    """Missing folder, file, column or sense: an error says which, before anything is packed."""
    name, text = spoil
    if name and text is None:
        (trace / name).unlink()
    elif name:
        (trace / name).write_text(text or "")
    with pytest.raises(CliError, match=said):
        gpu_trace_packing.run(1.0, 1, data=str(trace) if name else "", variant="gpuspec33")


def test_unknown_names_are_refused(trace: Path) -> None:
    """A variant or policy that does not exist is refused with those that do."""
    with pytest.raises(CliError, match="gpuspec33"):
        gpu_trace_packing.run(1.0, 1, data=str(trace), variant="none")
    with pytest.raises(CliError, match="binpack"):
        gpu_trace_packing.run(1.0, 1, data=str(trace), variant="gpuspec33", policy="none")


def test_any_list_of_the_trace_is_taken_by_name(trace: Path) -> None:
    """A list that this release does not know is read like the others; a name is no path."""
    text = (trace / "openb_pod_list_gpuspec33.csv").read_text()
    (trace / "openb_pod_list_gpushare40.csv").write_text(text)
    known = gpu_trace.read(str(trace), "gpuspec33", 1.0)
    assert gpu_trace.read(str(trace), "gpushare40", 1.0) == known
    with pytest.raises(CliError, match="gpushare40, gpuspec33"):
        gpu_trace.read(str(trace), "gpushare41", 1.0)
    with pytest.raises(CliError, match="--variant"):
        gpu_trace.read(str(trace), "../gpushare40", 1.0)


@pytest.mark.parametrize("answer", [5, 6, 11, 40, 41])
def test_the_least_number_is_found(answer: int) -> None:
    """P22: from a bound upwards, the least number that fits; one more than all where none does."""
    asked: list[int] = []

    def fits(count: int) -> bool:
        asked.append(count)
        return count >= answer

    assert fewest_nodes.fewest_that_fit(fits, 5, 40) == answer
    assert len(asked) <= 10 and max(asked) <= 40


def test_few_nodes_hold_the_load(trace: Path) -> None:
    """P22: binpack holds the small million on as few nodes as capacity allows; the trace, too, finds its number."""
    (trace / "openb_pod_list_default.csv").write_text(PODS)
    found = fewest_nodes.run(0.02, 2, data=str(trace))
    million = found.result["workloads"]["c1m"]
    assert million["nodes_needed"] == million["best_known"] >= 5
    small = found.result["workloads"]["openb"]
    assert 1 <= small["best_known"] <= small["nodes_needed"] <= found.size["openb_nodes"] + 1


@pytest.mark.parametrize("variant", sorted(TRACE_VARIANTS))
def test_altered_workloads_are_other_workloads(trace: Path, variant: str) -> None:
    """Every altered list packs, and differs from the one it was made of."""
    head, _, rows = PODS.partition("\n")
    for name in ("default", "gpuspec33"):
        (trace / f"openb_pod_list_{name}.csv").write_text(f"{head}\n{rows * 6}")
    base = TRACE_VARIANTS[variant][0]
    assert (
        gpu_trace.read(str(trace), variant, 1.0).pods != gpu_trace.read(str(trace), base, 1.0).pods
    )
    assert all(gpu_trace_packing.run(1.0, 1, data=str(trace), variant=variant).checks.values())


def test_decisions_are_the_same_everywhere(trace: Path) -> None:
    """What our policy places is pinned: no processor, hash seed or release of numpy decides otherwise."""
    small = gpu_trace.read(str(trace), "gpuspec33", 1.0)
    read = msgspec.structs.replace(small, machines=small.machines * 20)
    packed = gpu_trace_packing.pack(read, 7, lambda: packer("fragmentation", read))
    assert (packed.pods, packed.refused, packed.digest) == (759, 239, 1_277_200_110)
