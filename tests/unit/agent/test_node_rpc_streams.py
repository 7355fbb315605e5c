"""Streams to an operator: no more than its reader takes, input once and in order, an end when he is gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from schemas.node_rpc import Frame, SessionInput
from services.agent.node_rpc import stream
from services.agent.node_rpc.open_streams import OpenStreams
from services.agent.node_rpc.server import NodeRpcServer
from services.agent.node_rpc.stream import FRAME_BYTES, INPUTS_MAX, WINDOW, FrameSender
from shared.errors import CommandInvalid
from tests.bounds import WAIT_S

SESSION = "0" * 32


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, WAIT_S))


def said(**fields: Any) -> SessionInput:
    return SessionInput(session=SESSION, **fields)


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_no_more_is_sent_than_the_window_holds() -> None:
    """Who reads nothing gets a window of frames; each one seen makes room for one more."""

    async def story() -> None:
        sent: list[Frame] = []
        stream = FrameSender(lambda frame: not sent.append(frame))
        giving = asyncio.create_task(stream.give(b"x" * FRAME_BYTES * (WINDOW + 10)))
        await turns()
        assert len(sent) == WINDOW
        stream.take(said(seen=3))
        await turns()
        assert len(sent) == WINDOW + 3
        stream.take(said(seen=WINDOW + 3))
        await giving
        assert [frame.number for frame in sent] == list(range(1, WINDOW + 11))

    run(story())


def test_the_end_is_told_however_full_the_window_is() -> None:
    """A reader that is behind gets the end of the stream, once."""

    async def story() -> None:
        sent: list[Frame] = []
        stream = FrameSender(lambda frame: not sent.append(frame))
        await stream.give(b"x" * FRAME_BYTES * WINDOW)
        await stream.end(exit_code=3)
        await stream.end(exit_code=4)
        assert [frame.exit_code for frame in sent if frame.is_end] == [3]

    run(story())


def test_a_reader_cannot_claim_frames_that_were_not_sent() -> None:
    """A number beyond what was sent opens no larger window."""

    async def story() -> None:
        sent: list[Frame] = []
        stream = FrameSender(lambda frame: not sent.append(frame))
        stream.take(said(seen=10**9))
        giving = asyncio.create_task(stream.give(b"x" * FRAME_BYTES * (WINDOW + 1)))
        await turns()
        assert len(sent) == WINDOW
        giving.cancel()

    run(story())


def test_input_is_taken_once_and_in_order() -> None:
    """What comes again is not typed again; a gap is refused; input that is not read is not piled up."""

    async def story() -> None:
        stream = FrameSender(lambda _: True)
        stream.take(said(number=1, data=b"a"))
        stream.take(said(number=1, data=b"a"))
        assert stream.inputs.qsize() == 1
        with pytest.raises(CommandInvalid) as gap:
            stream.take(said(number=3, data=b"c"))
        assert gap.value.code == "conflict"
        for number in range(2, INPUTS_MAX + 1):
            stream.take(said(number=number, data=b"b"))
        with pytest.raises(CommandInvalid) as full:
            stream.take(said(number=INPUTS_MAX + 1, data=b"b"))
        assert full.value.code == "busy"
        stream.inputs.get_nowait()
        stream.take(said(number=INPUTS_MAX + 1, data=b"b"))

    run(story())


def test_who_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """`watch` gives signs of life, and returns once nothing was heard for the time."""
    monkeypatch.setattr(stream, "KEEPALIVE_S", 0.001)

    async def story() -> None:
        sent: list[Frame] = []
        three = asyncio.Event()

        def send(frame: Frame) -> bool:
            sent.append(frame)
            if len(sent) == 3:
                three.set()
            return True

        patient = FrameSender(send)
        watching = asyncio.create_task(patient.watch())
        await three.wait()
        assert not watching.done()
        assert all(not frame.number and not frame.is_end for frame in sent)
        watching.cancel()
        await FrameSender(lambda _: True, silent_s=0.01).watch()

    run(story())


def test_who_leaves_is_given_up_at_once() -> None:
    """A reader who says so is not waited for."""

    async def story() -> None:
        stream = FrameSender(lambda _: True)
        watching = asyncio.create_task(stream.watch())
        await turns()
        stream.close()
        await asyncio.wait_for(watching, WAIT_S)

    run(story())


def test_a_frame_that_could_not_be_sent_is_sent_again() -> None:
    """While the bus is away the stream waits; no number is left out."""

    async def story() -> None:
        sent: list[Frame] = []
        fails = [True, True]

        def send(frame: Frame) -> bool:
            if fails:
                fails.pop()
                return False
            sent.append(frame)
            return True

        stream = FrameSender(send)
        await stream.give(b"a")
        await stream.give(b"b")
        assert [(one.number, one.data) for one in sent] == [(1, b"a"), (2, b"b")]

    run(story())


def test_a_reader_that_never_says_what_it_saw_gets_an_error_frame() -> None:
    """A window of frames, then silence: the stream ends with the reason; a reader that left gets none."""

    async def play(*, leaves: bool) -> list[Frame]:
        sent: list[Frame] = []
        sender = FrameSender(lambda frame: not sent.append(frame), silent_s=0.05)
        server = OpenStreams("n1", 1)
        server._streams = {SESSION: sender}

        async def flood() -> None:
            await sender.give(b"x" * FRAME_BYTES * (WINDOW + 1))

        if leaves:
            sender.close()
        await server._stream(SESSION, sender, flood())
        return sent

    async def story() -> None:
        (*_, last) = await play(leaves=False)
        assert last.is_end and last.error is not None and last.number == WINDOW + 1
        assert last.error.code == "gone" and "send `seen` to `session`" in last.error.message
        assert "1024 KiB" in last.error.message
        assert not any(frame.is_end for frame in await play(leaves=True))

    run(story())


@pytest.mark.parametrize("verb", ["logs", "exec", "session", "stats", "fs_list", "fs_read"])
def test_an_unknown_parameter_is_refused(verb: str) -> None:
    """A slip of a client is named with what there is, and nothing is begun."""
    answers: list[Any] = []
    server = object.__new__(NodeRpcServer)
    server._begin(verb, b'{"no_such":1}', lambda one: not answers.append(one))
    (answer,) = answers
    assert (answer.error.code, answer.error.path) == ("invalid", "no_such")
    assert "expected one of" in answer.error.message
