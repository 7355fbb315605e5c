"""What a node has: cores, MHz, memory, disk, and attributes that constraints can name.

Decides what the kernel's texts mean. Reading them (`read_facts`) stands apart from understanding them
(`node_spec`), so that every machine can be described in a test. Units: MHz, MiB.
"""

import contextlib
import os
import platform
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from schemas.base import NodeId
from schemas.nodes import NodeSpec, Pool
from services.agent.offers import cores_pool

#: A core whose clock nobody tells (most ARM machines) counts as this.
CORE_MHZ_DEFAULT = 1000
_MHZ = re.compile(r"^cpu MHz\s*:\s*([0-9.]+)", re.MULTILINE)
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_MEMORY = re.compile(r"^MemTotal:\s*(\d+) kB", re.MULTILINE)
_MIB = 1 << 20


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """What the node needs for itself."""

    cpu_mhz: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    #: by the kernel's numbers: what runs there is the node's own.
    cores: frozenset[int] = frozenset()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Texts and numbers as the machine gave them."""

    cpuinfo: str = ""
    #: kHz, from cpufreq; empty: not known.
    max_khz: str = ""
    meminfo: str = ""
    os_release: str = ""
    cores: int = 1
    #: core -> the part of the memory that is its own (NUMA node); empty: not known, then none can be reserved.
    core_groups: dict[int, int] = {}
    disk_free_bytes: int = 0
    hostname: str = ""
    #: of the way to everybody else; empty: there is none.
    address: str = ""
    machine: str = ""
    kernel: str = ""
    kernel_version: str = ""


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """How the operator calls this node."""

    node_id: str
    name: str = ""
    datacenter: str = "dc1"
    node_pool: str = "default"
    node_class: str = ""
    meta: dict[str, str] = {}


def core_mhz(facts: Facts) -> int:
    """Clock of one core. The highest it can have where the kernel tells, else the highest it has now."""
    if facts.max_khz.strip().isdigit() and int(facts.max_khz) >= 1000:
        return int(facts.max_khz) // 1000
    # 1e9 MHz is no clock: a text that says so is damaged.
    now = [int(float(text)) for text in _MHZ.findall(facts.cpuinfo) if text.count(".") <= 1]
    return max([mhz for mhz in now if 0 < mhz < 1_000_000_000], default=CORE_MHZ_DEFAULT)


def memory_mib(facts: Facts) -> int:
    """Memory of the machine; 0 when it does not tell."""
    found = _MEMORY.search(facts.meminfo)
    return int(found.group(1)) // 1024 if found else 0


def node_spec(
    facts: Facts,
    naming: Naming,
    *,
    drivers: Mapping[str, str],
    reserved: Reserved,
    pools: tuple[Pool, ...] = (),
) -> NodeSpec:
    """Describe the node. `drivers` holds what their fingerprints say, `pools` what there is beside cores."""
    mhz = core_mhz(facts)
    kept = reserved.cores & facts.core_groups.keys()
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', facts.os_release, re.MULTILINE))
    model = _MODEL.search(facts.cpuinfo)
    memory = memory_mib(facts)
    attributes = {
        "arch": facts.machine,
        "cpu.arch": facts.machine,
        "cpu.frequency": str(mhz),
        "cpu.modelname": model.group(1).strip() if model else "",
        "cpu.numcores": str(facts.cores),
        "cpu.totalcompute": str(mhz * facts.cores),
        "kernel.name": facts.kernel.lower(),
        "kernel.version": facts.kernel_version,
        "memory.totalbytes": str(memory * _MIB),
        "os.name": release.get("ID", ""),
        "os.version": release.get("VERSION_ID", ""),
        "unique.hostname": facts.hostname,
        "unique.network.ip-address": facts.address,
        **drivers,
    }
    return NodeSpec(
        node_id=NodeId(naming.node_id),
        name=naming.name or facts.hostname,
        datacenter=naming.datacenter,
        node_pool=naming.node_pool,
        node_class=naming.node_class,
        cpu_mhz=max(mhz * (facts.cores - len(kept)) - reserved.cpu_mhz, 0),
        memory_mib=max(memory - reserved.memory_mib, 0),
        disk_mib=max(facts.disk_free_bytes // _MIB - reserved.disk_mib, 0),
        core_mhz=mhz if facts.core_groups else 0,
        pools=(*cores_pool(facts.core_groups, reserved.cores), *pools),
        attributes={name: attributes[name] for name in sorted(attributes) if attributes[name]},
        meta=dict(sorted(naming.meta.items())),
    )


def read_facts(data_dir: Path) -> Facts:
    """Ask the machine."""
    return Facts(
        cpuinfo=_text("/proc/cpuinfo"),
        max_khz=_text("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"),
        meminfo=_text("/proc/meminfo"),
        os_release=_text("/etc/os-release"),
        cores=len(os.sched_getaffinity(0)),
        core_groups={core: _numa_node(core) for core in sorted(os.sched_getaffinity(0))},
        disk_free_bytes=shutil.disk_usage(data_dir).free,
        hostname=socket.gethostname(),
        address=_address(),
        machine=platform.machine(),
        kernel=platform.system(),
        kernel_version=platform.release(),
    )


def _numa_node(core: int) -> int:
    """Say in which part of the memory a core is at home; 0 where the kernel does not tell."""
    found = sorted(Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*"))
    return int(found[0].name.removeprefix("node")) if found else 0


def _address() -> str:
    """Ask the kernel from which address it would speak to the world; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # An address that nobody has (RFC 5737): only the routing table is asked.
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
