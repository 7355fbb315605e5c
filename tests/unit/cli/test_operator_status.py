"""`operator status`: what it says and exits with for each state of the bus, and what its wait counts."""

from collections.abc import Callable, Iterator

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

    def command(of: BusStatus, wait: str = "") -> tuple[int, str]:
        monkeypatch.setattr(status, "query_once", lambda *_: answer(of))
        out = CommandOutput(columns=100)
        code = status.status(out, hashes=False, wait=wait, timeout="0")
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
    # Of a past moment nothing is known of servers.
    assert exit_code(BusStatus()) == 0


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

    def ask() -> ClusterAnswer:
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
    """One line: what was waited for, for how long, what lacks. An unknown state, and a past moment, are refused."""
    with pytest.raises(CliError, match=r"not current after 0 s: .*server n2 is away"):
        run(bus("current", "away", "current"), "current")
    with pytest.raises(CliError, match="quorum, current"):
        run(bus("current"), "soon")
    global_options.set_global_options("", at="7")
    with pytest.raises(CliError, match="the bus of now"):
        run(bus("current"), "current")
