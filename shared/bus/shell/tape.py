"""A role's steps on tape: what it was given and when, so that it can be played again, alone, and measured.

A role is a function of its inputs: a replayed tape gives the same effects as the recorded run. Decides
only how that is written down. Switched on by `CARAVAN_TAPE` for a role in real life; read by
`bench/report/tape_reader.py`, played by `bench/report/tape_replay.py`.

A tape is a row of frames, each its length in four bytes (big endian) and that much msgpack. The first is the `Header`:
which role, and the plain values that it was made from. Each other one is a step: `[now_ns, [input, …]]`, an input being
`[tag, field, …]` in the order of the fields. Tags are the words of `INPUTS` and `EFFECTS`; no tape names a module or
a class, so it outlives their names. What a field holds is plain, or the bytes that are on the wire.

A taped role replays the whole log: `Restored`, a state in memory, is not wire bytes, so `runner.py` lets no role that
is taped begin at a snapshot. A log whose first generations were dropped cannot be taped.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from schemas.base import Command, Event, Wire
from schemas.envelope import ENCODER
from shared.core.runtime import agent_messages as t
from shared.core.runtime import keeper_messages as k
from shared.core.runtime import messages as r
from shared.core.runtime import network_messages as n
from shared.core.runtime import remote_messages as m
from shared.core.runtime import volume_messages as v
from shared.core.runtime.role import Input, Role
from shared.errors import ConfigInvalid

FORMAT = 2
#: Before each frame, big endian: its length.
LENGTH_BYTES = 4
PACK = msgspec.msgpack.Encoder(order="deterministic")

#: Tags of a role's inputs. They stay if a class is renamed; a tag is never reused.
INPUTS: dict[str, type[msgspec.Struct]] = {
    "Record": r.Record,
    "CaughtUp": r.CaughtUp,
    "LogSpace": r.LogSpace,
    "BusSeen": r.BusSeen,
    "LogScrubbed": r.LogScrubbed,
    "Message": r.Message,
    "Appended": r.Appended,
    "AppendRefused": r.AppendRefused,
    "AppendUnknown": r.AppendUnknown,
    "RollReady": r.RollReady,
    "RollRefused": r.RollRefused,
    "Answer": r.Answer,
    "PutDone": r.PutDone,
    "PutRefused": r.PutRefused,
    "Timer": r.Timer,
    "LeadershipWon": r.LeadershipWon,
    "LeadershipLost": r.LeadershipLost,
    "Reconnected": r.Reconnected,
    "TaskPrepared": t.TaskPrepared,
    "TaskPrepareFailed": t.TaskPrepareFailed,
    "InputChanged": t.InputChanged,
    "ChangeScriptEnded": t.ChangeScriptEnded,
    "TaskStarted": t.TaskStarted,
    "TaskStartFailed": t.TaskStartFailed,
    "TaskExited": t.TaskExited,
    "TaskGone": t.TaskGone,
    "TaskNoted": t.TaskNoted,
    "DiskUsed": t.DiskUsed,
    "CheckChanged": t.CheckChanged,
    "NetworkReady": n.NetworkReady,
    "NetworkFailed": n.NetworkFailed,
    "NetworkLost": n.NetworkLost,
    "VolumeCreated": v.VolumeCreated,
    "VolumeNotMade": v.VolumeNotMade,
    "VolumeRemoved": v.VolumeRemoved,
    "VolumeNotRemoved": v.VolumeNotRemoved,
    "RemoteEnded": m.RemoteEnded,
    "NodeFound": t.NodeFound,
    "EndTasks": t.EndTasks,
    # Sealed bytes and ciphertext only.
    "KeyStoreOpened": k.KeyStoreOpened,
    "KeyStoreUnusable": k.KeyStoreUnusable,
    "ItemsSealed": k.ItemsSealed,
    "ItemsOpened": k.ItemsOpened,
    "VaultFailed": k.VaultFailed,
    "KeysErased": k.KeysErased,
    "SigningKeyMade": k.SigningKeyMade,
    "IdentitySigned": k.IdentitySigned,
    "SigningKeysErased": k.SigningKeysErased,
    "SealingKeyMade": k.SealingKeyMade,
    "KeysChecked": k.KeysChecked,
}
#: Tags of a role's effects.
EFFECTS: dict[str, type[msgspec.Struct]] = {
    "Append": r.Append,
    "Roll": r.Roll,
    "Send": r.Send,
    "Put": r.Put,
    "Ack": r.Ack,
    "Nak": r.Nak,
    "Reply": r.Reply,
    "SetTimer": r.SetTimer,
    "Open": r.Open,
    "Close": r.Close,
    "Purge": r.Purge,
    "Ask": r.Ask,
    "Rewind": r.Rewind,
    "Resign": r.Resign,
    "Stop": r.Stop,
    "WriteJournal": t.WriteJournal,
    "PrepareTask": t.PrepareTask,
    "CancelPrepare": t.CancelPrepare,
    "StartTask": t.StartTask,
    "RecoverTask": t.RecoverTask,
    "SignalTask": t.SignalTask,
    "KillTask": t.KillTask,
    "LimitLogs": t.LimitLogs,
    "WatchChecks": t.WatchChecks,
    "WatchInputs": t.WatchInputs,
    "RunChangeScript": t.RunChangeScript,
    "CloseAlloc": t.CloseAlloc,
    "RemoveAlloc": t.RemoveAlloc,
    "SweepAllocs": t.SweepAllocs,
    "TasksEnded": t.TasksEnded,
    "PrepareNetwork": n.PrepareNetwork,
    "CreateVolume": v.CreateVolume,
    "DeleteVolume": v.DeleteVolume,
    "DetachTask": m.DetachTask,
    "EndRemote": m.EndRemote,
    "OpenKeyStore": k.OpenKeyStore,
    "SealItems": k.SealItems,
    "OpenItems": k.OpenItems,
    "EraseKeys": k.EraseKeys,
    "MakeSigningKey": k.MakeSigningKey,
    "SignIdentity": k.SignIdentity,
    "EraseSigningKeys": k.EraseSigningKeys,
    "MakeSealingKey": k.MakeSealingKey,
    "CheckKeys": k.CheckKeys,
}
_TAG_OF_INPUT = {kind: tag for tag, kind in INPUTS.items()}


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Which role a tape is of. `given`: what it was made from beside its instance, by the names of its settings."""

    format: int
    role: str
    instance: str
    given: dict[str, Any]


