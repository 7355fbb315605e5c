"""The commands `caravan service …`."""

from services.cli.command_spec import (
    AT_OPTION,
    JOB_OPTION,
    LIMIT_OPTION,
    VERBOSE_FLAG,
    ArgumentSpec,
    CommandSpec,
    Needs,
    option_argument,
)

COMMANDS = (
    CommandSpec(
        ("service", "list"),
        "list services",
        "service.listing:list_all",
        (JOB_OPTION, LIMIT_OPTION, AT_OPTION),
        {"": "schemas.answers:ServicesAnswer"},
        Needs.LOG,
        "A service is listed while an allocation that declares it runs.",
        ("service list", "service list --job web"),
    ),
    CommandSpec(
        ("service", "info"),
        "show where the instances of a service are",
        "service.listing:info",
        (
            ArgumentSpec("name", "name of the service", metavar="NAME", complete="service"),
            JOB_OPTION,
            option_argument(
                "status",
                "passing, warning, pending, critical or unknown",
                metavar="WORD",
                complete="(passing warning pending critical unknown)",
            ),
            LIMIT_OPTION,
            AT_OPTION,
            VERBOSE_FLAG,
        ),
        {"": "schemas.answers:ServiceAnswer"},
        Needs.LOG,
        "Exit 1 for a name that no running allocation declares.",
        ("service info web", "service info web --status passing"),
    ),
)
