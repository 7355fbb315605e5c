"""Which golden records there are: every event, command, projection and reply, filled and at its least.

Decides their names and content, always the same. Records are sealed as the plan applier seals them.
"""

import msgspec

from schemas import catalogue
from schemas.envelope import ENCODER, SCHEMA_VERSION, CommandBatch, LeaseHeld, LogRecord
from shared.core.runtime.chain import seal
from tests.golden.filled import fill, least


def _record(kind: str, **what: object) -> bytes:
    # CORE_VERSION grows with each release; a golden record keeps the one it was written under.
    record = LogRecord(
        kind=kind,
        schema=SCHEMA_VERSION,
        core="0.1.0",
        epoch=7,
        prev="0" * 32,
        t_ns=1_700_000_000_000_000_000,
        **what,
    )
    return seal(record)[0]


def records() -> dict[str, bytes]:
    """Sealed records by name: one filled and one least of each event, a lease, a checkpoint."""
    made = {}
    for event in catalogue.EVENTS:
        tag = event.__struct_config__.tag
        made[f"event.{tag}.full"] = _record("tx", causes=("w1/1",), events=(fill(event),))
        made[f"event.{tag}.least"] = _record("tx", events=(least(event),))
    made["lease.full"] = _record("lease", lease=fill(LeaseHeld))
    made["lease.least"] = _record("lease", lease=least(LeaseHeld))
    made["checkpoint.full"] = _record("checkpoint", tables={"fleet": "a" * 32, "jobs": "b" * 32})
    return made


def messages() -> dict[str, tuple[type[msgspec.Struct], bytes]]:
    """Everything else by name, with the type that decodes it."""
    made: dict[str, tuple[type[msgspec.Struct], bytes]] = {}
    for command in catalogue.COMMANDS:
        tag = command.__struct_config__.tag
        for how, build in (("full", fill), ("least", least)):
            batch = CommandBatch(sender="role-1", commands=(build(command),))
            made[f"command.{tag}.{how}"] = (CommandBatch, ENCODER.encode(batch))
    for message in catalogue.MESSAGES:
        if message not in (LogRecord, CommandBatch):
            for how, build in (("full", fill), ("least", least)):
                name = catalogue.published_name(message)
                made[f"message.{name}.{how}"] = (
                    message,
                    ENCODER.encode(build(message)),
                )
    return made


def type_of(name: str) -> type[msgspec.Struct]:
    """Say what decodes the golden file of this name: `event.job.registered.full`, `message.Verdict.full-2`."""
    kind, _, rest = name.partition(".")
    if kind == "command":
        return CommandBatch
    if kind == "message":
        known = {catalogue.published_name(one): one for one in catalogue.MESSAGES}
        return known[rest.rpartition(".")[0]]
    return LogRecord
