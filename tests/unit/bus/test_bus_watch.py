"""What is said of the servers of a bus, from the words of the streams' leaders: of now, and never of before."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from schemas.base import SECOND_NS
from schemas.bus_answers import BusServer
from shared.bus.jetstream import streams
from shared.bus.jetstream.pull_consumer import CurrentConnection
from shared.bus.jetstream.streams import StreamCluster, StreamInfo, StreamReplica
from shared.bus.log import bus_watch
from shared.bus.log.bus_watch import BusWatch, ServerTable, alarms_of, why_blocked
from shared.bus.log.generations import ActiveGeneration
from shared.bus.shell.problems import BUS, Problems
from shared.core.runtime.messages import BusSeen, Replay
from shared.core.runtime.role import Input
from shared.protocol import subjects

LOG = subjects.log_stream(1)


def replica(name: str, silent_s: float, *, current: bool = True, lag: int = 0) -> StreamReplica:
    """A follower as the leader of a stream describes it."""
    return StreamReplica(name=name, current=current, active=round(silent_s * SECOND_NS), lag=lag)


def led_by(leader: str, *replicas: StreamReplica) -> StreamInfo:
    """An answer about a stream."""
    return StreamInfo(cluster=StreamCluster(leader=leader, replicas=replicas))


def shown(table: ServerTable, at_s: float) -> dict[str, str]:
    """Status by server."""
    return {one.name: one.status for one in table.shown(at_s, frozenset())}


def test_a_leader_that_lost_the_others_is_no_majority() -> None:
    """Its answer says how long the others are silent: with two of three gone commits end with the last contact."""
    alone = StreamCluster(leader="a", replicas=(replica("b", 7), replica("c", 3)))
    assert alone.majority_silent_s == 3
    assert StreamCluster(leader="a").majority_silent_s == 0
    # Never heard of since it leads, which the server tells as no time at all.
    fresh = StreamCluster(leader="a", replicas=(StreamReplica(name="b"), StreamReplica(name="c")))
    assert fresh.majority_silent_s == float("inf")
    table = ServerTable()
    table.learn(LOG, led_by("a", replica("b", 7), replica("c", 3)), 100.0, lone="")
    assert table.sure_s == 97.0


def test_a_server_is_current_behind_or_away() -> None:
    """Silent for long it is away whatever the leader still counts; heard and lacking something it is behind."""
    table = ServerTable()
    answer = led_by("a", replica("b", 5), replica("c", 0.5, current=False, lag=152))
    assert table.learn(LOG, answer, 100.0, lone="")
    assert shown(table, 100.0) == {"a": "current", "b": "away", "c": "behind"}
    by_name = {one.name: one for one in table.shown(100.0, frozenset())}
    assert by_name["a"].leads and not by_name["b"].leads
    assert (by_name["c"].lag, by_name["c"].behind, by_name["c"].current_ms) == (152, (LOG,), -1)
    # It has caught up: of then, not of the time before it had.
    table.learn(LOG, led_by("a", replica("b", 6), replica("c", 0.25)), 101.0, lone="")
    by_name = {one.name: one for one in table.shown(101.0, frozenset())}
    assert (by_name["c"].status, by_name["c"].current_ms) == ("current", 250)


def test_without_an_answer_no_server_is_called_away() -> None:
    """Without a leader's answer each server keeps the status of the last one; its age increases."""
    table = ServerTable()
    table.learn(LOG, led_by("a", replica("b", 0.5), replica("c", 7)), 100.0, lone="")
    later_s = 100.0 + bus_watch.AWAY_S + 0.5
    assert shown(table, later_s) == {"a": "current", "b": "current", "c": "away"}
    by_name = {one.name: one for one in table.shown(later_s, frozenset())}
    assert (by_name["a"].silent_ms, by_name["b"].silent_ms) == (3500, 4000)


def test_a_follower_that_lags_for_a_moment_is_not_behind() -> None:
    """Under load a follower lacks something at most looks; one that was wiped has never held it all."""
    table = ServerTable()
    table.learn(LOG, led_by("a", replica("b", 0.1)), 100.0, lone="")
    busy = led_by("a", replica("b", 0.1, current=False, lag=3))
    table.learn(LOG, busy, 101.0, lone="")
    assert shown(table, 101.0)["b"] == "current"
    table.learn(LOG, busy, 100.0 + bus_watch.BEHIND_S + 1, lone="")
    assert shown(table, 100.0 + bus_watch.BEHIND_S + 1)["b"] == "behind"


