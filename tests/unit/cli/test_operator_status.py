"""`operator status`: what it says and exits with for each state of the bus, and what its wait counts."""

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest

from schemas.answers import ClusterAnswer
from schemas.base import SECOND_NS
from schemas.bus_answers import BusServer, BusStatus
from services.cli import global_options
from services.cli.operator import status
from services.cli.operator.status import exit_code, wait_for, what_lacks
from services.cli.runtime.output import CliError, CommandOutput

NOW = 1_000 * SECOND_NS
WHY = "nothing can be committed since 1970-01-01 00:16:20Z: 1 of 3 servers of the bus answers"


def bus(*states: str, at_ns: int = NOW, age_ms: int = 100, reason: str = "") -> BusStatus:
    """A bus whose servers were looked at just now."""
    servers = tuple(
        BusServer(name=f"n{nth}", status=one, silent_ms=age_ms, current_ms=age_ms, leads=nth == 1)
        for nth, one in enumerate(states, 1)
    )
    return BusStatus(
        servers=servers,
        looked_ns=at_ns,
        confirmed_ns=at_ns,
        answered_ns=at_ns,
        blocked_since_ns=at_ns - 20 * SECOND_NS if reason else 0,
        reason=reason,
    )


def answer(of: BusStatus) -> ClusterAnswer:
    """The view's answer."""
    alarms = (of.reason,) if of.reason else ()
    return ClusterAnswer(seq=4, holder="plan_applier-1", fsync=True, bus=of, alarms=alarms)


