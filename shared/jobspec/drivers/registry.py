"""What is known of each driver by its name: the reader of its options, and how its tasks differ from others.

The only table of drivers: a submission, the agent and their messages ask it. Nodes check options again.
"""

from collections.abc import Callable

import msgspec

from shared.jobspec.drivers.docker import read_docker
from shared.jobspec.drivers.exec import read_exec, read_raw_exec
from shared.jobspec.drivers.java import read_java
from shared.jobspec.drivers.options import OptionDiagnostic, OptionValues
from shared.jobspec.drivers.qemu import read_qemu

OptionReader = Callable[[OptionValues], tuple[object, tuple[OptionDiagnostic, ...]]]


class DriverTraits(msgspec.Struct, frozen=True, kw_only=True):
    """How tasks of a driver differ; the defaults are those of a driver that is not known here."""

    #: None: options are checked by the node alone.
    read: OptionReader | None = None
    #: processes in namespaces, by the settings of exec.
    is_isolated: bool = False
    #: volumes can be mounted into a task.
    has_mounts: bool = True
    #: propagation modes of mounts beside private.
    propagations: tuple[str, ...] = ()
    #: what is mounted can be given an SELinux label.
    has_labels: bool = False
    #: a task always has the node's network.
    is_on_host_network: bool = False
    #: a task has a network of its own: `to` of a port means something there.
    maps_ports: bool = False
    #: a task can only share the network of another container, which its group has then in mode bridge.
    joins_container: bool = False
    #: sent at a stop unless the task names one; empty: the image's own, else SIGTERM.
    kill_signal: str = "SIGINT"


DRIVERS = {
    "docker": DriverTraits(
        read=read_docker,
        propagations=("host-to-task", "bidirectional"),
        has_labels=True,
        maps_ports=True,
        joins_container=True,
        kill_signal="",
    ),
    "exec": DriverTraits(read=read_exec, is_isolated=True, propagations=("host-to-task",)),
    "java": DriverTraits(read=read_java, is_isolated=True, propagations=("host-to-task",)),
    "qemu": DriverTraits(read=read_qemu, is_isolated=True, has_mounts=False, maps_ports=True),
    "raw_exec": DriverTraits(read=read_raw_exec, has_mounts=False, is_on_host_network=True),
}
_UNKNOWN = DriverTraits()


def driver_traits(driver: str) -> DriverTraits:
    """Look up a driver by the name that a task gives."""
    return DRIVERS.get(driver, _UNKNOWN)


def check_options(driver: str, config: bytes | msgspec.Raw) -> tuple[OptionDiagnostic, ...]:
    """Find what is wrong with a driver's options, an object in JSON; a driver not known here has no fault."""
    read = driver_traits(driver).read
    return read(msgspec.json.decode(config))[1] if read is not None else ()
