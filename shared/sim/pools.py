"""Devices, cores, ports and custom resources of the simulated world: who offers and asks for them, and their book.

Decides what a node and a customer have of them, and reads from the log, in plain dicts that share no code with the
tables, who holds what. Must not know how slots are chosen. Next: `books.py`.
"""

from schemas.jobs import GroupSpec
from schemas.nodes import Instance, NodeSpec, Pool
from schemas.plans import GroupPlacement

UNIT = 10_000
#: A slot, a sum (slot -1) or a port of a node (row).
Place = tuple[int, str, int]
#: What is held of it, in 1/10,000; of a port 1.
Piece = tuple[Place, int]
#: A short range, so that picked ports meet.
PORTS = (20_000, 20_015)
CORE_MHZ = 500


def offered_by(n: int) -> tuple[Pool, ...]:
    """What the node number `n` offers: devices on two of three, of two models; cores; a sum."""
    pools = [
        Pool(name="cores", instances=tuple(Instance(id=str(at)) for at in range(4))),
        Pool(name="slots", amount=5 * UNIT),
    ]
    if n % 3:
        ids = tuple(Instance(id=f"gpu-{n}-{at}", group=at // 2) for at in range(2 * (n % 3)))
        pools.append(Pool(name="device.gpu", instances=ids, vendor="sim", model=f"m{n % 2}"))
    return tuple(pools)


def asked_by(n: int) -> dict[str, object]:
    """What a task of customer number `n` asks for beside CPU and memory."""
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


class PoolBook:
    """Who holds what, as the log tells it."""

    def __init__(self) -> None:
        self._held: dict[Place, int] = {}
        self._room: dict[Place, int] = {}

    def offered(self, row: int, spec: NodeSpec) -> None:
        """Book what a node offers. Nodes of this world never offer another thing later."""
        for pool in spec.pools:
            if pool.amount:
                self._room[row, pool.name, -1] = pool.amount
            for slot in range(len(pool.instances)):
                self._room[row, pool.name, slot] = UNIT

    def gone(self, row: int) -> bool:
        """Forget a node; tell whether nothing was held of it any more."""
        self._room = {piece: room for piece, room in self._room.items() if piece[0] != row}
        return not any(held for piece, held in self._held.items() if piece[0] == row)

    def pieces(self, group: GroupSpec, placed: GroupPlacement, nth: int, row: int) -> list[Piece]:
        """Name what the n-th allocation of a placement holds."""
        found: list[Piece] = []
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

    def hold(self, pieces: list[Piece], sign: int) -> str:
        """Book pieces in or out; say what is given away beyond what there is, empty: nothing."""
        for place, amount in pieces:
            self._held[place] = self._held.get(place, 0) + sign * amount
        for place, _ in pieces if sign > 0 else ():
            room = 1 if place[1].startswith("port ") else self._room.get(place, 0)
            if self._held[place] > room:
                return f"{place} is held {self._held[place]} of {room}"
        return ""
