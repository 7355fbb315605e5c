"""Lives of simulated allocations against a dict of lives, one at a time."""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.fleet import distributions
from shared.fleet.due_queue import DueQueue
from shared.fleet.profile import RUN, RUN_FAILS, START, START_FAILS, STOP, TaskProfile
from shared.fleet.simulated_allocs import COMPLETE, FAILED, PENDING, RUNNING, SimulatedAllocs
from tests.examples import examples

pytestmark = pytest.mark.property
SEED = 7
HALF = distributions.PROBABILITY_ONE // 2

TASK_PROFILES = (
    TaskProfile(distributions.fixed(0), 0, distributions.NEVER, 0, distributions.fixed(0)),
    TaskProfile(distributions.fixed(5), 0, distributions.fixed(0), 0, distributions.fixed(3)),
    TaskProfile(
        distributions.quantiles([(Fraction(0), 0), (Fraction(1), 20)]),
        HALF // 2,
        distributions.quantiles([(Fraction(0), 1), (Fraction(1), 30)]),
        HALF,
        distributions.quantiles([(Fraction(0), 0), (Fraction(1), 9)]),
    ),
    TaskProfile(
        distributions.exponential(10),
        0,
        distributions.exponential(10),
        0,
        distributions.fixed(1),
        exit_code=3,
    ),
)


class Life:
    """One allocation, the slow way."""

    def __init__(self, key: int, node: int, task_profile: TaskProfile, now: int) -> None:
        self.key, self.node, self.task_profile = key, node, task_profile
        self.status = self.told = PENDING
        self.stopping = self.ended = False
        self.due = now + self._draw(START, task_profile.starts)
        self.next = FAILED if self._happens(START_FAILS, task_profile.start_fails) else RUNNING
        self.at = 0

    def _hash(self, purpose: int) -> "distributions.Hashes":
        return distributions.purpose_hashes(SEED, purpose, np.array([self.key]))

    def _draw(self, purpose: int, law: distributions.Distribution) -> int:
        return int(law.draw(self._hash(purpose))[0])

    def _happens(self, purpose: int, share: int) -> bool:
        return bool(distributions.happens(self._hash(purpose), share)[0])

    def stop(self, now: int) -> None:
        """Order it to end."""
        if not self.stopping and not self.ended:
            self.stopping = True
            self.due, self.next = now + self._draw(STOP, self.task_profile.stops), COMPLETE

    def until(self, now: int) -> bool:
        """Let pass what is due; says whether something was."""
        changed = False
        while not self.ended and self.due <= now:
            changed, self.status, self.at = True, self.next, self.due
            if self.status != RUNNING:
                self.ended = True
                break
            self.due = self.at + self._draw(RUN, self.task_profile.runs)
            if self.task_profile.runs.is_never:
                self.due = distributions.NEVER_NS
            fails = self._happens(RUN_FAILS, self.task_profile.run_fails)
            self.next = FAILED if fails or self.task_profile.exit_code else COMPLETE
        return changed


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("start", "start", "start", "stop", "stop", "wait", "wait", "lose")),
        st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True),
        st.integers(0, 12),
        st.integers(0, len(TASK_PROFILES) - 1),
    ),
    max_size=40,
)


class Twin:
    """The columns and the dict, side by side."""

    def __init__(self) -> None:
        self.lives = SimulatedAllocs(SEED)
        self.codes = [self.lives.profile_number(one) for one in TASK_PROFILES]
        self.naive: dict[int, Life] = {}
        self.made = 0

    def start(self, rows: "np.ndarray", task_profile: int, now: int) -> None:
        """Start fresh allocations in some rows, and in the others what is there once more."""
        keys = []
        for row in rows.tolist():
            life = self.naive.get(row)
            if life is None or life.ended:
                self.made += 1
                life = self.naive[row] = Life(
                    self.made << 20, row % 3, TASK_PROFILES[task_profile], now
                )
            keys.append(life.key)
        codes = np.full(len(rows), self.codes[task_profile], dtype=np.int32)
        nodes = np.asarray(rows % 3, dtype=np.int32)
        self.lives.start(rows, np.array(keys, dtype=np.int64), nodes, codes, now_ns=now)

    def keys(self, rows: "np.ndarray") -> "distributions.Int64s":
        """Keys as the dict has them; a wrong one where it has none."""
        found = [self.naive[row].key if row in self.naive else 99 for row in rows.tolist()]
        return np.array(found, dtype=np.int64)

    def do(self, what: str, rows: "np.ndarray", number: int, now: int) -> None:
        """Do one step on both sides."""
        if what == "start":
            self.start(rows, number, now)
        elif what == "stop":
            self.lives.stop(rows, self.keys(rows), now)
            for row in rows.tolist():
                if row in self.naive:
                    self.naive[row].stop(now)
        elif what == "lose":
            gone = self.lives.lose(np.array([number % 3], dtype=np.int32)).tolist()
            lost = [row for row, one in self.naive.items() if one.node == number % 3]
            assert gone == sorted(row for row in lost if not self.naive[row].ended)
            for row in lost:
                del self.naive[row]

    def compare(self, now: int) -> None:
        """Let time pass on both sides."""
        told = self.lives.due(now)
        changed = {row: life for row, life in self.naive.items() if life.until(now)}
        expected = sorted(
            (one.at, row, one.key, one.node, one.status) for row, one in changed.items()
        )
        columns = (told.at_ns, told.rows, told.keys, told.nodes, told.statuses)
        assert list(zip(*(one.tolist() for one in columns), strict=True)) == expected
        assert self.lives.alive() == sum(not one.ended for one in self.naive.values())
        due = [
            one.due
            for one in self.naive.values()
            if not one.ended and one.due < distributions.NEVER_NS
        ]
        assert self.lives.next_due_ns() <= min(due, default=distributions.NEVER_NS)


