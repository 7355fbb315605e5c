"""The commands `caravan operator keyring …`."""

from services.cli.command_spec import (
    ArgumentSpec,
    CommandSpec,
    Needs,
    flag_argument,
    option_argument,
)

_DATA_DIR = option_argument(
    "data_dir",
    "data directory of a running `caravan up` (default: CARAVAN_KEEPER_*, else the selected cluster of this machine)",
    metavar="DIR",
    complete="file",
)
_PASSPHRASE = option_argument(
    "passphrase_file",
    "file with the passphrase, one line (default: asked for on the terminal)",
    metavar="FILE",
    complete="file",
)
_HERE = (
    "Runs on the machine of a keeper, with its folder or command for the key-encryption key and its login of the bus "
    "(CARAVAN_KEEPER_*, CARAVAN_NATS_URL, CARAVAN_CREDENTIALS)."
)

COMMANDS = (
    CommandSpec(
        ("operator", "keyring", "list"),
        "list the keys that clients seal variables with, and those that sign identities",
        "operator.keyring:list_all",
        (),
        {"": "operator.keyring:KeyringListResult"},
        details="Of each kind newest first; the first one is in force. A sealing key that was replaced opens nothing "
        "any more after a day. A signing key verifies tokens until it is removed.",
        examples=("operator keyring list",),
    ),
    CommandSpec(
        ("operator", "keyring", "rotate"),
        "make another sealing key, or signing key, which is in force from then on",
        "operator.keyring:rotate",
        (
            flag_argument("signing", "the key that signs identities"),
            option_argument(
                "in_force",
                "only if this key is in force (default: whichever is when the command begins)",
                metavar="KEY_ID",
            ),
        ),
        {"": "operator.keyring:KeyringChangeResult"},
        details="What clients sealed for the former key is taken for a day. Values that are stored are not affected. "
        "Tokens that the former signing key signed verify until it is removed.",
        examples=("operator keyring rotate", "operator keyring rotate --signing"),
        changes=True,
    ),
    CommandSpec(
        ("operator", "keyring", "remove"),
        "remove a signing key that is not in force",
        "operator.keyring:remove",
        (ArgumentSpec("key_id", "id of the key", metavar="KEY_ID"),),
        {"": "operator.keyring:KeyringChangeResult"},
        details="The tokens that it signed verify no more, and its private part is erased. Sealing keys are erased by "
        "the keeper, a day after they were replaced.",
        examples=("operator keyring remove 0123456789abcdef",),
        changes=True,
    ),
    CommandSpec(
        ("operator", "keyring", "rewrap"),
        "wrap all keys by the next key-encryption key",
        "operator.keyring_files:rewrap",
        (
            _DATA_DIR,
            flag_argument("prepare", "make the next key, `kek.next` in the keeper's folder, alone"),
        ),
        {
            "": "operator.keyring_files:RewrapResult",
            "with --prepare": "operator.keyring_files:PrepareResult",
        },
        Needs.NOTHING,
        f"{_HERE} The next key is the file `kek.next`, which --prepare makes, or what CARAVAN_KEEPER_NEXT_KEK_COMMAND "
        "prints. Copy it to every keeper first. Keepers answer all the while; a keeper without it raises an alarm, and "
        "answers again once it is there. May be cut at any point and run again. At the end `kek.next` is `kek`.",
        ("operator keyring rewrap --prepare", "operator keyring rewrap"),
    ),
    CommandSpec(
        ("operator", "keyring", "export"),
        "write all keys into a file that a passphrase opens",
        "operator.keyring_files:export",
        (
            ArgumentSpec("file", "file, which must not exist", metavar="FILE", complete="file"),
            _DATA_DIR,
            _PASSPHRASE,
        ),
        {"": "operator.keyring_files:KeyringExportResult"},
        Needs.NOTHING,
        f"{_HERE} The file and its passphrase open every value of the log that is not erased when it is written.",
        (
            "operator keyring export keyring.export",
            "operator keyring export keyring.export --passphrase-file passphrase",
        ),
    ),
    CommandSpec(
        ("operator", "keyring", "import"),
        "write the keys of an export into a key store that is missing or empty",
        "operator.keyring_files:import_file",
        (
            ArgumentSpec("file", "file of `keyring export`", metavar="FILE", complete="file"),
            _DATA_DIR,
            _PASSPHRASE,
        ),
        {"": "operator.keyring_files:KeyringImportResult"},
        Needs.NOTHING,
        f"{_HERE} They are wrapped by the key-encryption key that is there, or by a new one. An export of another "
        "cluster is refused. Values that were erased since the export stay erased.",
        ("operator keyring import keyring.export",),
    ),
)
