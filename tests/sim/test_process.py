"""The simulated shell keeps the promises of shared/core/runtime/role.py, shown with toy roles."""

from shared.core.runtime import messages
from shared.core.runtime.role import Input, Role
from shared.sim.environment.memory_bus import MemoryBus, matches
from shared.sim.environment.message_faults import MessageFaults
from shared.sim.environment.simulated_process import SimulatedProcess, SimulationContext
from shared.sim.virtual_time import MS, SECOND, START_NS, RandomDraws, VirtualLoop


class Toy:
    """Emits the given effects, and keeps its inputs."""

    name = "toy"
    leader_key = ""
    next_seq = 1

    def __init__(
        self, instance: str, *sources: messages.Source, first: list[messages.Effect]
    ) -> None:
        self.instance = instance
        self.heard: list[Input] = []
        self.say = first
        self.acks = True
        self._sources = sources

    def sources(self) -> tuple[messages.Source, ...]:
        return self._sources

    def step(self, inputs: list[Input], now_ns: int) -> list[messages.Effect]:
        self.heard += inputs
        said, self.say = self.say, []
        if self.acks:
            said += [messages.Ack(one.token) for one in inputs if isinstance(one, messages.Message)]
        return said

    def metrics(self) -> dict[str, float]:
        return {}

    def of(self, kind: type) -> list:
        return [one for one in self.heard if type(one) is kind]


class Fated(MessageFaults):
    """Every append meets one fault."""

    def __init__(self, fault: str) -> None:
        super().__init__(RandomDraws(1))
        self._fault = fault

    def append(self) -> str:
        return self._fault


def context(seed: int = 1) -> SimulationContext:
    loop = VirtualLoop()
    message_faults = MessageFaults(RandomDraws(seed, 1))
    return SimulationContext(
        loop, MemoryBus(loop, message_faults), message_faults, RandomDraws(seed, 2)
    )


def run(
    where: SimulationContext,
    name: str,
    *sources: messages.Source,
    say: list[messages.Effect] | None = None,
) -> SimulatedProcess:
    """Start a toy at once."""
    process = SimulatedProcess(
        where, name, lambda instance: Toy(instance, *sources, first=say or [])
    )
    process.start()
    return process


def toy(process: SimulatedProcess) -> Toy:
    assert isinstance(process.role, Toy)
    return process.role


def append(expected: int, msg_id: str) -> messages.Append:
    return messages.Append("tx", b"{}", expected, msg_id)


def test_patterns() -> None:
    """A star is one token, a tail of any length begins with an angle."""
    assert matches("a.*", "a.b")
    assert not matches("a.*", "a.b.c")
    assert matches("a.>", "a.b.c")
    assert not matches("a.>", "a")


def poke(process: SimulatedProcess, *say: messages.Effect) -> None:
    """Let a toy say something in its next step, and give it one."""
    toy(process).say = list(say)
    process.take(process.life, messages.Timer("wake", 0))


def test_an_append_is_fenced_and_answered_once() -> None:
    """Of two appends at one seq one is kept and one refused; the same id again is the same record."""
    where = context()
    first, second = (run(where, name, messages.Replay()) for name in ("first", "second"))
    where.loop.run(50 * MS)
    poke(first, append(0, "x"))
    where.loop.run(100 * MS)
    poke(second, append(0, "y"))
    where.loop.run(SECOND)
    assert toy(first).of(messages.Appended) == [messages.Appended(1)]
    assert len(toy(second).of(messages.AppendRefused)) == 1
    poke(second, append(0, "x"))
    where.loop.run(2 * SECOND)
    assert toy(second).of(messages.Appended) == [messages.Appended(1)]
    assert len(where.bus.log.records) == 1


def test_an_append_without_a_bus_is_unknown() -> None:
    """An append that finds no bus is answered all the same."""
    where = context()
    process = run(where, "writer", messages.Replay(), say=[append(0, "x")])
    where.loop.run(2 * SECOND)
    assert toy(process).of(messages.AppendUnknown) == [messages.AppendUnknown()]
    assert where.bus.log.records == []


def test_a_lost_acknowledgement_is_unknown_and_stored() -> None:
    """An append whose answer is lost ends in AppendUnknown, though the record is in the log."""
    where = context()
    where.message_faults = Fated("ack_lost")
    process = run(where, "writer", messages.Replay())
    where.loop.run(50 * MS)
    poke(process, append(0, "x"))
    where.loop.run(SECOND)
    assert [type(one) for one in toy(process).heard[3:]] == [
        messages.Record,
        messages.AppendUnknown,
    ]
    assert len(where.bus.log.records) == 1


def test_a_crash_forgets_and_the_log_remembers() -> None:
    """A new life replays the log from the start; timers and sends of the old one are void."""
    where = context()
    process = run(where, "writer", messages.Replay())
    where.loop.run(50 * MS)
    where.bus.log.inject("log", b"1")
    toy(process).say = [messages.SetTimer("late", START_NS + 10 * SECOND)]
    where.loop.run(SECOND)
    process.crash()
    process.start()
    where.loop.run(20 * SECOND)
    assert [one.seq for one in toy(process).of(messages.Record)] == [1]
    assert toy(process).of(messages.Timer) == []
    assert process.instance == "writer-2"