@examples(200)
@given(STEPS)
def test_columns_live_as_a_dict_of_lives_does(steps: list[tuple[str, list[int], int, int]]) -> None:
    """Whatever is ordered when: the columns tell the same statuses of the same keys at the same times."""
    twin, now = Twin(), 1000
    for what, rows, wait, task_profile in steps:
        twin.do(what, np.array(rows, dtype=np.int32), task_profile, now)
        if what == "wait":
            now += wait
            twin.compare(now)
    twin.compare(now + 100_000)
    ended = sum(one.ended for one in twin.naive.values())
    assert len(twin.lives.on(np.arange(3, dtype=np.int32))) == ended + twin.lives.alive()


@examples(100)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 60)), max_size=40)
)
def test_a_due_queue_gives_what_a_sorted_list_gives(steps: list[tuple[list[int], int]]) -> None:
    """In any portions, popped at any times: all that is due, in order of time, then row."""
    queue, row = DueQueue(), 0
    naive: list[tuple[int, int]] = []
    for pushed, now in steps:
        rows = np.arange(row, row + len(pushed), dtype=np.int32)
        row += len(pushed)
        queue.push(np.array(pushed, dtype=np.int64), rows)
        naive = sorted([*naive, *zip(pushed, rows.tolist(), strict=True)])
        assert queue.next_ns() == (naive[0][0] if naive else 0)
        due, found = queue.pop(now)
        expected = [one for one in naive if one[0] <= now]
        naive = naive[len(expected) :]
        assert list(zip(due.tolist(), found.tolist(), strict=True)) == expected
        assert len(queue) == len(naive)


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=50))
def test_a_draw_lies_on_the_line_between_its_knots(raw: list[int]) -> None:
    """A draw is the exact quantile but for a millionth of the piece's length; one alone is as one of many."""
    for law in (
        TASK_PROFILES[2].starts,
        distributions.exponential(10**12),
        distributions.lognormal(10**9, 10**11),
    ):
        drawn = law.draw(np.array(raw, dtype=np.uint64)).tolist()
        for hashed, ns in zip(raw, drawn, strict=True):
            at = hashed >> 11
            right = int(np.searchsorted(law.p, at, "right"))
            p0, p1 = (int(one) for one in law.p[right - 1 : right + 1])
            q0, q1 = (int(one) for one in law.ns[right - 1 : right + 1])
            exact = q0 + Fraction(at - p0, p1 - p0) * (q1 - q0)
            assert abs(ns - exact) <= 2 + Fraction(q1 - q0, 1 << 18)
            assert law.draw(np.array([hashed], dtype=np.uint64)).tolist() == [ns]


def test_laws_have_the_moments_that_they_promise() -> None:
    """A hundred thousand draws: means, medians and 99th percentiles are within two percent."""
    drawn = distributions.purpose_hashes(1, 2, np.arange(100_000))
    exponential = distributions.exponential(1_000_000).draw(drawn)
    assert abs(float(exponential.mean()) / 1_000_000 - 1) < 0.02
    skewed = distributions.lognormal(1_000_000, 9_000_000).draw(drawn)
    assert abs(float(np.quantile(skewed, 0.5)) / 1_000_000 - 1) < 0.02
    assert abs(float(np.quantile(skewed, 0.99)) / 9_000_000 - 1) < 0.04
    assert msgspec.structs.asdict(distributions.fixed(3))["ns"].tolist() == [3]
    assert distributions.happens(drawn, distributions.PROBABILITY_ONE // 4).mean() == pytest.approx(
        0.25, abs=0.01
    )
    assert distributions.happens(drawn, distributions.PROBABILITY_ONE).all()
    assert not distributions.happens(drawn, 0).any()