@pytest.fixture(autouse=True)
def _of_now() -> Iterator[None]:
    global_options.set_global_options("")
    yield
    global_options.set_global_options("")


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run the command on a view with this answer; returns exit code and output."""

    def command(
        of: BusStatus, wait: str = "", server: str = "", *, is_json: bool = False
    ) -> tuple[int, str]:
        monkeypatch.setattr(status, "query_once", lambda *_, **__: answer(of))
        out = CommandOutput(columns=100, is_json=is_json)
        code = status.status(out, hashes=False, wait=wait, timeout="0", server=server)
        return code, capsys.readouterr().out

    return command


def test_each_state_of_the_bus_has_its_exit_code() -> None:
    """0: all is there; 2: one is away or lacks something; 1: nothing can be committed, or the answer is of before."""
    assert exit_code(bus("current", "current", "current")) == 0
    assert exit_code(bus("current", "away", "current")) == 2
    assert exit_code(bus("current", "behind", "current")) == 2
    assert exit_code(bus("up", "away", "away", reason=WHY)) == 1
    whole = bus("current", "current", "current")
    old = BusStatus(
        servers=whole.servers, looked_ns=NOW, confirmed_ns=NOW, answered_ns=NOW + 60 * SECOND_NS
    )
    assert exit_code(old) == 1
    leaderless = BusStatus(
        servers=whole.servers, confirmed_ns=NOW, answered_ns=NOW, leaderless=("SNAP",)
    )
    assert exit_code(leaderless) == 2
    # No server has answered, blocked or not: never 0.
    assert exit_code(BusStatus()) == 1
    assert exit_code(BusStatus(blocked_since_ns=NOW, answered_ns=NOW)) == 1


def test_servers_that_are_not_known_are_said_in_every_shape(
    run: Callable[..., tuple[int, str]],
) -> None:
    """A view that has not looked yet: exit 1, a line for people, reason and alarm as JSON; a past moment has none."""
    code, text = run(BusStatus())
    assert (code, "Servers      NOT KNOWN" in text) == (1, True)
    assert "no server of the bus has answered" in text
    code, text = run(BusStatus(), is_json=True)
    told = json.loads(text)
    assert code == 1
    assert told["bus"]["reason"] == told["alarms"][-1] == status.NOT_LOOKED
    code, text = run(BusStatus(reason=WHY, blocked_since_ns=NOW))
    assert (code, text.replace("\n", " ").count(WHY)) == (1, 1)
    global_options.set_global_options("", at="7")
    code, text = run(BusStatus())
    assert (code, "NOT KNOWN" in text, "has answered" in text) == (0, False, False)


def test_one_server_is_shown_by_its_name(run: Callable[..., tuple[int, str]]) -> None:
    """Its state, lead and lag alone; its exit code; another name is one line with those there are."""
    states = ("current", "away", "behind")
    code, text = run(bus(*states), server="n1")
    text = " ".join(text.split())
    assert (code, "n2" in text, "Leads the log" in text) == (0, False, True)
    code, text = run(bus(*states), server="n2")
    assert (code, "Status away" in " ".join(text.split()), "n1" in text) == (2, True, False)
    code, text = run(bus(*states), server="n3", is_json=True)
    assert code == 2
    assert [one["name"] for one in json.loads(text)["bus"]["servers"]] == ["n3"]
    assert run(bus("up", "away", "away", reason=WHY), server="n1")[0] == 1
    assert run(BusStatus(), server="n1")[0] == 1
    for wait in ("", "current"):
        with pytest.raises(CliError, match=r"no server 'n4'; it has: n1, n2, n3$") as told:
            run(bus(*states), wait, "n4")
        assert told.value.code == "not_found"
    global_options.set_global_options("", at="7")
    with pytest.raises(CliError, match="--server is about the bus of now"):
        run(BusStatus(), server="n1")


def test_one_server_of_a_stream_without_a_leader_says_so(
    run: Callable[..., tuple[int, str]],
) -> None:
    """It holds everything, and the exit code is not 0: the reason stands below."""
    leaderless = msgspec.structs.replace(bus("current", "current", "current"), leaderless=("SNAP",))
    code, text = run(leaderless, server="n1")
    assert (code, "stream SNAP has no leader" in text) == (2, True)
    assert "no leader" not in run(bus("current", "current", "current"), server="n1")[1]


def unled(age_s: int = 4) -> BusStatus:
    """Three servers that were current when the leader of the log answered last: n1, which may be the one that died."""
    whole = bus("current", "current", "current", age_ms=age_s * 1000)
    return msgspec.structs.replace(
        whole,
        servers=tuple(msgspec.structs.replace(one, leads=False) for one in whole.servers),
        confirmed_ns=NOW - age_s * SECOND_NS,
        leaderless=("LOG_1", "SNAP"),
    )


def test_a_log_without_a_leader_takes_no_commits(run: Callable[..., tuple[int, str]]) -> None:
    """Exit 1 from the first look on that finds no leader; statuses are said to be of the last answer, and its age."""
    code, text = run(unled())
    assert code == exit_code(unled()) == 1
    assert "3 of 3 were current, confirmed 4 s ago, NO LEADER" in text
    assert "of before: nothing can be committed" in text
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("n1")] == [
        ["n1", "was", "current"]
    ]
    assert "the log" not in text
    # Another stream alone: commits are possible, for each server.
    other = msgspec.structs.replace(bus("current", "current"), leaderless=("LOG_1",))
    assert [run(other, server=name)[0] for name in ("", "n1", "n2")] == [2, 2, 2]
    assert "were" not in run(other)[1]


def test_no_server_leads_a_log_without_a_leader(run: Callable[..., tuple[int, str]]) -> None:
    """Of any server: exit 1, what it was at the last answer and when that was; that it lacks nothing is not known."""
    for name in ("n1", "n2"):
        code, text = run(unled(), server=name)
        text = " ".join(text.split())
        assert code == 1
        assert "Status was current Leads not the log Last heard 4 s ago Lacks not known" in text
        assert "Looked confirmed 4 s ago, NO LEADER" in text
        assert "no server leads the log: its leader answered last at 1970-01-01 00:16:36Z" in text
    assert run(unled(), server="n1", is_json=True)[0] == 1


def test_a_wait_goes_on_while_the_log_has_no_leader() -> None:
    """Neither goal is reached, though servers of other streams were heard of since the wait began."""
    for goal in status.GOALS:
        assert "leader" in what_lacks(unled(), goal, 0)
        with pytest.raises(CliError, match=f"not {goal}: .*leader") as told:
            wait_for(CommandOutput(), lambda _: answer(unled()), goal, 0.0, server="n2")
        assert told.value.code == "pending"
    # The text of a wait is the same at each look, so that it is said once.
    later = msgspec.structs.replace(unled(), answered_ns=NOW + SECOND_NS)
    assert what_lacks(later, "quorum", 0) == what_lacks(unled(), "quorum", 0)
    others = msgspec.structs.replace(bus("current", "current"), leaderless=("SNAP",))
    assert what_lacks(others, "quorum", 0) == ""


def test_a_wait_for_one_server_leaves_the_others() -> None:
    """`current` is of that server; a quorum stays one of all servers."""
    out = CommandOutput()
    of = bus("current", "away", "away", at_ns=NOW)
    later = msgspec.structs.replace(of, answered_ns=NOW - SECOND_NS)
    found = wait_for(out, lambda _: answer(later), "current", 0.0, server="n1")
    assert found.bus == later
    with pytest.raises(CliError, match="server n2 is away"):
        wait_for(out, lambda _: answer(later), "current", 0.0, server="n2")
    never = bus("current", "current", "current", age_ms=-1)
    with pytest.raises(CliError, match="2 of 3 servers must be heard of"):
        wait_for(out, lambda _: answer(never), "quorum", 0.0, server="n1")


def test_a_timeout_counts_from_the_start_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer may take what is left of it; without any time one answer is waited for, however long it takes.

    For how long is said once, by the wait where it has a bound.
    """
    clock = [100.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        status.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    )
    given: list[float | None] = []

    def silent(within_s: float | None) -> ClusterAnswer:
        given.append(within_s)
        clock[0] += min(1.5, 1.5 if within_s is None else within_s)
        raise CliError("unavailable", f"{away} (asked for 1.5 s)", untimed=away)

    away = "no bus at nats://h:1"
    with pytest.raises(CliError, match=f"^not current after 2 s: {away}$"):
        wait_for(CommandOutput(), silent, "current", 2.0, since_s=99.5)
    assert (given, clock) == ([1.5], [101.5])
    with pytest.raises(CliError, match=rf"^not current: {away} \(asked for 1.5 s\)$"):
        wait_for(CommandOutput(), silent, "current", 0.0, since_s=99.5)
    assert given == [1.5, None]


