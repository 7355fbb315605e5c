"""The commands `caravan volume …`."""

from services.cli.command_spec import (
    AT_OPTION,
    EXACT_JOB_ARGUMENT,
    JOB_OPTION,
    LIMIT_OPTION,
    ArgumentSpec,
    CommandSpec,
    Needs,
)

COMMANDS = (
    CommandSpec(
        ("volume", "claim", "list"),
        "list claims on sticky volumes",
        "volume.claims:list_all",
        (JOB_OPTION, LIMIT_OPTION, AT_OPTION),
        {"": "schemas.volume_answers:ClaimsAnswer"},
        Needs.LOG,
        "A claim says on which node the allocations of an index run, because its volume lies there.",
        ("volume claim list", "volume claim list --job db"),
    ),
    CommandSpec(
        ("volume", "claim", "release"),
        "release the claims of an index of a group",
        "volume.claims:release",
        (
            EXACT_JOB_ARGUMENT,
            ArgumentSpec("group", "name of the group", metavar="GROUP"),
            ArgumentSpec("index", "index of the allocation", int, metavar="INDEX"),
        ),
        {"": "volume.claims:ClaimReleaseResult"},
        details="The next allocation of the index claims a volume anew, wherever one is. What is in the old one "
        "stays there. Refused while an allocation of the index runs.",
        examples=("volume claim release db store 2",),
        changes=True,
    ),
)
