"""The table of drivers: one row for each driver that an agent has."""

from services.agent.drivers.docker.driver import DockerDriver
from services.agent.drivers.exec.driver import ExecDriver
from services.agent.drivers.exec.java import JavaDriver
from services.agent.drivers.exec.qemu import QemuDriver
from services.agent.drivers.raw_exec import RawExecDriver
from shared.jobspec.drivers.registry import DRIVERS, driver_traits


def test_every_driver_of_the_agent_has_a_row() -> None:
    """The table names the drivers that an agent can offer; those that isolate as exec does are built on it."""
    classes = [DockerDriver, ExecDriver, JavaDriver, QemuDriver, RawExecDriver]
    assert {one.name for one in classes} == DRIVERS.keys()
    built_on_exec = {one.name for one in classes if issubclass(one, ExecDriver)}
    assert built_on_exec == {name for name, traits in DRIVERS.items() if traits.is_isolated}


def test_a_driver_not_known_here_is_left_to_its_node() -> None:
    """A name without a row has no reader of options, and nothing is refused for it."""
    traits = driver_traits("other")
    assert traits.read is None
    assert traits.has_mounts
    assert not traits.is_on_host_network
