"""Changes of the policy by name: what `operator scheduler set` may say, and what comes of it."""

import pytest

from schemas.operator import PolicyValue
from schemas.policy import OperatorRefused, Policy, Preemption, RemoteDriver, SetPolicy
from services.cli.operator.scheduler import parse_policy_changes
from services.cli.runtime.output import CliError
from shared.core.decide.operator import decide_policy
from shared.core.state.state import State
from shared.errors import CommandInvalid
from shared.query.policy_changes import apply_policy_change

ECS = Policy(remote_drivers={"ecs": RemoteDriver(cpu_mhz=5, memory_mib=6)})


@pytest.mark.parametrize(
    ("before", "words", "after"),
    [
        (Policy(), ["preemption.batch=true"], Policy(preemption=Preemption(batch=True))),
        (Policy(), ["reservations_max=3"], Policy(reservations_max=3)),
        (
            Policy(),
            ["remote_drivers.ecs.cpu_mhz=5", "remote_drivers.ecs.memory_mib=6"],
            ECS,
        ),
        (
            ECS,
            ["remote_drivers.ecs.cpu_mhz=9"],
            Policy(remote_drivers={"ecs": RemoteDriver(cpu_mhz=9, memory_mib=6)}),
        ),
        (ECS, ["remote_drivers.ecs=none"], Policy()),
        (ECS, ["remote_drivers.eks=none"], ECS),
        (Policy(), ["pool_algorithms.a.b=spread"], Policy(pool_algorithms={"a.b": "spread"})),
        (Policy(pool_algorithms={"a": "spread"}), ["pool_algorithms.a=none"], Policy()),
        (Policy(), ["pool_algorithms=a:spread"], Policy(pool_algorithms={"a": "spread"})),
        (Policy(), ["node_keep_ns=2h"], Policy(node_keep_ns=7_200_000_000_000)),
    ],
)
def test_what_is_in_a_field_has_a_dot(before: Policy, words: list[str], after: Policy) -> None:
    """Words of the command line change what they name and leave the rest."""
    assert apply_policy_change(before, parse_policy_changes(words)) == after


@pytest.mark.parametrize(
    "change",
    [
        {"preemption": {"batch": True}},
        {"preemption.batch": True},
    ],
)
def test_a_part_may_be_given_in_an_object(change: dict[str, PolicyValue]) -> None:
    """Any language may write the part as an object; what it leaves out stays."""
    policy = Policy(preemption=Preemption(service=True))
    wanted = Policy(preemption=Preemption(service=True, batch=True))
    assert apply_policy_change(policy, change) == wanted


@pytest.mark.parametrize(
    ("change", "path", "told"),
    [
        ({"speed": 1}, "change.speed", "the policy has no field 'speed'"),
        ({"algorithm.x": 1}, "change.algorithm.x", "has no fields"),
        ({"preemption.job": True}, "change.preemption.job", "expected one of service, batch"),
        ({"preemption": True}, "change.preemption", "is an object of"),
        ({"preemption.batch": "yes"}, "change", "Expected `bool`"),
        ({"remote_drivers.": {}}, "change.remote_drivers.", "has no fields"),
        ({"remote_drivers.ecs": 5}, "change.remote_drivers.ecs", "object of cpu_mhz, memory_mib"),
        ({"remote_drivers.ecs": {"disk": 5}}, "change.remote_drivers.ecs", "unknown field 'disk'"),
        ({"remote_drivers.ecs.cpu_mhz": "x"}, "change", "Expected `int`"),
        ({"reservations_max": -1}, "change.reservations_max", "must not be negative"),
    ],
)
def test_a_wrong_change_says_what_is_wrong(
    change: dict[str, PolicyValue], path: str, told: str
) -> None:
    """Unknown names, parts that are not there, and values of a wrong type."""
    with pytest.raises(CommandInvalid) as caught:
        apply_policy_change(Policy(), change)
    assert caught.value.path == path
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("preemption.job=true", "one of these names: algorithm"),
        ("preemption=true", "preemption.batch"),
        ("preemption.batch=yes", "true or false"),
        ("remote_drivers.ecs=5", "remote_drivers.ecs.cpu_mhz"),
        ("remote_drivers.ecs.cpu_mhz=fast", "must be a number"),
        ("remote_drivers=none", "remote_drivers.DRIVER"),
        ("algorithm", "NAME=VALUE"),
    ],
)
def test_wrong_words_are_told_before_anybody_is_asked(word: str, told: str) -> None:
    """The command line names the field and what it wants."""
    with pytest.raises(CliError, match=r".") as caught:
        parse_policy_changes([word])
    assert caught.value.code == "usage"
    assert told in caught.value.message


@pytest.mark.parametrize(
    "policy",
    [
        Policy(reservations_max=100_000),
        Policy(heartbeats_missed=0),
        Policy(remote_drivers={"": RemoteDriver()}),
        Policy(remote_drivers={"a.b": RemoteDriver()}),
        Policy(remote_drivers={"ecs": RemoteDriver(cpu_mhz=-1)}),
        Policy(remote_drivers={"ecs": RemoteDriver(memory_mib=10**9)}),
        Policy(remote_drivers={f"d{n}": RemoteDriver() for n in range(200)}),
    ],
)
def test_a_policy_nobody_can_follow_is_refused(policy: Policy) -> None:
    """Names that no driver has, and overheads beyond any node."""
    (event,) = decide_policy(State(), SetPolicy(request_id="r", policy=policy))
    assert isinstance(event, OperatorRefused)
    assert event.code == "invalid"
