"""Room: how many allocations may be replaced or moved, as tables of Nomad's own scenarios."""

import pytest

from shared.core.scheduling.reconcile.room import (
    Progress,
    canary_names,
    missing_canaries,
    movable,
    percent_canaries,
    replaceable,
    update_room,
)


@pytest.mark.parametrize(
    ("max_parallel", "unready", "unhealthy", "old", "missing", "wanted"),
    [
        pytest.param(4, 0, 0, 10, 0, 4, id="R3 ten old"),
        pytest.param(4, 0, 0, 7, 3, 1, id="R6 three are missing"),
        pytest.param(4, 20, 0, 10, 0, 0, id="R9 twenty without health"),
        *[
            pytest.param(4, 4 - healthy, 0, 6, 0, healthy, id=f"R12 {healthy} of 4 healthy")
            for healthy in range(5)
        ],
        pytest.param(4, 0, 1, 6, 0, 0, id="R12 one unhealthy"),
        pytest.param(4, 0, 0, 2, 1, 2, id="R13 one lost, moves do not count"),
        pytest.param(2, 0, 2, 8, 0, 0, id="S4 failed ones block system jobs, too"),
    ],
)
def test_old_allocations_wait_for_health(
    max_parallel: int, unready: int, unhealthy: int, old: int, missing: int, wanted: int
) -> None:
    """The limit is max_parallel less those without health, nothing where one is unhealthy; missing ones go first."""
    room = update_room(max_parallel, Progress(unready, unhealthy))
    assert replaceable(room, old=old, missing=missing) == wanted


@pytest.mark.parametrize(
    ("is_running", "is_canarying", "wanted"),
    [
        pytest.param(True, False, 4, id="running"),
        pytest.param(False, False, 0, id="R15 paused or failed"),
        pytest.param(True, True, 0, id="R17 canaries wait for promotion"),
    ],
)
def test_a_deployment_that_does_not_go_on_has_no_room(
    *, is_running: bool, is_canarying: bool, wanted: int
) -> None:
    """Paused, failed, or before promotion: nothing is replaced."""
    assert update_room(4, Progress(), is_running=is_running, is_canarying=is_canarying) == wanted


@pytest.mark.parametrize(
    ("count", "max_parallel", "healthy", "drainable", "wanted"),
    [
        *[pytest.param(10, mp, 10, 10, mp, id=f"D1 mp {mp}") for mp in (1, 2, 10)],
        pytest.param(10, 1, 9, 9, 0, id="D2 one moves already"),
        pytest.param(10, 5, 6, 6, 1, id="D2 four move already"),
        pytest.param(10, 1, 5, 5, 0, id="D3 five without health"),
        pytest.param(10, 3, 8, 10, 1, id="D3 one without health, one ended"),
        pytest.param(2, 1, 2, 2, 1, id="D5 two nodes, one at a time"),
        pytest.param(10, 0, 10, 10, 0, id="max_parallel 0 waits for the deadline"),
        pytest.param(3, 5, 3, 2, 2, id="max_parallel above the count: all"),
        pytest.param(3, 1, 0, 3, 0, id="nothing healthy"),
    ],
)
def test_moves_keep_count_less_max_parallel_healthy(
    count: int, max_parallel: int, healthy: int, drainable: int, wanted: int
) -> None:
    """Never more leave than keeps `count - max_parallel` healthy, over all nodes."""
    assert movable(count, max_parallel, healthy=healthy, drainable=drainable) == wanted


@pytest.mark.parametrize(
    ("desired", "standing", "most", "wanted"),
    [(2, 0, 10, 2), (7, 0, 3, 3), (4, 0, 10, 4), (4, 3, 10, 1), (2, 3, 10, 0)],
)
def test_canaries_come_at_most_count_at_a_time(
    desired: int, standing: int, most: int, wanted: int
) -> None:
    """R17, R18, R21: what is missing of the canaries, at most the group's count in one pass."""
    assert missing_canaries(desired, standing=standing, most=most) == wanted


@pytest.mark.parametrize(
    ("percent", "nodes", "max_parallel", "wanted"),
    [(30, 10, 2, 2), (30, 9, 3, 3), (30, 10, 5, 3), (1, 10, 5, 1), (100, 4, 9, 4), (0, 4, 9, 0)],
)
def test_percent_of_nodes(percent: int, nodes: int, max_parallel: int, wanted: int) -> None:
    """S6, S7, S12: the part of the nodes is rounded up and capped by max_parallel."""
    assert percent_canaries(percent, nodes, max_parallel) == wanted


@pytest.mark.parametrize(
    ("wanted", "old", "taken", "count", "names"),
    [
        pytest.param(2, range(10), (), 10, [0, 1], id="R17"),
        pytest.param(1, range(10), (0, 1, 2), 10, [3], id="R21"),
        pytest.param(3, (4, 5), (), 10, [4, 5, 0], id="old names first, then free ones"),
        pytest.param(4, (0, 1, 2), (), 3, [0, 1, 2, 3], id="R18 beyond the count"),
        pytest.param(2, (0,), (0, 1), 2, [2, 3], id="all names have canaries"),
    ],
)
def test_names_of_canaries(
    wanted: int, old: tuple[int, ...], taken: tuple[int, ...], count: int, names: list[int]
) -> None:
    """Canaries take the names of the old ones they will replace, then free names, then names above the count."""
    assert canary_names(wanted, old=old, taken=taken, count=count) == names
