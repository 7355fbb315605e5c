"""The commands that roll the log and drop what is over of it. See `words.py`."""

from services.cli.words import Arg, Command, option

ROLL = Command(
    ("log", "roll"),
    "let the log go on in another stream",
    "services.cli.rolls",
    "roll",
    (
        option(
            "generation",
            "the generation that shall be over; without: the newest",
            int,
            default=0,
            metavar="N",
        ),
    ),
    ("generation", "request_id", "status", "changed", "seq", "cluster_id"),
    "Every service follows by itself. Numbers of records run on. A generation that is over can be dropped: log drop.",
    ("log roll", "log roll --generation 1"),
)

_GENERATION = Arg("generation", "number of the generation", int, metavar="GENERATION")
_ARCHIVE = Arg("archive", "an export that holds it (caravan log export)", metavar="DIR")
_KEYS = (
    "generation",
    "first_seq",
    "last_seq",
    "records",
    "snapshot_seq",
    "archive",
    "cluster_id",
)

DROP = Command(
    ("log", "drop"),
    "take an old generation of the log off the bus",
    "services.cli.drops",
    "drop",
    (_GENERATION, _ARCHIVE),
    _KEYS,
    "Refused unless it is the oldest and over, the archive holds every record of it byte for byte, and a snapshot "
    "behind it can be restored. Needs the administrator's password (CARAVAN_CREDENTIALS). Fresh services then begin at "
    "a snapshot; a newer release may need what was dropped: log restore.",
    ("log drop 1 ./archive",),
)

RESTORE = Command(
    ("log", "restore"),
    "put a dropped generation of the log back onto the bus",
    "services.cli.drops",
    "restore",
    (_GENERATION, _ARCHIVE),
    _KEYS,
    "For a release that cannot read the snapshots of the one before: it replays the log from its beginning. The newest "
    "of several comes back first.",
    ("log restore 1 ./archive",),
)
