"""Gates and windows: what readings make of them, and what they make of a deployment."""

import random
from typing import Any

import msgspec
import pytest

from schemas.base import Event
from schemas.deployments import (
    DeploymentEnded,
    DeploymentHeld,
    DeploymentReleased,
    DeploymentResumed,
    PauseDeployment,
)
from schemas.envelope import ENCODER, AnyEvent
from schemas.gates import (
    GateChanged,
    GateDue,
    GateReading,
    UpdateGate,
    UpdateWindow,
    WindowReading,
)
from schemas.policy import OperatorRefused
from shared.core.decide.deployments.gates import built_in_gauge
from shared.core.state.gates import (
    CLOSED,
    OPEN,
    OPENING,
    GateState,
    is_crossing,
    next_status,
    utc_text,
)
from tests.builders import SECOND
from tests.seeds import seed as run_seed
from tests.unit.core.decide.test_deployments import MINUTE, Rollout, of_type, paced, watchers

LOAD = UpdateGate(name="load", gauge="depth", bound=100_000)
WINDOW = UpdateWindow(cron="0 3 * * *", duration_ns=60 * MINUTE)


def gated(*gates: UpdateGate, windows: tuple[UpdateWindow, ...] = (), **update: Any) -> Rollout:
    """A first version that is held."""
    rollout = Rollout()
    rollout.submit(paced(**update), gates=gates, windows=windows)
    return rollout


def read(rollout: Rollout, value: int | None, **fields: Any) -> list[Event]:
    """Have the timekeeper say what the first gate reads; in whole units."""
    one = rollout.deployment.gates[0]
    reading = GateReading(
        gate=one.gate.name,
        since_ns=fields.pop("since_ns", one.since_ns),
        value=None if value is None else value * 1000,
        every_ns=SECOND,
    )
    return rollout.do(GateDue(key=rollout.deployment.key, readings=(reading,), **fields))


def test_a_gate_holds_a_deployment_until_its_gauge_was_within_for_long_enough() -> None:
    """Each crossing is a fact, what crosses nothing is none; the release has the job looked at."""
    rollout = gated(msgspec.structs.replace(LOAD, for_ns=30 * SECOND))
    assert rollout.deployment.holds[0].reason == (
        "gate 'load' has no reading of depth, which must be below 100"
    )
    assert read(rollout, None) == []
    assert of_type(read(rollout, 120), DeploymentHeld)[0].reason == (
        "gate 'load': depth is 120, must be below 100"
    )
    assert read(rollout.later(1), 130) == []
    assert of_type(read(rollout, 40), GateChanged)[0].status == OPENING
    assert read(rollout.later(29), 90) == []
    assert of_type(read(rollout, 120), GateChanged)[0].status == CLOSED
    read(rollout, 40)
    events = read(rollout.later(30), 99)
    assert of_type(events, DeploymentReleased)[0].reason == "all gates are open"
    assert watchers(events) == ["app"]
    assert rollout.deployment.is_moving


def test_an_open_gate_closes_at_its_bound_and_reopens_at_nine_tenths_of_it() -> None:
    """Silence closes it too."""
    rollout = gated(LOAD)
    read(rollout, 99)
    for value, is_held in ((99, False), (100, True), (95, True), (90, True), (89, False)):
        read(rollout.later(1), value)
        assert rollout.deployment.is_held is is_held, value
    read(rollout, None)
    assert rollout.deployment.holds[0].reason.startswith("gate 'load' has no reading")
    read(rollout, 95)
    assert rollout.deployment.is_held


def test_a_reading_of_a_gate_that_changed_since_does_nothing() -> None:
    """So does one for another deployment, or for one that ended."""
    rollout = gated(LOAD)
    read(rollout, 40)
    assert read(rollout, 400, since_ns=1) == []
    key = rollout.deployment.key
    rollout.submit(paced(digest="d2"), gates=(LOAD,))
    assert rollout.do(GateDue(key=key)) == []


@pytest.mark.parametrize("on_timeout", ["fail", "proceed", "wait"])
def test_timeouts(on_timeout: str) -> None:
    """A gate that was shut for its timeout fails the deployment, lets it continue, or continues waiting."""
    rollout = gated(
        msgspec.structs.replace(LOAD, timeout_ns=10 * MINUTE, on_timeout=on_timeout),
    )
    read(rollout, 120)
    assert read(rollout.later(599), 120) == []
    events = read(rollout.later(1), 120)
    if on_timeout == "fail":
        (ended,) = of_type(events, DeploymentEnded)
        assert (ended.status, ended.cause) == ("failed", "gate")
        assert ended.reason == "Failed due to gate 'load': depth is 120, must be below 100"
    elif on_timeout == "proceed":
        assert rollout.deployment.is_moving
        assert read(rollout, 500) == []
    else:
        assert events == [] and rollout.deployment.is_held


def test_a_paused_deployment_does_not_time_out() -> None:
    """Resumed, it does at the next look."""
    rollout = gated(msgspec.structs.replace(LOAD, timeout_ns=MINUTE, on_timeout="fail"))
    rollout.told(PauseDeployment, pause=True)
    assert read(rollout.later(120), None) == []
    rollout.told(PauseDeployment, pause=False)
    assert of_type(read(rollout, None), DeploymentEnded)


