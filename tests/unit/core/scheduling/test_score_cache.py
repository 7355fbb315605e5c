"""Ranked: what is kept between cuts changes nothing of them."""

import numpy as np
import pytest

from shared.core.scheduling.scoring.score_cache import ScoreCache
from shared.core.scheduling.scoring.scores import Algorithm
from shared.core.scheduling.selection import greedy
from shared.core.scheduling.selection.candidates import Demand, NodeColumns, Placement
from shared.core.scheduling.selection.greedy import SelectionOptions, place_count, select_nodes
from shared.core.scheduling.usage.dirty_rows import DirtyRows

NODES = 40


def _problem(draw: np.random.Generator) -> dict[str, np.ndarray]:
    capacity = np.asfortranarray(draw.integers(1_000, 5_000, (NODES, 3)))
    return {"capacity": capacity, "used": np.asfortranarray(capacity // 3)}


@pytest.mark.parametrize("algorithm", ["binpack", "spread"])
@pytest.mark.parametrize("seed", range(5))
def test_a_cut_is_the_same_with_and_without(algorithm: Algorithm, seed: int) -> None:
    """Cut after cut on a fleet that fills, empties and changes: rows and counts are equal, whatever was kept."""
    draw = np.random.default_rng(seed)
    ranked, problem = ScoreCache(), _problem(draw)
    for turn in range(60):
        if turn == 30:
            # Another fleet: the same shapes are asked of other nodes.
            problem = _problem(draw)
        given = {
            **problem,
            "mask": draw.random(NODES) < 0.8,
            "ask": np.array(draw.choice([(50, 20, 1), (300, 100, 0), (0, 0, 0)])),
            "count": int(draw.choice([1, 1, 7, 40])),
            "collisions": (draw.random(NODES) < 0.1 * (turn % 2)).astype(np.int64),
            "limit": draw.integers(0, 4, NODES) if turn % 3 == 0 else None,
            "lane": 1,
            "lanes": int(draw.choice([1, 3])),
        }
        asked = {"desired_count": 10, "algorithm": algorithm, "anti_affinity": bool(turn % 4)}
        plain = place_count(**given, **asked)
        kept = place_count(**given, **asked, score_cache=ranked)
        assert _runs(kept) == _runs(plain)
        used = problem["used"]
        np.add.at(used, plain.rows, plain.counts[:, None] * given["ask"])
        gone = draw.integers(0, NODES, 5)
        used[gone] = np.maximum(used[gone] - 40, 0)


def test_shapes_are_bounded() -> None:
    """The shape that was not asked for longest is forgotten first; each has the keys of its own ask."""
    draw = np.random.default_rng(1)
    ranked, problem = ScoreCache(), _problem(draw)
    for ask in range(1, 200):
        place_count(
            **problem,
            mask=np.ones(NODES, bool),
            ask=np.array([ask, 1, 1]),
            count=1,
            collisions=np.zeros(NODES, np.int64),
            desired_count=1,
            algorithm="binpack",
            anti_affinity=True,
            score_cache=ranked,
        )
    assert len(ranked) == 64


@pytest.mark.parametrize("seed", range(40))
def test_a_later_round_of_one_cut_sees_what_the_first_took(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut of many rounds overfills no row: what its own rounds take is on no trail."""
    monkeypatch.setattr(greedy, "_ROUND_MAX", 12)
    draw = np.random.default_rng(seed)
    nodes = int(draw.integers(3, 7))
    capacity = np.asfortranarray(draw.integers(60, 200, (nodes, 3)))
    given = NodeColumns(capacity, np.asfortranarray(np.zeros_like(capacity)), np.ones(nodes, bool))
    demand = Demand((25, 25, 0), 10, "spread", anti_affinity=bool(seed % 4 == 0))
    count = int(draw.integers(13, 30))
    plain = select_nodes(demand, given, count, SelectionOptions())
    kept = select_nodes(
        demand, given, count, SelectionOptions(score_cache=ScoreCache(), dirty_rows=DirtyRows())
    )
    assert _runs(kept) == _runs(plain)


def _runs(placement: Placement) -> tuple[list[int], list[int], int]:
    return placement.rows.tolist(), placement.counts.tolist(), placement.placed
