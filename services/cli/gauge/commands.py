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
                "every",
                "interval at which you publish the value; it expires after three times that",
                default="1m",
                metavar="T",
            ),
        ),
        {"": "gauge.publish:GaugeResult"},
        details="A gate in the update block of a job refers to a gauge by its name. The value is not stored: it "
        "expires when it is no longer published, and gates that use it close. A program "
        "publishes it on the subject gauge.NAME (docs/any-language.md).",
        examples=("gauge set queue_depth 120", "gauge set queue_depth 40 --every 10m"),
        changes=True,
    ),
)