def test_an_operator_ignores_gates_for_good() -> None:
    """It ends a pause as well; a deployment without gates is refused."""
    rollout = gated(LOAD, windows=(WINDOW,))
    rollout.told(PauseDeployment, pause=True)
    events = rollout.told(PauseDeployment, pause=False, ignore_gate=True)
    assert of_type(events, DeploymentReleased)[0].for_good
    assert of_type(events, DeploymentResumed)
    assert rollout.deployment.is_moving
    assert read(rollout, 500) == []
    assert rollout.told(PauseDeployment, pause=False, ignore_gate=True) == []
    plain = gated()
    (refused,) = of_type(
        plain.told(PauseDeployment, pause=False, ignore_gate=True), OperatorRefused
    )
    assert refused.reason == "the deployment has no gates and no windows"


def test_a_way_back_is_not_held() -> None:
    """A deployment that fails and reverts does not wait for the gates of the older version."""
    rollout = gated(LOAD, auto_revert=True)
    read(rollout, 40)
    rollout.healthy(*rollout.place(count=3))
    assert rollout.deployment.status == "successful"
    rollout.submit(paced(digest="d2", auto_revert=True), gates=(LOAD,))
    assert rollout.deployment.is_held
    read(rollout, 40)
    (row,) = rollout.place(stops=[rollout.rows()[0]])
    rollout.say((row, 2), status="failed")
    rollout.due()
    assert (rollout.deployment.cause, rollout.deployment.is_held) == ("revert", False)


def test_windows_open_and_close_in_log_time() -> None:
    """An instant that log time has not come to, or one that is over, is not believed."""
    rollout = gated(windows=(WINDOW,))
    assert rollout.deployment.holds[0].reason == "outside of its window"
    now = rollout.now_ns

    def say(*, is_open: bool, from_s: int, until_s: int) -> list[Event]:
        window = WindowReading(
            is_open=is_open, from_ns=now + from_s * SECOND, until_ns=now + until_s * SECOND
        )
        return rollout.do(GateDue(key=rollout.deployment.key, window=window))

    say(is_open=False, from_s=0, until_s=60)
    assert rollout.deployment.holds[0].reason == (
        f"outside of its window until {utc_text(now + MINUTE)}"
    )
    rollout.later(59)
    assert say(is_open=True, from_s=60, until_s=120) == []
    rollout.later(1)
    assert of_type(say(is_open=True, from_s=60, until_s=120), DeploymentReleased)
    assert say(is_open=False, from_s=0, until_s=600) == []
    rollout.later(60)
    assert of_type(say(is_open=False, from_s=0, until_s=600), DeploymentHeld)
    assert say(is_open=True, from_s=60, until_s=120) == []


def test_gauges_of_the_cluster_itself() -> None:
    """They are read from the tables, whatever a sender says; a pool without nodes has no reading."""
    rollout = gated(UpdateGate(name="cpu", gauge="cluster.cpu_held", bound=50_000))
    assert of_type(read(rollout, 90), DeploymentReleased)
    rollout.place(count=3)
    state = rollout.state
    found = {
        gauge: built_in_gauge(state, gauge)
        for gauge in ("cluster.cpu_held", "pool.default.memory_held", "pool.x.disk_held")
    }
    assert found == {
        "cluster.cpu_held": 300,
        "pool.default.memory_held": 300,
        "pool.x.disk_held": None,
    }
    assert built_in_gauge(state, "queue.blocked") == 0


def test_a_replica_that_decodes_the_facts_has_the_same_hash() -> None:
    """A status that was decoded counts as the default that it equals."""
    rollout, twin = gated(LOAD), gated(LOAD)
    decoder = msgspec.json.Decoder(AnyEvent)
    for value in (120, 40, 200, None, 80):
        events = read(rollout.later(1), value)
        twin.later(1)
        twin.apply(*[decoder.decode(ENCODER.encode(event)) for event in events])
        assert twin.state.deployments.digest() == rollout.state.deployments.digest(), value


@pytest.mark.parametrize("fixed", [1, 2, None])
def test_a_gate_never_opens_out_of_bounds(fixed: int | None) -> None:
    """An open gate was within its bound for as long as it asks, without silence; one seed is this run's."""
    seed = run_seed() if fixed is None else fixed
    draws = random.Random(seed)
    gate = msgspec.structs.replace(LOAD, for_ns=3 * SECOND, is_above=draws.random() < 0.5)
    one, within_since = GateState(gate=gate, since_ns=0, shut_ns=0), None
    for second in range(1, 500):
        now_ns = second * SECOND
        value = None if draws.random() < 0.1 else draws.randrange(60_000, 140_000)
        is_within = value is not None and (
            value > gate.bound if gate.is_above else value < gate.bound
        )
        within_since = (within_since or now_ns) if is_within else None
        status = next_status(one, value, now_ns)
        if status == OPEN:
            assert within_since is not None, seed
            assert one.status == OPEN or now_ns - within_since >= gate.for_ns, seed
        if is_crossing(one, value, now_ns):
            one = msgspec.structs.replace(
                one,
                status=status,
                value=value,
                since_ns=now_ns,
                was_open=one.was_open or status == OPEN,
            )


def test_times_are_written_in_utc() -> None:
    """Leap days, ends of years and centuries."""
    for text, seconds in (
        ("1970-01-01 00:00:00 UTC", 0),
        ("2000-02-29 23:59:59 UTC", 951_868_799),
        ("2026-11-23 22:10:05 UTC", 1_795_471_805),
        ("2100-03-01 00:00:00 UTC", 4_107_542_400),
    ):
        assert utc_text(seconds * SECOND) == text
