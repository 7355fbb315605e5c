"""The error tree. Expected refusals are values (verdicts, events); errors are for what stops a process or is reported.

CaravanError
├── CommandInvalid        a message does not decode or validate: answered or dead-lettered, never an event
├── LogError              the log cannot be followed
│   ├── LogDamaged        gap, bad checksum, another chain at a current epoch
│   ├── UnknownEvent      written by a newer release: upgrade this process
│   └── StateDiverged     a checkpoint's hash differs from ours
├── LogDropped            the beginning of the log is in an archive alone
├── SnapshotUnusable      a snapshot that cannot be used or written
├── BusUnavailable        no connection, or the bus lacks what we need
└── ConfigInvalid         an environment variable or a data directory that cannot be used
"""


class CaravanError(Exception):
    """Base of all errors raised on purpose."""


class CommandInvalid(CaravanError):
    """A message does not decode or validate."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        #: the submission's own id, where that much could be read.
        self.submission_id = ""


class LogError(CaravanError):
    """The log cannot be followed beyond `seq`; `sound_seq` is the last record up to which it can."""

    def __init__(self, seq: int, message: str, sound_seq: int = -1) -> None:
        super().__init__(f"log record {seq}: {message}")
        self.seq = seq
        self.sound_seq = sound_seq if sound_seq >= 0 else seq - 1


class LogDamaged(LogError):
    """A gap, a bad checksum, or another chain at a current epoch."""


class UnknownEvent(LogError):
    """A record holds an event that this release does not know."""


class StateDiverged(LogError):
    """A checkpoint says that our tables are not those of the applier."""


class LogDropped(CaravanError):
    """What was asked for was dropped from the bus with its generation; `first_seq` is where the rest begins."""

    def __init__(self, first_seq: int) -> None:
        archive = "earlier records were dropped or lost; an export has it: --from-file DIR"
        super().__init__(f"the log on this bus begins at {first_seq}; {archive}")
        self.first_seq = first_seq


class SnapshotUnusable(CaravanError):
    """A snapshot that cannot be used or written; the text says why."""


class BusUnavailable(CaravanError):
    """The bus cannot be reached or does not offer what is needed."""


class ConfigInvalid(CaravanError):
    """A setting or a data directory cannot be used."""
