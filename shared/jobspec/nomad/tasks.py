"""The surroundings of a task's process: files, secrets, logs, lifecycle. Nomad's names and defaults."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from msgspec import field

from schemas.base import SECOND_NS
from shared.jobspec.nomad.base import EMPTY_OBJECT, JobBlock
from shared.jobspec.secret_references import find_references


class Lifecycle(JobBlock, frozen=True, kw_only=True):
    """The phase of an allocation in which a task runs."""

    #: prestart, poststart or poststop; ours: prestop (before a kill signal), postfail (a main task failed permanently).
    hook: str = field(name="Hook", default="")
    #: runs as long as the main tasks.
    sidecar: bool = field(name="Sidecar", default=False)


class LogConfig(JobBlock, frozen=True, kw_only=True):
    """Rotation of a task's output, and where it goes besides."""

    HCL: ClassVar[Mapping[str, str]] = {"MaxFileSizeMB": "max_file_size"}

    max_files: int = field(name="MaxFiles", default=10)
    max_file_size_mb: int = field(name="MaxFileSizeMB", default=10)
    disabled: bool = field(name="Disabled", default=False)
    #: of old files; the opposite of `disabled`.
    enabled: bool | None = field(name="Enabled", default=None)
    #: ours: send each line to the bus, where it can be read without the node; only where the operator allows it.
    ship: bool = field(name="Ship", default=False)


class DispatchPayload(JobBlock, frozen=True, kw_only=True):
    """The file with the payload of a dispatch."""

    file: str = field(name="File", default="")


class Artifact(JobBlock, frozen=True, kw_only=True):
    """A file or directory that is fetched before the task starts."""

    HCL: ClassVar[Mapping[str, str]] = {
        "GetterSource": "source",
        "GetterOptions": "options",
        "GetterHeaders": "headers",
        "GetterMode": "mode",
        "GetterInsecure": "insecure",
        "RelativeDest": "destination",
    }

    source: str = field(name="GetterSource", default="")
    options: dict[str, str] = field(name="GetterOptions", default_factory=dict)
    headers: dict[str, str] = field(name="GetterHeaders", default_factory=dict)
    #: any, file or dir.
    mode: str = field(name="GetterMode", default="any")
    insecure: bool = field(name="GetterInsecure", default=False)
    destination: str = field(name="RelativeDest", default="local/")
    chown: bool = field(name="Chown", default=False)


class TemplateWait(JobBlock, frozen=True, kw_only=True):
    """The delay before a changed template is rendered again."""

    min_ns: int | None = field(name="Min", default=None)
    max_ns: int | None = field(name="Max", default=None)


class ChangeScript(JobBlock, frozen=True, kw_only=True):
    """A command that runs in the task after a template changed."""

    command: str = field(name="Command", default="")
    args: tuple[str, ...] = field(name="Args", default=())
    timeout_ns: int = field(name="Timeout", default=5 * SECOND_NS)
    fail_on_error: bool = field(name="FailOnError", default=False)
    run_on_first_render: bool = field(name="RunOnFirstRender", default=False)


class TemplateBlock(JobBlock, frozen=True, kw_only=True):
    """A file that is rendered for the task."""

    HCL: ClassVar[Mapping[str, str]] = {
        "SourcePath": "source",
        "DestPath": "destination",
        "EmbeddedTmpl": "data",
        "LeftDelim": "left_delimiter",
        "RightDelim": "right_delimiter",
        "Envvars": "env",
        "ErrMissingKey": "error_on_missing_key",
    }

    source: str = field(name="SourcePath", default="")
    destination: str = field(name="DestPath", default="")
    data: str = field(name="EmbeddedTmpl", default="")
    #: restart, noop, signal or script.
    change_mode: str = field(name="ChangeMode", default="restart")
    change_signal: str = field(name="ChangeSignal", default="")
    change_script: ChangeScript | None = field(name="ChangeScript", default=None)
    once: bool = field(name="Once", default=False)
    splay_ns: int = field(name="Splay", default=5 * SECOND_NS)
    perms: str = field(name="Perms", default="0644")
    uid: int | None = field(name="Uid", default=None)
    gid: int | None = field(name="Gid", default=None)
    left_delimiter: str = field(name="LeftDelim", default="{{")
    right_delimiter: str = field(name="RightDelim", default="}}")
    env: bool = field(name="Envvars", default=False)
    vault_grace_ns: int = field(name="VaultGrace", default=0)
    wait: TemplateWait | None = field(name="Wait", default=None)
    error_on_missing_key: bool = field(name="ErrMissingKey", default=False)


class Vault(JobBlock, frozen=True, kw_only=True):
    """Access to Vault."""

    policies: tuple[str, ...] = field(name="Policies", default=())
    role: str = field(name="Role", default="")
    namespace: str = field(name="Namespace", default="")
    cluster: str = field(name="Cluster", default="default")
    env: bool = field(name="Env", default=True)
    disable_file: bool = field(name="DisableFile", default=False)
    change_mode: str = field(name="ChangeMode", default="restart")
    change_signal: str = field(name="ChangeSignal", default="SIGHUP")
    allow_token_expiration: bool = field(name="AllowTokenExpiration", default=False)


class Consul(JobBlock, frozen=True, kw_only=True):
    """The Consul cluster in which services are registered."""

    namespace: str = field(name="Namespace", default="")
    cluster: str = field(name="Cluster", default="default")
    partition: str = field(name="Partition", default="")


class Secret(JobBlock, frozen=True, kw_only=True):
    """A secret fetched before the task starts."""

    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    #: nomad, vault or a plugin's name.
    provider: str = field(name="Provider", default="")
    path: str = field(name="Path", default="")
    config: msgspec.Raw = field(name="Config", default=EMPTY_OBJECT)
    env: dict[str, str] = field(name="Env", default_factory=dict)

    @property
    def has_references(self) -> bool:
        """Whether it refers to other secrets, which is not built."""
        return next(find_references([self.path, self.env]), None) is not None


class Action(JobBlock, frozen=True, kw_only=True):
    """A named command that can be run inside the task."""

    LABEL: ClassVar[str] = "Name"

    name: str = field(name="Name", default="")
    command: str = field(name="Command", default="")
    args: tuple[str, ...] = field(name="Args", default=())


class CsiPlugin(JobBlock, frozen=True, kw_only=True):
    """The task is a storage plugin."""

    id: str = field(name="ID", default="")
    #: node, controller or monolith.
    type: str = field(name="Type", default="")
    mount_dir: str = field(name="MountDir", default="/csi")
    stage_publish_base_dir: str = field(name="StagePublishBaseDir", default="/local/csi")
    health_timeout_ns: int = field(name="HealthTimeout", default=30 * SECOND_NS)
