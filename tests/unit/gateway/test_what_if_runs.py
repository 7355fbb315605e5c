"""What-ifs from the page: what may be asked, which runs are kept, how one ends. The command runs in other tests."""

import asyncio
from typing import Any

import msgspec
import pytest

from services.gateway.edge import what_if_runs
from services.gateway.edge.faults import HttpFault
from services.gateway.edge.what_if_runs import Question, Run, WhatIfRuns, arguments

REPORT = b'{"from_seq":7}'


def test_a_question_is_a_command_line() -> None:
    """Each field is one option with its value inside, so that a value is never an option or a file of this machine."""
    question = Question(
        seq=7, until="+10m", drain=("node-1", "--out=/tmp/x"), policy=("algorithm=spread",), job="x"
    )
    assert arguments(question, "/tmp/job") == [
        "--from=7",
        "--until=+10m",
        "--drain=node-1",
        "--drain=--out=/tmp/x",
        "--policy=algorithm=spread",
        "--job=/tmp/job",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": ("/etc/passwd",)},
        {"policy": ("policy.yaml",)},
        {"policy": ("/etc/x=1",)},
        {"add_nodes": ("/etc/passwd",)},
        {"add_nodes": ("1x/etc/passwd",)},
        {"add_nodes": ("nodes.yaml",)},
    ],
)
def test_files_of_the_gateway_cannot_be_named(fields: dict[str, Any]) -> None:
    """The command line takes files for some options; a page may not name one."""
    with pytest.raises(HttpFault) as caught:
        arguments(Question(seq=1, **fields), "")
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"seq":0}', b"{}", b'{"seq":1,"drain":[""]}', b'{"seq":1,"out":"x"}'),
        b'{"seq":1,"job":"%s"}' % (b"x" * 500_001),
        b'{"seq":1,"drain":[%s]}' % b",".join([b'"n"'] * 201),
    ],
)
def test_a_question_has_bounds(body: bytes) -> None:
    """Unknown fields, empty words, too many and too long ones are refused."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=Question)


async def ended(run: Run) -> Run:
    """A run whose task is over."""
    assert run.task is not None
    await run.task
    return run


def started(runs: WhatIfRuns, seq: int = 7) -> Run:
    return runs.start(Question(seq=seq), salt="c", where=[], env={})


def answering(*answers: bytes) -> Any:
    """Stands for the command: prints these lines in turn."""
    left = list(answers)

    async def output(
        _words: list[str], _env: dict[str, str], _folder: str
    ) -> tuple[int, bytes, bytes]:
        return 0, left.pop(0), b""

    return output


def test_a_result_is_kept_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same question is one run; one that failed is asked again; another caller's is another."""

    async def check() -> None:
        error = b'{"error":{"code":"not_found","message":"no node x"}}'
        monkeypatch.setattr(what_if_runs, "_output", answering(error, REPORT, REPORT))
        runs = WhatIfRuns()
        failed = await ended(started(runs))
        assert (failed.status, failed.text) == ("failed", "no node x")
        done = await ended(started(runs))
        assert (done.status, done.report, done.name) == ("done", msgspec.Raw(REPORT), failed.name)
        assert started(runs) is done
        other = runs.start(Question(seq=7), salt="d", where=[], env={})
        assert other.name != done.name
        await ended(other)

    asyncio.run(check())


def test_the_oldest_result_leaves_and_too_many_open_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KEPT_MAX are kept, RUNNING_MAX run, the rest wait their turn."""
    running: list[int] = []
    most: list[int] = []

    async def output(*_: object) -> tuple[int, bytes, bytes]:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0)
        running.pop()
        return 0, REPORT, b""

    async def check() -> None:
        monkeypatch.setattr(what_if_runs, "_output", output)
        runs = WhatIfRuns()
        for seq in range(1, what_if_runs.KEPT_MAX + 1):
            started(runs, seq)
        with pytest.raises(HttpFault) as caught:
            started(runs, 99)
        assert caught.value.status == 503
        first = next(iter(runs.runs))
        for run in list(runs.runs.values()):
            await ended(run)
        await ended(started(runs, 99))
        assert len(runs.runs) == what_if_runs.KEPT_MAX
        assert first not in runs.runs
        assert max(most) == what_if_runs.RUNNING_MAX

    asyncio.run(check())


def test_a_run_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status says why."""

    async def output(*_: object) -> tuple[int, bytes, bytes]:
        raise TimeoutError

    async def check() -> None:
        monkeypatch.setattr(what_if_runs, "_output", output)
        run = await ended(started(WhatIfRuns()))
        assert run.status == "failed"
        assert "ended after" in run.text

    asyncio.run(check())