class TapedRole:
    """A wrapper of a role that records its steps in a file."""

    def __init__(self, role: Role, path: Path, given: Mapping[str, object]) -> None:
        self._role = role
        # It contains job data: only the owner may read it.
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        values = {name: plain(value) for name, value in given.items()}
        self._write(Header(format=FORMAT, role=role.name, instance=role.instance, given=values))

    def __getattr__(self, name: str) -> Any:
        """All but the step is the role's own."""
        return getattr(self._role, name)

    def step(self, inputs: list[Input], now_ns: int) -> list[r.Effect]:
        """Write down what comes in, then step."""
        self._write([now_ns, tagged(inputs, _TAG_OF_INPUT)])
        return self._role.step(inputs, now_ns)

    def close(self) -> None:
        """End the tape; the end of the process does that, too."""
        self._file.close()

    def _write(self, entry: object) -> None:
        data = PACK.encode(entry)
        self._file.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
        # A killed role must leave the step that it died in.
        self._file.flush()


def record_to_tape(role: Role, folder: str, given: Mapping[str, object] | None = None) -> Role:
    """Let a role write `<name>-<instance>.tape` into `folder`; without one nothing is recorded.

    `given`: arguments that `bench/report/tape_replay.py` needs beside the instance to create the role. Raises
    ConfigInvalid for a folder that is not writable.
    """
    if not folder:
        return role
    path = Path(folder) / f"{role.name}-{role.instance}.tape"
    try:
        return cast("Role", TapedRole(role, path, given or {}))
    except OSError as err:
        raise ConfigInvalid(f"CARAVAN_TAPE: cannot write {path}: {err.strerror}") from err


# ---- wire bytes of inputs and effects ----


def plain(value: Any) -> Any:
    """Return a value without classes: what is on the wire as its JSON bytes, other Structs as a list of fields."""
    if isinstance(value, Wire | Event | Command):
        return ENCODER.encode(value)
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        return [plain(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, frozenset | set):
        return sorted(plain(one) for one in value)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value


def tagged(values: Iterable[Any], tags: Mapping[type, str]) -> list[list[Any]]:
    """Return inputs or effects as `[tag, field, …]`, in plain values and wire bytes."""
    return [[tags[type(one)], *plain_fields(one)] for one in values]


def plain_fields(value: msgspec.Struct) -> list[Any]:
    """Return the fields of an input or effect, in their order."""
    return [plain(getattr(value, name)) for name in value.__struct_fields__]
