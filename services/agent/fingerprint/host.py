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

from schemas.base import MIB, NodeId
from schemas.nodes import NodeSpec, Pool
from services.agent.fingerprint.pools import cores_pool

#: Nomad's fingerprint names machines as Go does.
_GO_ARCHES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "i386": "386",
}
#: The release whose job files and attributes are followed: what `${attr.nomad.version}` is compared with.
NOMAD_VERSION = "2.0.5"
#: Signals that tasks may be sent, as Nomad lists them.
_SIGNALS = (
    "SIGABRT,SIGALRM,SIGBUS,SIGCHLD,SIGCONT,SIGFPE,SIGHUP,SIGILL,SIGINT,SIGIO,SIGIOT,SIGKILL,SIGPIPE,SIGPROF,SIGQUIT,"
    "SIGSEGV,SIGSTOP,SIGSYS,SIGTERM,SIGTRAP,SIGTSTP,SIGTTIN,SIGTTOU,SIGURG,SIGUSR1,SIGUSR2,SIGWINCH,SIGXCPU,SIGXFSZ"
)
#: Clock rate of a core where the kernel does not report one (most ARM machines).
CORE_MHZ_DEFAULT = 1000
_MHZ = re.compile(r"^cpu MHz\s*:\s*([0-9.]+)", re.MULTILINE)
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_MEMORY = re.compile(r"^MemTotal:\s*(\d+) kB", re.MULTILINE)


class HostReserved(msgspec.Struct, frozen=True, kw_only=True):
    """What the node needs for itself."""

    cpu_mhz: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    #: by the kernel's numbers: what runs there is the node's own.
    cores: frozenset[int] = frozenset()


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
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
    disk_bytes: int = 0
    #: what is mounted where tasks have their directories; empty: not known.
    disk_volume: str = ""
    #: content of /etc/debian_version; empty: there is none.
    debian_version: str = ""
    #: 1 or 2; 0: none is mounted.
    cgroups_version: int = 0
    hostname: str = ""
    #: of the default route; empty: there is none.
    address: str = ""
    machine: str = ""
    kernel: str = ""
    kernel_version: str = ""


class NodeNaming(msgspec.Struct, frozen=True, kw_only=True):
    """How the operator calls this node."""

    node_id: str
    name: str = ""
    datacenter: str = "dc1"
    node_pool: str = "default"
    node_class: str = ""
    meta: dict[str, str] = {}


def core_mhz(facts: HostFacts) -> int:
    """Clock of one core. The highest it can have where the kernel tells, else the highest it has now."""
    if facts.max_khz.strip().isdigit() and int(facts.max_khz) >= 1000:
        return int(facts.max_khz) // 1000
    # 1e9 MHz is not a clock rate: such a text is damaged.
    now = [int(float(text)) for text in _MHZ.findall(facts.cpuinfo) if text.count(".") <= 1]
    return max([mhz for mhz in now if 0 < mhz < 1_000_000_000], default=CORE_MHZ_DEFAULT)


def memory_kib(facts: HostFacts) -> int:
    """Memory of the machine; 0 when it does not tell."""
    found = _MEMORY.search(facts.meminfo)
    return int(found.group(1)) if found else 0


