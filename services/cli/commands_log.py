"""The commands that roll the log and drop what is over of it. See `words.py`."""

from services.cli.words import Command, option

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
