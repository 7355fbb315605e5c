"""What a node offers beside CPU, memory and disk: pools from a file, from plug-ins, and cores; and its ports.

Decides what an operator's texts mean. Independent of how pools are scheduled: what cannot be (a name that is of another
kind elsewhere) is refused by the cluster, and its refusal is in the agent's log. Amounts in the file are as in job
files, with up to 4 decimals.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from schemas.nodes import Instance, Pool
from shared.errors import ConfigInvalid
from shared.jobspec.amounts import amount_error, to_parts

CORES = "cores"
DEVICE = "device."
PORT_MAX = 65_535
#: Instances of one entry that are only counted.
COUNT_MAX = 1_024


@runtime_checkable
class PoolProvider(Protocol):
    """A driver or a device plug-in that offers something to be requested."""

    def pools(self) -> tuple[Pool, ...]:
        """What is there now, each instance under a name that stays its own."""
        ...


class DevicePlugin(PoolProvider, Protocol):
    """Finds devices: at the agent's start, and every 15 s again with `has_dynamic_fingerprint`."""

    name: str

    def fingerprint(self) -> dict[str, str]:
        """Node attributes; empty: nothing here."""
        ...


class _InstanceText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    group: int = 0


class _PoolText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the file. `instances`: names, or how many there are."""

    name: str
    amount: int | float = 0
    instances: int | list[str | _InstanceText] = 0
    vendor: str = ""
    model: str = ""
    attributes: dict[str, str] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pools: tuple[_PoolText, ...] = ()


def read_pools(path: Path) -> tuple[Pool, ...]:
    """Read a file of pools: TOML where it is called so, else JSON. Raises ConfigInvalid."""
    try:
        text = path.read_bytes()
        value = (
            tomllib.loads(text.decode()) if path.suffix == ".toml" else msgspec.json.decode(text)
        )
        if isinstance(value, list):
            value = {"pools": value}
        found = msgspec.convert(value, _File)
    except OSError as err:
        raise ConfigInvalid(f"{path} cannot be read: {err.strerror}") from err
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigInvalid(f"{path}: {err}") from err
    return tuple(_pool(one, f"{path}: pools[{at}]") for at, one in enumerate(found.pools))


def _pool(one: _PoolText, where: str) -> Pool:
    if not one.name or one.name == CORES:
        text = 'pool name "cores" is reserved' if one.name else "a pool needs a name"
        raise ConfigInvalid(f"{where}: {text}")
    if bool(one.amount) == bool(one.instances):
        raise ConfigInvalid(f"{where}: set either amount or instances of {one.name}")
    if one.amount and (fault := amount_error(one.amount)):
        raise ConfigInvalid(f"{where}: amount {fault}")
    return Pool(
        name=one.name,
        amount=to_parts(one.amount) if one.amount else 0,
        instances=_instances(one, where),
        vendor=one.vendor,
        model=one.model,
        attributes=dict(sorted(one.attributes.items())),
    )


def _instances(one: _PoolText, where: str) -> tuple[Instance, ...]:
    if isinstance(one.instances, int):
        if not 0 <= one.instances <= COUNT_MAX:
            raise ConfigInvalid(
                f"{where}: instances must be at most {COUNT_MAX}, was {one.instances}"
            )
        prefix = "-".join(word for word in (one.vendor, one.model) if word) or one.name
        return tuple(Instance(id=f"{prefix}-{at}") for at in range(one.instances))
    return tuple(
        Instance(id=text) if isinstance(text, str) else Instance(id=text.id, group=text.group)
        for text in one.instances
    )


def cores_pool(groups: Mapping[int, int], reserved: frozenset[int]) -> tuple[Pool, ...]:
    """Offer the cores that are not reserved for the node itself. `groups`: core -> its NUMA node."""
    cores = tuple(
        Instance(id=str(core), group=groups[core])
        for core in sorted(groups)
        if core not in reserved
    )
    return (Pool(name=CORES, instances=cores),) if cores else ()


def split_cores(pools: Iterable[Pool], share: int, shares: int) -> tuple[Pool, ...]:
    """Divide the cores among the agents of one machine; other pools come from each agent's settings."""
    found = []
    for pool in pools:
        if pool.name == CORES:
            first, last = (len(pool.instances) * at // shares for at in (share, share + 1))
            pool = msgspec.structs.replace(pool, instances=pool.instances[first:last])  # noqa: PLW2901
            if not pool.instances:
                continue
        found.append(pool)
    return tuple(found)


def parse_ranges(text: str, setting: str, highest: int) -> tuple[int, ...]:
    """Read `22,8000-8010`, ascending and each once. Raises ConfigInvalid, which names the setting."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not part.strip():
            continue
        ends = (first.strip(), last.strip() if dash else first.strip())
        if not all(one.isdecimal() and len(one) < 8 for one in ends):
            raise ConfigInvalid(
                f"{setting}: expected numbers and ranges such as 22,8000-8010, was {part!r}"
            )
        low, high = (int(one) for one in ends)
        if not low <= high <= highest:
            raise ConfigInvalid(f"{setting}: {part.strip()} is not within 0 to {highest}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


class FakeGpus:
    """Simulated devices for tests, marked in the attributes of the node and of each device."""

    name = "fake_gpus"
    has_dynamic_fingerprint = True

    def __init__(self, text: str) -> None:
        """`text`: vendor/type/model:count, several with commas. Raises ConfigInvalid."""
        self._text = text
        self._pools = tuple(_fake_pool(one.strip()) for one in text.split(",") if one.strip())

    def fingerprint(self) -> dict[str, str]:
        """Name what is fake."""
        return {"fake.devices": f"{self._text}: FAKE, these devices do not exist"}

    def pools(self) -> tuple[Pool, ...]:
        """What is pretended."""
        return self._pools


def _fake_pool(text: str) -> Pool:
    name, _, count = text.rpartition(":")
    parts = name.split("/", 2)
    if (
        len(parts) != 3
        or not all(parts)
        or not count.isdecimal()
        or not 0 < int(count) <= COUNT_MAX
    ):
        raise ConfigInvalid(f"expected fake devices as vendor/type/model:count, was {text!r}")
    vendor, kind, model = parts
    return Pool(
        name=DEVICE + kind,
        instances=tuple(Instance(id=f"fake-{model}-{at}") for at in range(int(count))),
        vendor=vendor,
        model=model,
        attributes={"fake": "true"},
    )


def collect_pools(sources: Iterable[object]) -> tuple[Pool, ...]:
    """Collect the pools of all drivers and plug-ins that have any."""
    return tuple(pool for one in sources if isinstance(one, PoolProvider) for pool in one.pools())
