"""The options of each kind of task input, as they travel in `TaskInput.spec`.

The agent's role fills them (services/agent/tasks/task_inputs.py), a handler of the same kind reads them
(services/agent/inputs/).
"""

import msgspec

PAYLOAD = "payload"
ARTIFACT = "artifact"


class PayloadInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the job was dispatched with, as a file below the task's `local/`."""

    file: str
    data: bytes


class ArtifactInput(msgspec.Struct, frozen=True, kw_only=True):
    """A file or an archive that is fetched; Nomad's fields."""

    source: str
    options: dict[str, str] = {}
    headers: dict[str, str] = {}
    #: any, file or dir.
    mode: str = "any"
    insecure: bool = False
    destination: str = "local/"
    chown: bool = False
