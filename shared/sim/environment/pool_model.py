"""A reference model of pools in the simulated world: devices, cores, ports and custom resources.

It defines what nodes offer and submitters request, and reads from the log which allocation holds what, in plain dicts
that share no code with the tables.
"""

from schemas.jobs import GroupSpec
from schemas.nodes import Instance, NodeSpec, Pool
from schemas.plans import GroupPlacement

UNIT = 10_000
#: A slot, a sum (slot -1) or a port of a node (row).
PoolSlot = tuple[int, str, int]
#: Amount held, in 1/10,000; of a port 1.
SlotUse = tuple[PoolSlot, int]
#: A short range, so that chosen ports collide.
PORTS = (20_000, 20_015)
CORE_MHZ = 500


def node_pools(n: int) -> tuple[Pool, ...]:
    """Pools of node number `n`: devices on two of three nodes, of two models; cores; a sum."""
    pools = [
        Pool(name="cores", instances=tuple(Instance(id=str(at)) for at in range(4))),
        Pool(name="slots", amount=5 * UNIT),
    ]
    if n % 3:
        ids = tuple(Instance(id=f"gpu-{n}-{at}", group=at // 2) for at in range(2 * (n % 3)))
        pools.append(Pool(name="device.gpu", instances=ids, vendor="sim", model=f"m{n % 2}"))
    return tuple(pools)


def task_resources(n: int) -> dict[str, object]:
    """Resources of a task of submitter number `n`, besides CPU and memory."""
    one_of: tuple[dict[str, object], ...] = (
        {"Devices": [{"Name": "gpu", "Count": 0.5}]},
        {"Networks": [{"ReservedPorts": [{"Label": "web", "Value": 8080}]}]},
        {"Networks": [{"DynamicPorts": [{"Label": "a"}, {"Label": "b"}]}]},
        {"Custom": [{"Name": "slots", "Amount": 1.5}]},
        {"Devices": [{"Name": "sim/gpu", "Count": 1.25}]},
        {"Cores": 1},
        {},
    )
    return one_of[n % len(one_of)]


def with_core_mhz(ask: tuple[int, int, int], pieces: list[SlotUse]) -> tuple[int, int, int]:
    """What an allocation takes of its node's MHz, MiB and MiB of disk, with the MHz of its reserved cores."""
    cores = sum(amount // UNIT for (_, pool, _), amount in pieces if pool == "cores")
    return ask[0] + cores * CORE_MHZ, ask[1], ask[2]


class PoolModel:
    """Holdings of allocations, as read from the log."""

    def __init__(self) -> None:
        self._held: dict[PoolSlot, int] = {}
        self._room: dict[PoolSlot, int] = {}

    def offered(self, row: int, spec: NodeSpec) -> None:
        """Add a node's pools, which never change in this world."""
        for pool in spec.pools:
            if pool.amount:
                self._room[row, pool.name, -1] = pool.amount
            for slot in range(len(pool.instances)):
                self._room[row, pool.name, slot] = UNIT

    def gone(self, row: int) -> bool:
        """Remove a node; returns whether nothing of it was held."""
        self._room = {piece: room for piece, room in self._room.items() if piece[0] != row}
        return not any(held for piece, held in self._held.items() if piece[0] == row)

    def pieces(self, group: GroupSpec, placed: GroupPlacement, nth: int, row: int) -> list[SlotUse]:
        """Return the holdings of the n-th allocation of a placement."""
        found: list[SlotUse] = []
        width = group.dynamic_ports
        ports = (*group.static_ports, *placed.ports[nth * width : (nth + 1) * width])
        found += [((row, f"port {port}", -1), 1) for port in ports]
        asks = group.alternatives[placed.variant] if group.alternatives else ()
        per = len(placed.instances) // max(sum(placed.counts), 1)
        slots = list(placed.instances[nth * per : (nth + 1) * per])
        for ask in asks:
            left = ask.amount
            while left > 0:
                slot = slots.pop(0) if slots else -1
                taken = left if slot < 0 else min(left, UNIT)
                found.append(((row, ask.pool, slot), taken))
                left -= taken
        return found

    def hold(self, pieces: list[SlotUse], sign: int) -> str:
        """Add or remove holdings; returns the first overcommitment, or an empty text."""
        for place, amount in pieces:
            self._held[place] = self._held.get(place, 0) + sign * amount
        for place, _ in pieces if sign > 0 else ():
            room = 1 if place[1].startswith("port ") else self._room.get(place, 0)
            if self._held[place] > room:
                return f"{place}: {self._held[place]} of {room} held"
        return ""
