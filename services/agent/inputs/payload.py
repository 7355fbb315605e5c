"""The payload of a dispatch: a file below the task's `local/`."""

import asyncio

import msgspec

from services.agent.inputs.input_handler import SETUP_FAILURE, InputContext, InputFailed
from services.agent.safe_open import is_swapped, write_below
from shared.core.runtime.agent_messages import TaskInput
from shared.core.runtime.input_specs import PAYLOAD, PayloadInput

#: As in Nomad: the task runs under its own user, and may take the file away.
_MODE = 0o777


class PayloadHandler:
    """Writes the payload, unless the file is there."""

    kind = PAYLOAD
    event_kind = SETUP_FAILURE
    begin_kind = ""
    stage = 0
    timeout_s: float | None = 30.0

    async def prepare(self, about: InputContext, wanted: TaskInput) -> bytes:
        """Write the file, whole or not at all."""
        spec = msgspec.json.decode(wanted.spec, type=PayloadInput)
        path = about.places.task / "local" / spec.file
        try:
            await asyncio.to_thread(write_below, about.places.top, path, spec.data, mode=_MODE)
        except OSError as err:
            text = f"{err.filename or spec.file}: {err.strerror or err}"
            raise InputFailed(text, recoverable=not is_swapped(err)) from err
        return spec.data