def node_spec(
    facts: HostFacts,
    naming: NodeNaming,
    *,
    drivers: Mapping[str, str],
    reserved: HostReserved,
    pools: tuple[Pool, ...] = (),
) -> NodeSpec:
    """Describe the node. `drivers` holds what their fingerprints say, `pools` what there is beside cores."""
    mhz = core_mhz(facts)
    kept = reserved.cores & facts.core_groups.keys()
    memory = memory_kib(facts) // 1024
    usable_mhz = max(mhz * (facts.cores - len(kept)) - reserved.cpu_mhz, 0)
    attributes = {
        **_cpu_attributes(facts, mhz, usable_mhz, kept),
        **_host_attributes(facts),
        **_storage_attributes(facts),
        **drivers,
    }
    return NodeSpec(
        node_id=NodeId(naming.node_id),
        name=naming.name or facts.hostname,
        datacenter=naming.datacenter,
        node_pool=naming.node_pool,
        node_class=naming.node_class,
        cpu_mhz=usable_mhz,
        memory_mib=max(memory - reserved.memory_mib, 0),
        disk_mib=max(facts.disk_free_bytes // MIB - reserved.disk_mib, 0),
        core_mhz=mhz if facts.core_groups else 0,
        pools=(*cores_pool(facts.core_groups, reserved.cores), *pools),
        attributes={name: attributes[name] for name in sorted(attributes) if attributes[name]},
        meta=dict(sorted(naming.meta.items())),
    )


def _cpu_attributes(
    facts: HostFacts, mhz: int, usable_mhz: int, kept: frozenset[int]
) -> dict[str, str]:
    """Describe processors and their parts of the memory. `kept`: cores that tasks cannot reserve."""
    model = _MODEL.search(facts.cpuinfo)
    nodes = sorted(set(facts.core_groups.values()))
    of_node = {
        node: _core_ranges([core for core, at in facts.core_groups.items() if at == node])
        for node in nodes
    }
    reservable = len(facts.core_groups) - len(kept)
    return {
        # Not Nomad's, and as the kernel names it: older jobs compare with it.
        "arch": facts.machine,
        "cpu.arch": _GO_ARCHES.get(facts.machine, facts.machine),
        "cpu.frequency": str(mhz),
        "cpu.modelname": model.group(1).strip() if model else "",
        "cpu.numcores": str(facts.cores),
        "cpu.reservablecores": str(reservable) if facts.core_groups else "",
        "cpu.totalcompute": str(mhz * facts.cores),
        "cpu.usablecompute": str(usable_mhz),
        "numa.node.count": str(len(nodes)) if nodes else "",
        **{f"numa.node{node}.cores": cores for node, cores in of_node.items()},
    }


def _host_attributes(facts: HostFacts) -> dict[str, str]:
    """Describe kernel, operating system and addresses."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', facts.os_release, re.MULTILINE))
    name, version = release.get("ID", ""), release.get("VERSION_ID", "")
    if name in ("debian", "raspbian") and facts.debian_version.strip():
        # With the point release, as Nomad has it.
        version = facts.debian_version.strip()
    return {
        "kernel.arch": facts.machine,
        "kernel.name": facts.kernel.lower(),
        "kernel.version": facts.kernel_version,
        "memory.totalbytes": str(memory_kib(facts) * 1024),
        "nomad.version": NOMAD_VERSION,
        "os.cgroups.version": str(facts.cgroups_version or ""),
        "os.name": name,
        "os.signals": _SIGNALS,
        "os.version": version,
        "unique.hostname": facts.hostname,
        "unique.network.ip-address": facts.address,
    }


def _storage_attributes(facts: HostFacts) -> dict[str, str]:
    """Describe the disk of the tasks' directories, in bytes."""
    return {
        "unique.storage.bytesfree": str(facts.disk_free_bytes),
        "unique.storage.bytestotal": str(facts.disk_bytes or ""),
        "unique.storage.volume": facts.disk_volume,
    }


def _core_ranges(cores: list[int]) -> str:
    """Write core numbers as the kernel does: 0-3,8."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], core]
        else:
            parts.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def read_facts(data_dir: Path) -> HostFacts:
    """Probe the machine."""
    disk = shutil.disk_usage(data_dir)
    return HostFacts(
        cpuinfo=_text("/proc/cpuinfo"),
        max_khz=_text("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"),
        meminfo=_text("/proc/meminfo"),
        os_release=_text("/etc/os-release"),
        cores=len(os.sched_getaffinity(0)),
        core_groups={core: _numa_node(core) for core in sorted(os.sched_getaffinity(0))},
        disk_free_bytes=disk.free,
        disk_bytes=disk.total,
        disk_volume=_volume(data_dir),
        debian_version=_text("/etc/debian_version"),
        cgroups_version=_cgroups_version(_text("/proc/self/mountinfo")),
        hostname=socket.gethostname(),
        address=_address(),
        machine=platform.machine(),
        kernel=platform.system(),
        kernel_version=platform.release(),
    )


def _volume(folder: Path) -> str:
    """Name what is mounted where a folder is; empty: not known."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in _text("/proc/self/mountinfo").splitlines():
        words, _, rest = line.partition(" - ")
        if words.split()[2:3] == [wanted] and len(rest.split()) > 1:
            return rest.split()[1]
    return ""


def _cgroups_version(mounts: str) -> int:
    """Return which version of control groups is at /sys/fs/cgroup; a mixture is the first. 0: none."""
    types = [line.partition(" - ")[2].split()[0] for line in mounts.splitlines() if " - " in line]
    if "cgroup" in types:
        return 1
    return 2 if "cgroup2" in types else 0


def _numa_node(core: int) -> int:
    """Say in which part of the memory a core is at home; 0 where the kernel does not tell."""
    found = sorted(Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*"))
    return int(found[0].name.removeprefix("node")) if found else 0


def _address() -> str:
    """Ask the kernel from which address it would speak to the world; nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # A documentation address (RFC 5737): only the routing table is read, nothing is sent.
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
