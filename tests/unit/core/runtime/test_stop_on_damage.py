"""The rule of ADR 26: on a damaged log a role keeps the effects collected before it, then stops."""

from shared.core.runtime.messages import Ack, Message, Record, Stop
from shared.core.runtime.replicated_role import ReplicatedRole
from shared.core.runtime.step import Step


class _Acking(ReplicatedRole):
    name = "acking"

    def on_message(self, message: Message, step: Step) -> None:
        step.emit(Ack(message.token))

    def finish(self, step: Step) -> None:
        step.emit(Ack(99))

    def before_stop(self, step: Step) -> None:
        step.emit(Ack(77))


def test_effects_before_the_damage_stay_and_stop_is_last() -> None:
    """What follows the damaged record in the step is not taken, and nothing is decided at its end."""
    message = Message("api", "api.x", b"", 1)
    damaged = Record(5, "log.1.tx", b"behind a hole")
    late = Message("api", "api.x", b"", 2)
    *before, last = _Acking("a").step([message, damaged, late], 1)
    assert before == [Ack(1), Ack(77)]
    assert isinstance(last, Stop)
