"""Profiles of simulated fleets: what a file may say, what it gets told, and what follows from it."""

from pathlib import Path

import numpy as np
import pytest

from services.cli.main import main
from shared.errors import ConfigInvalid
from shared.fleet import distributions
from shared.fleet.profile import (
    FleetProfile,
    NodeProfile,
    RestartRule,
    node_specs,
    parse_distribution,
    read_profile,
)

EXAMPLES = Path(__file__).parents[3] / "examples" / "fleets"


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_examples_are_profiles(path: Path) -> None:
    """Every example can be read, and has nodes."""
    assert node_specs(read_profile(path.read_bytes()), 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: []", "nodes: at least one node class"),
        ("nodes: [{count: 0}]", "nodes[0].count"),
        ("nodes: [{count: x}]", "nodes[0].count: Expected `int`"),
        ("nodes: [{cpu_mhz: -1}]", "nodes[0]: amounts must not"),
        ("nodes: [{cpu: 1}]", "nodes[0].cpu: unknown key"),
        ("node: []", "node: unknown key"),
        ("starts: {after: 3x}", "starts.after: '3x' is not a duration"),
        ("starts: {after: -1s}", "starts.after"),
        ("starts: {fail: 1.5}", "starts.fail: must be a share from 0 to 1"),
        ("starts: {after: {}}", "starts.after: exactly one of fixed"),
        ("starts: {after: {fixed: 1s, exponential: 2s}}", "starts.after: exactly one of fixed"),
        ("runs: [{lasts: {lognormal: 10s}}]", "runs[0].lasts.p99"),
        ("runs: [{lasts: {lognormal: 10s, p99: 1s}}]", "runs[0].lasts: lognormal requires"),
        (
            "runs: [{lasts: {quantiles: {x: 1s}}}]",
            "runs[0].lasts.quantiles: 'x' is not a probability",
        ),
        ('runs: [{lasts: {quantiles: {"0.1": 2s, "0.2": 1s}}}]', "durations must increase"),
        ("runs: [{lasts: {uniform: [2s, 1s]}}]", "runs[0].lasts.uniform: the first"),
        ("runs: [{type: web}]", "runs[0].type: unknown job type 'web'"),
        ("failures: {per_node_day: -1}", "failures.per_node_day"),
        ("failures: {away: 3x}", "failures.away"),
        ("a: &x 1", "anchors"),
        ("{", "YAML"),
    ],
)
def test_a_bad_profile_is_told_where(text: str, said: str) -> None:
    """A refusal names the file, the place in it, and what is wrong there."""
    with pytest.raises(ConfigInvalid) as told:
        read_profile(text.encode(), "f.yaml")
    assert str(told.value).startswith("f.yaml:") and said in str(told.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "0"), "--nodes must be 1 to"),
        (("--nodes", "-3"), "--nodes must be 1 to"),
        (("--nodes", "x"), "--nodes"),
        (("--agents", "fat"), "lean or real"),
        (("--name-prefix", "a b"), "--name-prefix"),
        (("--profile", "/nowhere.yaml"), "No such file"),
        (("--nodes", "1"), "no credentials for"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """One line and exit 1: numbers, kinds and files that cannot be, and no cluster to join."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CARAVAN_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.delenv("CARAVAN_CREDENTIALS", raising=False)
    assert main(["fleet", *words]) == 1
    assert said in capsys.readouterr().err


def test_classes_have_their_share_of_any_fleet() -> None:
    """Of a fleet of another size each class has its part, the first one first, mixed from the beginning on."""
    profile = read_profile(b"nodes: [{class: a, count: 3}, {class: b, count: 1}]")
    found = [spec.node_class for spec in node_specs(profile, 8, prefix="x-")]
    assert "".join(found) == "aabaaaba"
    assert [spec.node_id for spec in node_specs(profile)] == [f"sim-0000{n}" for n in range(4)]


def test_a_job_says_more_than_the_profile() -> None:
    """Run time and exit code in meta go before what the profile has; the first entry that matches counts."""
    text = b"""
runs:
  - {job: "night-*", lasts: 7s}
  - {type: batch, lasts: 9s, fail: 1}
"""
    node_profile = NodeProfile(read_profile(text))

    def ns(law: distributions.Distribution) -> int:
        return int(law.draw(np.zeros(1, dtype=np.uint64))[0])

    assert ns(node_profile.task_profile("night-1", "batch").runs) == 7_000_000_000
    assert ns(node_profile.task_profile("day", "batch").runs) == 9_000_000_000
    exact = node_profile.task_profile("day", "batch", {"sim.run_ms": "1500", "sim.exit_code": "0"})
    assert (ns(exact.runs), exact.run_fails, exact.exit_code) == (1_500_000_000, 0, 0)
    assert node_profile.task_profile("day", "service").runs.is_never
    assert node_profile.task_profile("day", "batch") is node_profile.task_profile("other", "batch")
    for bad in ("x", "-1", "1" * 20):
        with pytest.raises(ConfigInvalid, match="not a whole number"):
            node_profile.task_profile("day", "batch", {"sim.run_ms": bad})


def test_a_task_that_fails_is_started_again_as_its_policy_says() -> None:
    """Three restarts with a pause make four runs; runs longer than the interval allows never give up."""
    node_profile = NodeProfile(FleetProfile())
    again = RestartRule(restarts=3, pause_ns=10, interval_ns=1_000)
    task_profile = node_profile.task_profile("a", "batch", {"sim.exit_code": "1"}, again)
    assert task_profile.time_to_final_failure(np.array([5, 400])).tolist() == [
        4 * 5 + 3 * 10,
        distributions.NEVER_NS,
    ]
    assert node_profile.task_profile("a", "batch").time_to_final_failure(
        np.array([5])
    ).tolist() == [5]


def test_for_ever_is_no_time_and_a_cut_cuts() -> None:
    """`forever` never ends; `at_most` bounds what is drawn."""
    assert parse_distribution("forever", "x").is_never
    profile = read_profile(b"starts: {after: {exponential: 1h, at_most: 2s}}")
    drawn = parse_distribution(profile.starts.after, "x").draw(
        distributions.purpose_hashes(1, 1, np.arange(100))
    )
    assert drawn.max() == 2_000_000_000
