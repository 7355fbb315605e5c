"""The command `caravan top`."""

from services.cli.command_spec import AT_OPTION, CommandSpec, Needs

COMMANDS = (
    CommandSpec(
        ("top",),
        "show the cluster in the terminal, live, at a past moment or from an export",
        "top.run:run",
        (AT_OPTION,),
        needs=Needs.LOG,
        details="Needs a terminal of at least 80 columns and 24 rows, and the extra `tui`. ? lists the keys. With --at "
        "it begins at that moment; n returns to the present.",
        examples=("top", "top --at 2026-01-31T12:00:00", "top --from-file ./export"),
    ),
)
