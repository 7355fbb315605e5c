"""The options of each kind of task input, as they travel in `TaskInput.spec`.

The agent's role fills them (services/agent/tasks/task_inputs.py), a handler of the same kind reads them
(services/agent/inputs/).
"""

import msgspec

PAYLOAD = "payload"
ARTIFACT = "artifact"
TEMPLATE = "template"
IDENTITY = "identity"
SECRET = "secret"
VAULT = "vault"
DISK = "disk"


class DiskInput(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the allocation that is replaced, where that one was on another node (`ephemeral_disk.migrate`)."""

    #: shown id of that allocation.
    previous: str
    #: names of all tasks of the group: each has its `local/`.
    tasks: tuple[str, ...]
    #: what all of it may take.
    size_mib: int


class PayloadInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the job was dispatched with, as a file below the task's `local/`."""

    file: str
    data: bytes


class ArtifactInput(msgspec.Struct, frozen=True, kw_only=True):
    """A file or an archive that is fetched; Nomad's fields."""

    source: str
    options: dict[str, str] = {}
    headers: dict[str, str] = {}
    #: any, file or dir.
    mode: str = "any"
    insecure: bool = False
    destination: str = "local/"
    chown: bool = False


class TemplateInput(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is rendered; Nomad's fields."""

    #: exactly one of the two.
    data: str = ""
    source: str = ""
    destination: str
    left_delimiter: str = ""
    right_delimiter: str = ""
    #: octal.
    perms: str = "0644"
    #: -1: the agent's user.
    uid: int = -1
    gid: int = -1
    #: its lines become variables of the task.
    env: bool = False
    error_on_missing_key: bool = False
    #: `file` may be used: the job does not ask for its file to be watched.
    reads_files: bool = False
    #: of the task: it decides under which names the task sees its directories.
    driver: str = ""
    #: a later rendering waits so long for further changes, and at most so long in all; -1: as the node's operator says.
    wait_min_ns: int = -1
    wait_max_ns: int = -1
    #: values of `node.…`, `attr.…` and `meta.…`, where the template may use them.
    node: dict[str, str] = {}


class IdentityInput(msgspec.Struct, frozen=True, kw_only=True):
    """A signed token of the task; Nomad's fields."""

    #: `default`: that of the block without a name.
    identity: str
    #: it becomes a variable of the task: NOMAD_TOKEN, or NOMAD_TOKEN_ and the name.
    env: bool = False
    #: where it is written, relative to the task's directory; empty: nowhere.
    file: str = ""
    #: how long a token is worth something; 0: as long as the allocation lives.
    ttl_ns: int = 0
    #: of the task: it decides whose the file is, and under which names the task sees its directories.
    driver: str = ""


class SecretInput(msgspec.Struct, frozen=True, kw_only=True):
    """Values that are fetched before the start, for `${secret.NAME.KEY}`; Nomad's fields."""

    secret: str
    #: nomad, or the name of a program in the operator's folder.
    provider: str
    path: str
    #: of a program.
    env: dict[str, str] = {}


class VaultInput(msgspec.Struct, frozen=True, kw_only=True):
    """A token of Vault that the task logs in for; Nomad's fields."""

    #: empty: that of the node's settings.
    role: str = ""
    namespace: str = ""
    #: it becomes VAULT_TOKEN of the task.
    env: bool = True
    disable_file: bool = False
    #: it is not renewed.
    allows_expiration: bool = False
    #: of the task: it decides whose the file is.
    driver: str = ""