def test_a_stream_without_a_leader_compares_no_server() -> None:
    """An answer without a leader is none; a server that is alone leads itself; one that was replaced is forgotten."""
    table = ServerTable()
    assert not table.learn(LOG, StreamInfo(cluster=StreamCluster()), 100.0, lone="a")
    assert table.shown(100.0, frozenset()) == ()
    assert table.learn(LOG, StreamInfo(), 100.0, lone="a")
    assert shown(table, 100.0) == {"a": "current"}
    table.learn(LOG, led_by("b", replica("c", 0)), 101.0, lone="")
    assert set(shown(table, 101.0)) == {"b", "c"}
    table.learn("SNAP", led_by("b", replica("c", 0, current=False)), 102.0, lone="")
    assert shown(table, 102.0)["c"] == "behind"
    assert {one.status for one in table.shown(102.0, frozenset({"SNAP"}))} == {"current"}


def test_a_log_without_a_leader_is_led_by_none() -> None:
    """The server that led it last may be the one that died; a missing leader of another stream changes nothing."""
    table = ServerTable()
    table.learn(LOG, led_by("a", replica("b", 0)), 100.0, lone="")
    table.learn("SNAP", led_by("b", replica("a", 0)), 100.0, lone="")

    def leads(*leaderless: str) -> list[str]:
        return [one.name for one in table.shown(101.0, frozenset(leaderless)) if one.leads]

    assert leads() == leads("SNAP") == ["a"]
    assert leads(LOG) == leads(LOG, "SNAP") == []
    # After a roll the log is another stream, and the one before may be without a leader.
    table.follow("LOG_2")
    table.learn("LOG_2", led_by("b", replica("a", 0)), 101.0, lone="")
    assert (leads(LOG), leads("LOG_2")) == (["b"], [])


def test_alarms_tell_an_election_of_the_log() -> None:
    """Nothing can be committed until it is over, so that no other loss is what stops commits."""
    servers = (BusServer(name="n1", leads=True), BusServer(name="n2", status="away"))
    assert [text.endswith("all commits") for text in alarms_of(servers, ())] == [True]
    _, other = alarms_of(servers, ("SNAP",))
    assert other == "no server leads SNAP: an election takes some seconds"
    unled = tuple(msgspec.structs.replace(one, leads=False) for one in servers)
    away, none = alarms_of(unled, (LOG,))
    assert away == "server n2 of the bus is away"
    assert none.startswith(f"no server leads {LOG}: ")
    assert none.endswith("; until then nothing can be committed")


def test_the_texts_name_servers_and_what_to_do() -> None:
    """Who answers, how many are needed, whom to start; a rest that may not lose another one is said to be so."""

    def servers(*states: str) -> tuple[BusServer, ...]:
        return tuple(BusServer(name=f"n{at}", status=one) for at, one in enumerate(states, 1))

    lost = why_blocked(0, servers("up", "away", "away"), "", "n1")
    assert lost.startswith("nothing can be committed since 1970-01-01 00:00:00Z: 1 of 3 servers")
    assert lost.endswith("(n1), 2 are needed; start n2 or n3")
    one_left = servers("up", "up", "away")
    assert why_blocked(0, one_left, "", "n1").endswith("none of them leads the log yet")
    # The one that is away is ours: of the others nothing is said that is not known.
    ours = why_blocked(0, one_left, "", "n3")
    assert ours.startswith(
        "server n3, by which this service reaches the bus, does not answer since"
    )
    assert "committed" not in ours
    none = why_blocked(0, servers("away"), "nats://user:secret@h:1", "")
    assert none.endswith("no server of the bus answers at nats://h:1")
    [away] = alarms_of(servers("current", "away", "current"), ())
    assert away == "server n2 of the bus is away; the loss of another one stops all commits"
    assert alarms_of(servers("current", "current", "current"), ()) == ()
    assert "SNAP" in alarms_of(servers("current"), ("SNAP",))[0]


