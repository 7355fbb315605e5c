"""Orders of the projection to end what runs elsewhere and is tracked by no allocation.

Decides what is asked of the driver and when it is reported as done: both are repeated until the projection does not
name it any more. Nothing is kept: the next life is given the same orders.
"""

from collections.abc import Mapping, Sequence

from schemas.base import NodeId
from schemas.envelope import ENCODER, CommandBatch
from schemas.remotes import RemoteEnding, ReportRemoteEnded
from services.agent.reports import Reports
from services.agent.tasks.runtime_state import AllocRuntime
from services.agent.tasks.supervisor import AgentStep, Supervisor
from shared.core.runtime.messages import Send, SetTimer
from shared.core.runtime.remote_messages import (
    EndRemote,
    RemoteEnded,
    RemoteRun,
    run_token,
    slot_name,
)
from shared.protocol import subjects

#: Name of the timer, and when an order that is not done, or not seen to be, is repeated.
TIMER = "remote"
AGAIN_NS = 5_000_000_000


class RemoteEnds:
    """The orders of the newest projection."""

    def __init__(self, node_id: str, instance: str = "") -> None:
        self._node_id = node_id
        self.instance = instance
        self._orders: Mapping[tuple[int, int], RemoteEnding] = {}
        #: by order: tokens of what is ended.
        self._done: dict[tuple[int, int], set[str]] = {}

    def follow(self, cluster_id: str, orders: Sequence[RemoteEnding], turn: AgentStep) -> None:
        """Take the orders of a projection; new ones are carried out at once."""
        named = {(one.generation, one.epoch): one for one in orders}
        new = [key for key in named if key not in self._orders]
        self._orders = named
        self._done = {key: tokens for key, tokens in self._done.items() if key in named}
        for key in new:
            self._carry_out(cluster_id, named[key], turn)
        if new:
            turn.act(SetTimer(TIMER, turn.now_ns + AGAIN_NS))

    def again(self, cluster_id: str, turn: AgentStep) -> None:
        """Repeat what is not seen to be done."""
        for order in self._orders.values():
            self._carry_out(cluster_id, order, turn)
        if self._orders:
            turn.act(SetTimer(TIMER, turn.now_ns + AGAIN_NS))

    def ended(self, cluster_id: str, event: RemoteEnded, turn: AgentStep) -> None:
        """Take an answer."""
        key = (event.remote.generation, event.remote.epoch)
        if key in self._orders:
            self._done.setdefault(key, set()).add(event.remote.token)
            if not self._left(cluster_id, self._orders[key]):
                self._report(key, turn)

    def _carry_out(self, cluster_id: str, order: RemoteEnding, turn: AgentStep) -> None:
        left = self._left(cluster_id, order)
        turn.act(*left)
        if not left:
            self._report((order.generation, order.epoch), turn)

    def _left(self, cluster_id: str, order: RemoteEnding) -> list[EndRemote]:
        """List what is not ended yet."""
        done = self._done.get((order.generation, order.epoch), ())
        found = [
            EndRemote(driver=task.driver, task=name, remote=_run(cluster_id, order, name))
            for name, task in sorted(order.tasks.items())
        ]
        return [one for one in found if one.remote.token not in done]

    def _report(self, key: tuple[int, int], turn: AgentStep) -> None:
        word = ReportRemoteEnded(node_id=NodeId(self._node_id), generation=key[0], epoch=key[1])
        batch = CommandBatch(sender=self.instance, commands=(word,))
        turn.act(Send(subjects.report(self._node_id), ENCODER.encode(batch)))


def start_announced(
    supervisor: Supervisor, reports: Reports, allocs: Mapping[int, AllocRuntime], turn: AgentStep
) -> None:
    """Start what runs elsewhere, once the log knows of it."""
    for key in [one for one in supervisor.announced if reports.is_seen(one)]:
        del supervisor.announced[key]
        if key in allocs:
            supervisor.advance(allocs[key], turn)


def _run(cluster_id: str, order: RemoteEnding, name: str) -> RemoteRun:
    task = order.tasks[name]
    slot = slot_name(cluster_id, order.generation, name)
    return RemoteRun(
        token=run_token(slot, task.attempt),
        slot=slot,
        epoch=order.epoch,
        generation=order.generation,
        attempt=task.attempt,
        state=task.state,
        handle=task.handle,
    )
