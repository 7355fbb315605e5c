"""Dead letters: how a role writes down what it could not understand. Which subject it goes to is the role's matter."""

from base64 import b64encode

from schemas.dead import BODY_BYTES_MAX, DeadLetter
from schemas.envelope import ENCODER
from shared.core.role import Message, Role

_REASON_CHARS_MAX = 1000


def dead_letter(role: Role, message: Message, reason: str, now_ns: int) -> bytes:
    """Encode a DeadLetter about `message`, for `subjects.dead(message.subject)`."""
    letter = DeadLetter(
        subject=message.subject,
        reason=reason[:_REASON_CHARS_MAX],
        at_ns=now_ns,
        body_base64=b64encode(message.data[:BODY_BYTES_MAX]).decode("ascii"),
        role=role.name,
        instance=role.instance,
    )
    return ENCODER.encode(letter)
