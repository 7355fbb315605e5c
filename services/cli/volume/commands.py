"""The commands `caravan volume …`."""

from services.cli.command_spec import (
    AT_OPTION,
    EXACT_JOB_ARGUMENT,
    JOB_OPTION,
    LIMIT_OPTION,
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_VOLUME = ArgumentSpec("volume", "volume: id, unique prefix or name", metavar="VOLUME")
_DETACH = flag_argument("detach", "do not wait for the node")

COMMANDS = (
    CommandSpec(
        ("volume", "create"),
        "create a host volume on a node",
        "volume.host_volumes:create",
        (
            ArgumentSpec(
                "file",
                "specification, HCL or JSON; - for stdin",
                default="",
                metavar="FILE",
                complete="file",
            ),
            option_argument(
                "spec_format",
                "hcl or json: what the specification is written in (default: by the end of its name; stdin: hcl)",
                flag="--in",
                metavar="WORD",
                complete="(hcl json)",
            ),
            option_argument(
                "volume_id",
                "id, a UUID; the same id makes no second volume",
                flag="--id",
                metavar="UUID",
            ),
            option_argument("name", "name by which jobs ask for it", metavar="NAME"),
            option_argument(
                "node_id",
                "node: id, unique prefix or name (default: one that can have it is chosen)",
                flag="--node",
                complete="node",
            ),
            option_argument("node_pool", "pool of the node", metavar="POOL"),
            option_argument("plugin", "plugin that makes it (default: mkdir)", metavar="NAME"),
            option_argument("capacity_min", "least size, as 10GiB", metavar="SIZE"),
            option_argument("capacity_max", "largest size, as 20GiB", metavar="SIZE"),
            option_argument(
                "access_mode", "way in which it may be used; may be repeated", list, metavar="MODE"
            ),
            option_argument(
                "parameter", "parameter of the plugin; may be repeated", list, metavar="NAME=VALUE"
            ),
            _DETACH,
        ),
        {"": "volume.host_volumes:VolumeCreateResult"},
        details="Waits until the node has made the volume. Options take precedence over the specification. A volume "
        "that failed is tried again with its --id. Exit code 1: it failed; 2: its node has not answered within 75 s "
        "(docs/volumes.md).",
        examples=(
            "volume create data.volume.hcl",
            "volume create --name data --access-mode single-node-writer --node client-1 --parameter uid=1000",
        ),
        changes=True,
    ),
    CommandSpec(
        ("volume", "list"),
        "list host volumes that were created by request",
        "volume.host_volumes:list_all",
        (
            option_argument(
                "node_id", "on this node, the exact id", flag="--node", complete="node"
            ),
            option_argument(
                "status",
                "of this status",
                metavar="STATUS",
                complete="(pending ready failed deleting unavailable)",
            ),
            LIMIT_OPTION,
            AT_OPTION,
        ),
        {"": "schemas.volume_answers:VolumesAnswer"},
        Needs.LOG,
        "Volumes that the operator of a node names in the agent's settings are not among them: they are attributes of "
        "the node.",
        ("volume list", "volume list --status failed"),
    ),
    CommandSpec(
        ("volume", "status"),
        "show a host volume",
        "volume.host_volumes:show",
        (_VOLUME, AT_OPTION),
        {"": "schemas.volume_answers:VolumeLine"},
        Needs.LOG,
        examples=("volume status data",),
    ),
    CommandSpec(
        ("volume", "delete"),
        "delete a host volume with what is in it",
        "volume.host_volumes:delete",
        (
            _VOLUME,
            flag_argument("force", "forget it where its node is down or gone; what is there stays"),
            _DETACH,
        ),
        {"": "volume.host_volumes:VolumeDeleteResult"},
        details="Refused while an allocation uses it or an index claims it. Exit code 2: its node has not deleted it "
        "yet, and tries again.",
        examples=("volume delete data",),
        changes=True,
    ),
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
