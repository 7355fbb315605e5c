"""Faults of single messages and appends, and the count of every fault of a world.

One draw per hop decides whether a message is lost, doubled, delayed or overtaken. `FAULTS` names all kinds that a run
of seeds must have exercised.
"""

from shared.sim.virtual_time import MS, RandomDraws

#: Faults of one message or one append.
HOP_FAULTS = ("message_lost", "message_doubled", "message_delayed", "message_overtaken")
APPEND_FAULTS = ("ack_lost", "append_lost", "append_late", "put_lost")
#: Faults of a process, a node or the bus (fault_injector.py), and of a task (simulated_node.py).
COMPONENT_FAULTS = (
    "crash",
    "pause",
    "partition",
    "bus_restart",
    "clock_skewed",
    "clock_hour_off",
    "clock_set_back",
    "agent_crash",
    "node_death",
    "foreign_record",
    "leadership_lost",
    "log_full",
    "log_restored",
    "keys_brought_back",
    "task_failed",
    "journal_tail_lost",
    "input_failed",
    "preparation_lost",
)
FAULTS = (*HOP_FAULTS, *APPEND_FAULTS, *COMPONENT_FAULTS)

_HOP_BASE_NS = 100_000
#: Faults per 2**20 hops, in the order of HOP_FAULTS.
_LOST, _DOUBLED, _DELAYED, _OVERTAKEN = 8_000, 16_000, 24_000, 36_000


class MessageFaults:
    """Draws the faults of hops and appends while `stormy`; every fault is counted in `faults`."""

    __slots__ = ("_draws", "faults", "stormy")

    def __init__(self, draws: RandomDraws) -> None:
        self._draws = draws
        self.stormy = False
        self.faults: dict[str, int] = dict.fromkeys(FAULTS, 0)

    def hop_delays(self) -> tuple[int, ...]:
        """Return the delays (ns) of the copies that arrive: none, one or two."""
        bits = self._draws.bits()
        delay = _HOP_BASE_NS + (bits & 0x7FFFF)
        draw = bits >> 44
        if draw >= _OVERTAKEN or not self.stormy:
            return (delay,)
        far = (bits >> 20) & 0xFFFFFF
        if draw < _LOST:
            self.faults["message_lost"] += 1
            return ()
        if draw < _DOUBLED:
            self.faults["message_doubled"] += 1
            return (delay, delay + far % (700 * MS))
        if draw < _DELAYED:
            self.faults["message_delayed"] += 1
            return (delay + far * 60,)  # up to 1.0 s
        self.faults["message_overtaken"] += 1
        return (delay + far % (8 * MS),)

    def reliable_hop(self) -> int:
        """Return the delay (ns) of a hop on an ordered, reliable connection."""
        return _HOP_BASE_NS + (self._draws.bits() & 0x7FFFF)

    def append(self) -> str:
        """Return the fault of an append: one of the first three APPEND_FAULTS, or an empty text."""
        if not self.stormy:
            return ""
        draw = self._draws.below(1000)
        if draw >= 36:
            return ""
        kind = APPEND_FAULTS[draw // 12]
        self.faults[kind] += 1
        return kind

    def put_is_lost(self) -> bool:
        """Return whether the answer to a last value is lost."""
        if self.stormy and self._draws.hit(10):
            self.faults["put_lost"] += 1
            return True
        return False
