"""The drivers whose options are checked at submission. Nodes check them again."""

from collections.abc import Callable

import msgspec

from shared.jobspec.drivers.docker import read_docker
from shared.jobspec.drivers.exec import read_exec, read_raw_exec
from shared.jobspec.drivers.java import read_java
from shared.jobspec.drivers.options import OptionDiagnostic, OptionValues
from shared.jobspec.drivers.qemu import read_qemu

_READERS: dict[str, Callable[[OptionValues], tuple[object, tuple[OptionDiagnostic, ...]]]] = {
    "docker": read_docker,
    "exec": read_exec,
    "java": read_java,
    "qemu": read_qemu,
    "raw_exec": read_raw_exec,
}


def check_options(driver: str, config: bytes | msgspec.Raw) -> tuple[OptionDiagnostic, ...]:
    """Find what is wrong with a driver's options, an object in JSON; a driver not known here has no fault."""
    reader = _READERS.get(driver)
    return reader(msgspec.json.decode(config))[1] if reader is not None else ()