def test_the_status_names_servers_and_what_is_of_before(
    run: Callable[..., tuple[int, str]],
) -> None:
    """Who is there and who leads; without a majority the applier is of before, and since when is said."""
    code, text = run(bus("current", "away", "current"))
    assert code == 2
    assert "Servers      2 of 3 current" in text
    [line] = [one for one in text.splitlines() if one.startswith("n2")]
    assert "away" in line and "the log" not in line
    assert "of before" not in text
    code, text = run(bus("up", "away", "away", reason=WHY))
    assert code == 1
    assert "1 of 3 answer, NO COMMITS for 20 s" in text
    assert "of before: nothing can be committed" in text
    assert WHY in text.replace("\n", " ")


def test_one_server_that_is_well_has_no_table(run: Callable[..., tuple[int, str]]) -> None:
    """What most clusters have takes one line."""
    code, text = run(bus("current"))
    assert (code, "SERVER" in text) == (0, False)
    assert "1 of 1 current" in text


def test_a_wait_counts_what_was_said_after_it_began() -> None:
    """A server that was heard of before the wait began may have been stopped since: it does not count as there."""
    whole = bus("current", "current", "current", age_ms=100)
    assert what_lacks(whole, "current", NOW - SECOND_NS) == ""
    assert "n1 has not been heard of since" in what_lacks(whole, "current", NOW)
    assert what_lacks(whole, "quorum", NOW - SECOND_NS) == ""
    assert "2 of 3 servers must be heard of" in what_lacks(whole, "quorum", NOW)
    never = bus("current", "current", "current", age_ms=-1)
    assert what_lacks(never, "current", NOW - SECOND_NS) != ""


def test_a_wait_says_what_lacks() -> None:
    """The server that is away or behind by its name; a quorum needs neither."""
    assert "server n2 is away" in what_lacks(bus("current", "away", "current"), "current", 0)
    assert what_lacks(bus("current", "away", "current"), "quorum", 0) == ""
    assert what_lacks(bus("up", "away", "away", reason=WHY), "quorum", 0) == WHY
    assert "n2 does not hold all" in what_lacks(bus("current", "behind", "current"), "current", 0)
    assert "not looked" in what_lacks(BusStatus(), "quorum", 0)


def test_the_wait_ends_when_the_bus_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No answer and a missing server are waited for, each is said once; other errors end it."""
    monkeypatch.setattr(status, "_LOOK_S", 0)
    states: list[BusStatus | CliError] = [
        CliError("unavailable", "no bus at nats://h:1"),
        bus("current", "away", "current"),
        bus("current", "away", "current", at_ns=NOW + SECOND_NS),
        bus("current", "current", "current", at_ns=NOW + 2 * SECOND_NS),
    ]

    def ask(_within_s: float | None) -> ClusterAnswer:
        found = states.pop(0)
        if isinstance(found, CliError):
            raise found
        return answer(found)

    found = wait_for(CommandOutput(), ask, "current", 60.0)
    assert (exit_code(found.bus), states) == (0, [])
    said = capsys.readouterr().err.splitlines()
    assert [one for one in said if "no bus at" in one] == said[:1]
    assert [one for one in said if "n2 is away" in one] == said[1:]
    states = [CliError("invalid", "no such query")]
    with pytest.raises(CliError, match="no such query"):
        wait_for(CommandOutput(), ask, "current", 60.0)


def test_a_wait_that_is_over_says_what_lacks(run: Callable[..., tuple[int, str]]) -> None:
    """One line: what was waited for and what lacks. An unknown state, and a past moment, are refused."""
    with pytest.raises(CliError, match=r"^not current: .*server n2 is away"):
        run(bus("current", "away", "current"), "current")
    with pytest.raises(CliError, match="quorum, current"):
        run(bus("current"), "soon")
    global_options.set_global_options("", at="7")
    with pytest.raises(CliError, match="the bus of now"):
        run(bus("current"), "current")
