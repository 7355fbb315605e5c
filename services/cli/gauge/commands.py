"""The command `caravan gauge set`."""

from services.cli.command_spec import ArgumentSpec, CommandSpec, option_argument

COMMANDS = (
    CommandSpec(
        ("gauge", "set"),
        "publish the value of a gauge once",
        "gauge.publish:set_value",
        (
            ArgumentSpec("name", "name of the gauge", metavar="NAME"),
            ArgumentSpec("value", "a number", metavar="VALUE"),
            option_argument(
                "every", "it counts for three times as long (default 1m)", default="1m", metavar="T"
            ),
        ),
        {"": "gauge.publish:GaugeResult"},
        details="Gates in the update block of jobs name it. Nothing is kept: published no more, it closes them. "
        "A program publishes it on the subject gauge.NAME (docs/any-language.md).",
        examples=("gauge set queue_depth 120", "gauge set queue_depth 40 --every 10m"),
        changes=True,
    ),
)