class _Bus:
    """A connection on which the log has the given leader, or none answers."""

    def __init__(self) -> None:
        self.answer: StreamInfo | None = led_by("a", replica("b", 0), replica("c", 0))
        self._server_info = {"server_name": "a"}

    async def ask(self, subject: str, _body: bytes) -> bytes:
        """Answer about a stream."""
        assert subject.startswith("$JS.API.STREAM.INFO.")
        if self.answer is None:
            raise streams.BusUnavailable("no answer")
        return msgspec.json.encode(self.answer)


async def _watched(bus: _Bus, age_s: float, found: list[Input], problems: Problems) -> BusWatch:
    """Look twice, the second time as if the first was `age_s` ago."""
    link = CurrentConnection(cast("Any", bus))
    watch = BusWatch(
        link,
        ActiveGeneration(),
        problems,
        found.append,
        replay=Replay(servers=True),
        clocks=tuple,
        # No port listens there.
        urls="nats://127.0.0.1:1",
    )
    await watch._look()
    assert problems.by_name == {}
    watch._table.sure_s -= age_s
    bus.answer = None
    await watch._look()
    return watch


def test_a_bus_that_does_not_answer_is_a_problem_after_a_while() -> None:
    """One missed answer is nothing; after some seconds the service is not ready, and the view says who is away."""
    found: list[Input] = []
    problems = Problems()
    watch = asyncio.run(_watched(_Bus(), 0, found, problems))
    assert problems.by_name == {}
    # It is ready, and tells that the log has no leader: metrics count none that may have died.
    assert not any(one.leads for one in watch.status.servers)
    assert problems.alarms[-1].endswith("; until then nothing can be committed")
    assert problems.bus_gauges["caravan_shell_bus_servers_current"] == 0
    assert problems.bus_gauges["caravan_shell_bus_blocked_seconds"] > 0
    asyncio.run(_watched(_Bus(), bus_watch.BLOCKED_S + 1, found, problems))
    assert "no server of the bus answers" in problems.by_name[BUS]
    assert problems.bus_gauges["caravan_shell_bus_blocked_seconds"] >= bus_watch.BLOCKED_S
    seen = found[-1]
    assert isinstance(seen, BusSeen)
    assert {one.status for one in seen.status.servers} == {"away"}
    assert not any(one.leads for one in seen.status.servers)
    assert seen.status.blocked_since_ns <= seen.status.confirmed_ns < seen.status.looked_ns
    assert seen.alarms == (seen.status.reason,) == (problems.by_name[BUS],)


def test_a_service_that_begins_without_a_majority_is_not_ready_at_once() -> None:
    """A restarted service must not tell of a majority that it has never seen; it names the one server that it knows."""
    found: list[Input] = []
    problems, bus = Problems(), _Bus()
    bus.answer = led_by("a", StreamReplica(name="b"), StreamReplica(name="c"))
    link = CurrentConnection(cast("Any", bus))
    watch = BusWatch(
        link,
        ActiveGeneration(),
        problems,
        found.append,
        replay=Replay(servers=True),
        clocks=tuple,
        urls="nats://127.0.0.1:1",
    )
    asyncio.run(watch._look())
    assert "nothing can be committed" in problems.by_name[BUS]
    seen = found[-1]
    assert isinstance(seen, BusSeen)
    assert [one.name for one in seen.status.servers] == ["a", "b", "c"]
    assert seen.status.blocked_since_ns > 0
    bus.answer = led_by("a", replica("b", 0.5), replica("c", 0.5))
    asyncio.run(watch._look())
    assert problems.by_name == {}


def test_only_the_view_looks_at_every_stream() -> None:
    """A hundred schedulers ask about the log alone: one small request a second each."""
    asked: list[str] = []

    async def ask(subject: str, _body: bytes) -> bytes:
        asked.append(subject)
        return b"{}"

    bus = SimpleNamespace(ask=ask, _server_info={})
    for replay in (Replay(), Replay(servers=True)):
        link = CurrentConnection(cast("Any", bus))
        watch = BusWatch(
            link,
            ActiveGeneration(),
            Problems(),
            lambda _: None,
            replay=replay,
            clocks=tuple,
            urls="",
        )
        asyncio.run(watch._look())
        if not replay.servers:
            assert asked == [subjects.js_stream_info(LOG)]
    assert {subjects.js_stream_info(one.name) for one in streams.ENSURED} < set(asked)