def test_work_waits_for_credit_and_is_lost_with_the_bus() -> None:
    """A source takes no more than its credit; a memory stream forgets over a restart."""
    where = context()
    work = messages.Work("work", "CMD", "cmd.x", "x", credit=2)
    process = run(where, "worker", work, say=[messages.Open("work")])
    toy(process).acks = False
    where.loop.run(50 * MS)
    for n in range(5):
        where.bus.publish("cmd.x", b"%d" % n)
    where.loop.run(SECOND)
    assert sorted(one.data for one in toy(process).of(messages.Message)) == [b"0", b"1"]
    process.disconnect()
    where.bus.restart()
    process.reconnect()
    toy(process).say = [messages.Ack(1), messages.Ack(2)]
    where.loop.run(2 * SECOND)
    assert len(toy(process).of(messages.Message)) == 2
    where.bus.publish("cmd.x", b"new")
    where.loop.run(3 * SECOND)
    assert toy(process).of(messages.Message)[-1].data == b"new"


def test_the_drop_box_is_read_in_order_from_a_position() -> None:
    """A Read source starts at the given seq, and continues after the last delivered message after a break."""
    where = context()
    for n in range(5):
        where.bus.store_job("jobs.submit", b"%d" % n, f"id-{n}")
    assert where.bus.store_job("jobs.submit", b"again", "id-0") == 1
    read = messages.Read("box", "JOBS", "jobs.*")
    process = run(where, "reader", read, say=[messages.Open("box", 3)])
    where.loop.run(SECOND)
    process.disconnect()
    process.reconnect()
    where.bus.store_job("jobs.submit", b"5", "id-5")
    where.loop.run(2 * SECOND)
    assert [one.stream_seq for one in toy(process).of(messages.Message)] == [3, 4, 5, 6]


def test_a_pause_lets_inputs_wait() -> None:
    """A stopped process steps not at all, and takes everything at once when it continues."""
    where = context()
    process = run(where, "sleeper", messages.Listen("all", "a.*"))
    where.loop.run(50 * MS)
    process.pause()
    before = len(toy(process).heard)
    where.bus.publish("a.b", b"1")
    where.bus.publish("a.c", b"2")
    where.loop.run(SECOND)
    assert len(toy(process).heard) == before
    process.resume()
    where.loop.run(2 * SECOND)
    assert len(toy(process).of(messages.Message)) == 2


def test_a_timer_is_never_early() -> None:
    """A clock set back delays what it has set."""
    where = context()
    process = run(where, "timer", say=[messages.SetTimer("t", START_NS + SECOND)])
    where.loop.run(SECOND // 2)
    process.wall.skew_ns = -SECOND
    where.loop.run(SECOND + SECOND // 2)
    assert toy(process).of(messages.Timer) == []
    where.loop.run(2 * SECOND + 10 * MS)
    assert toy(process).of(messages.Timer) == [messages.Timer("t", START_NS + SECOND)]


def test_a_queue_group_shares_and_listeners_all_hear() -> None:
    """Each message reaches one member of a group and every other listener."""
    where = context()
    members = [run(where, f"m{n}", messages.Listen("q", "a.b", queue="g")) for n in range(2)]
    other = run(where, "other", messages.Listen("all", "a.*"))
    where.loop.run(50 * MS)
    for _ in range(10):
        where.bus.publish("a.b", b"")
    where.loop.run(SECOND)
    counts = [len(toy(one).of(messages.Message)) for one in members]
    assert sum(counts) == 10
    assert min(counts) > 0
    assert len(toy(other).of(messages.Message)) == 10


def test_last_values_are_fenced() -> None:
    """A put at the wrong subject seq is answered with the current value."""
    where = context()
    say = [messages.Put("node.a", b"1", 0), messages.Put("node.a", b"2", 0)]
    process = run(where, "putter")
    where.loop.run(50 * MS)
    poke(process, *say)
    where.loop.run(SECOND)
    done, refused = toy(process).of(messages.PutDone)[0], toy(process).of(messages.PutRefused)[0]
    assert done.subject_seq == refused.subject_seq == 1
    assert refused.data == where.bus.values.get("node.a").data


def test_leadership_moves_when_its_holder_falls_silent() -> None:
    """A paused leader keeps believing; another wins after the lease; the first learns of it when it continues."""
    where = context()

    class Leader(Toy):
        leader_key = "toy"

    def build(instance: str) -> Role:
        return Leader(instance, messages.Replay(), first=[])

    a, b = (SimulatedProcess(where, name, build) for name in "ab")
    a.start()
    where.loop.run(SECOND)
    b.start()
    where.loop.run(2 * SECOND)
    assert (a.is_leader, b.is_leader) == (True, False)
    a.pause()
    where.loop.run(6 * SECOND)
    assert (a.is_leader, b.is_leader) == (True, True)
    a.resume()
    where.loop.run(7 * SECOND)
    assert (a.is_leader, b.is_leader) == (False, True)
    assert len(toy(a).of(messages.LeadershipLost)) == 1
