"""The render helper: one process for one template, which gives up all rights before it reads what others wrote.

Forked by a process that loads all modules (inputs/forking.py); a RenderOrder comes over its socket, and it answers each
line with one. It opens no file: what a template reads is asked of the agent, also variables of the task, and the
template is rendered anew with it. So it knows of the task what its template uses, and nothing else. Its work is bounded
by the engine's budget, and by limits on memory and processor time.
"""

import codecs
import contextlib
import os
import resource
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from services.agent.drivers.isolation import landlock
from services.agent.inputs.forking import serve
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID, give_up_rights
from services.agent.inputs.templates.dotenv import DotenvInvalid, read_dotenv
from services.agent.inputs.templates.render_order import (
    CHECKED,
    META,
    SECRET,
    SECRET_NAMES,
    SERVICE,
    VARIABLE,
    DataGiven,
    DataRead,
    RenderAnswer,
    RenderOrder,
)
from shared.gotemplate.data import NamedInstance, ServiceName, Variable, VaultSecret
from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.catalog import FunctionPolicy
from shared.gotemplate.syntax.constants import bytes_of, text_of
from shared.gotemplate.template import Rendered, Template, parse_template
from shared.jobspec.checks.templates import FILE_UNWATCHED, NO_VAULT
from shared.jobspec.drivers.switches import TEMPLATE_DENYLIST
from shared.protocol.task_variables import path_refusal, prefix_refusal

_MEMORY_BYTES = 1 << 30
#: The engine's budget ends a pass long before.
_PROCESSOR_S = 20
#: Passes that each ask for other data.
PASSES_MAX = 16
_TOO_MANY = RenderAnswer(fault=f"data decides about further data more than {PASSES_MAX} times")
#: What most templates do, and after how many passes the interpreter has adapted its code to it.
_WARM_TEXT = """{{ $name := env "WARM" -}}
{{ range $at, $one := nomadService "warm" -}}
W{{ $at }}={{ .Address }}:{{ .Port }}:{{ .Tags | join "," }}:{{ printf "%q" $one.Name }}
{{ else }}{{ end -}}
{{ if and (eq $name "on") (ne $name "") }}NAME={{ $name }}{{ else }}{{ end -}}
{{ with $name }}{{ . | toUpper }}{{ end }}"""
_WARM_PASSES = 16
#: Stands for the text of every item of a variable, to find out what depends on them.
_MASK = "(item of a variable)"
_HIDDEN_FAULT = "its reason may hold an item of a variable, and is not shown"
#: Loaded while modules can still be read.
_CODECS = ("utf-8", "ascii", "latin-1")


class _GivenData:
    """The data of one template, as far as the agent gave it; what is missing is noted."""

    def __init__(self, order: RenderOrder) -> None:
        self.now = order.now_ns
        self._files: dict[str, bytes] = {}
        self._env: dict[str, str | None] = {}
        self._services: dict[str, tuple[NamedInstance, ...]] = {}
        self._names: tuple[ServiceName, ...] | None = None
        self._readable = order.readable
        self._variables: dict[str, Variable] = {}
        self._metas: dict[str, Variable | None] = {}
        self._has_vault = order.has_vault
        self._secrets: dict[str, VaultSecret] = {}
        self._secret_names: dict[str, tuple[str, ...]] = {}
        #: it has items of a variable, or a secret.
        self.has_secrets = False
        #: items have other texts than they have: a pass that shows what depends on them.
        self.is_masked = False
        self.take(order.given)
        self.begin()

    def begin(self) -> None:
        """Begin a pass."""
        self.reads_clock = False
        self.missing_files: dict[str, None] = {}
        self.missing_env: dict[str, None] = {}
        self.lacks: dict[DataRead, None] = {}
        self.read: dict[DataRead, None] = {}

    def take(self, given: DataGiven) -> None:
        """Add what the agent gave."""
        self._files |= given.files
        self._env |= given.env
        self._services |= given.services
        self._variables |= given.variables
        self._metas |= given.metas
        self._secrets |= given.secrets
        self._secret_names |= given.secret_names
        self.has_secrets = bool(self._variables or self._secrets)
        if given.names is not None:
            self._names = given.names

    def env(self, name: str) -> str | None:
        """Read a variable of the task, or a value of its node."""
        if name in self._env:
            return self._env[name]
        if not name.isascii() and bytes_of(name).decode(errors="replace") != name:
            # No text, and so no name of a variable.
            return None
        self.missing_env[name] = None
        return None

    def file(self, path: str) -> str | None:
        """Read a file."""
        if path not in self._files:
            self.missing_files[path] = None
            return None
        return text_of(self._files[path])

    def now_ns(self) -> int:
        """Return when the order was made, or another time that is always the same."""
        self.reads_clock = True
        return self.now

    def service(self, name: str, *, checked: bool = False) -> Sequence[NamedInstance] | None:
        """List the instances of a service."""
        name = CHECKED + name if checked else name
        found = self._services.get(name)
        return found if self._note(DataRead(SERVICE, name), is_known=found is not None) else None

    def services(self) -> Sequence[ServiceName] | None:
        """List all services."""
        self._note(DataRead(SERVICE, ""), is_known=self._names is not None)
        return self._names

    def variable(self, path: str) -> Variable | None:
        """Read a variable. Raises TemplateError."""
        if refusal := path_refusal(path, self._readable):
            raise TemplateError(refusal)
        found = self._variables.get(path)
        self._note(DataRead(VARIABLE, path), is_known=found is not None)
        if found is None or not self.is_masked:
            return found
        return msgspec.structs.replace(found, items=dict.fromkeys(found.items, _MASK))

    def variable_exists(self, path: str) -> bool | None:
        """Say whether a variable exists. Raises TemplateError."""
        if refusal := path_refusal(path, self._readable):
            raise TemplateError(refusal)
        if not self._note(DataRead(META, path), is_known=path in self._metas):
            return None
        return self._metas[path] is not None

    def variables(self, prefix: str) -> Sequence[Variable] | None:
        """List those that exist. Raises TemplateError."""
        if refusal := prefix_refusal(prefix, self._readable):
            raise TemplateError(refusal)
        paths = sorted(one for one in self._readable if one.startswith(prefix))
        notes = [self._note(DataRead(META, one), is_known=one in self._metas) for one in paths]
        if not all(notes):
            return None
        return [one for one in map(self._metas.get, paths) if one is not None]

    def secret(self, path: str) -> VaultSecret | None:
        """Read a secret of Vault. Raises TemplateError."""
        self._check_vault()
        found = self._secrets.get(path)
        self._note(DataRead(SECRET, path), is_known=found is not None)
        if found is None or not self.is_masked:
            return found
        return msgspec.structs.replace(found, data=_masked(found.data), lease_id=_MASK)

    def secret_names(self, path: str) -> Sequence[str] | None:
        """List the names of secrets of Vault. Raises TemplateError."""
        self._check_vault()
        is_known = path in self._secret_names
        return (
            self._secret_names[path]
            if self._note(DataRead(SECRET_NAMES, path), is_known=is_known)
            else None
        )

    def _check_vault(self) -> None:
        if not self._has_vault:
            raise TemplateError(NO_VAULT)

    def _note(self, read: DataRead, *, is_known: bool) -> bool:
        self.read[read] = None
        if not is_known:
            self.lacks[read] = None
        return is_known


def _masked(value: Any) -> Any:
    """Put other texts and numbers in the place of those of a secret."""
    if isinstance(value, Mapping):
        return {name: _masked(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_masked(one) for one in value]
    return _MASK if isinstance(value, str) else 0 if type(value) in {int, float} else value


def unbuilt_functions(*, reads_files: bool) -> dict[str, str]:
    """Name what a template may not use: pattern -> reason."""
    return {} if reads_files else {"file": FILE_UNWATCHED}


def main() -> None:
    """Serve the socket that is descriptor 0: one helper for each socket that comes over it."""
    for name in _CODECS:
        codecs.lookup(name)
    warm_up()
    serve(socket.socket(fileno=0), _work)


def warm_up() -> RenderAnswer:
    """Render a text of our own, since helpers inherit the caches of the interpreter that it fills; returns the last."""
    warm = NamedInstance(id="warm", name="warm", address="10.0.0.1", port=80, tags=("a", "b"))
    given = DataGiven(env={"WARM": "on"}, services={"warm": (warm, warm)})
    line = msgspec.json.encode(RenderOrder(data=_WARM_TEXT, is_env=True, given=given))
    answer = RenderAnswer()
    for _ in range(_WARM_PASSES):
        order = msgspec.json.decode(line, type=RenderOrder)
        answer = _render(order, _parsed(order), _GivenData(order))
        msgspec.json.encode(answer)
    return answer


def _work(agent: socket.socket, parent_pid: int) -> None:
    """Render one template."""
    _give_up_rights(parent_pid)
    with agent.makefile("rb") as lines:
        order = msgspec.json.decode(lines.readline(), type=RenderOrder)
        data = _GivenData(order)
        template = _parsed(order)
        for left in reversed(range(PASSES_MAX)):
            answer = _render(order, template, data)
            if not answer.is_whole and not left:
                answer = _TOO_MANY
            agent.sendall(msgspec.json.encode(answer) + b"\n")
            if answer.is_whole or not (line := lines.readline()):
                break
            data.take(msgspec.json.decode(line, type=DataGiven))


def _give_up_rights(parent_pid: int) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: _MEMORY_BYTES,
        resource.RLIMIT_CPU: _PROCESSOR_S,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    user = UNPRIVILEGED_ID if os.geteuid() == 0 else -1
    give_up_rights(owner=(user, user), parent_pid=parent_pid, limits=limits)
    with contextlib.suppress(OSError):
        # Files are out of reach since before the fork; a domain of its own keeps it from other helpers' processes, too.
        # A kernel without it: no descriptor can be opened, either.
        landlock.restrict(read=(), write=())
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def _parsed(order: RenderOrder) -> Template:
    policy = FunctionPolicy(
        denied=dict.fromkeys(order.denied, f"is not allowed on this node ({TEMPLATE_DENYLIST})"),
        unbuilt=unbuilt_functions(reads_files=order.reads_files),
    )
    text = order.data if order.source is None else text_of(order.source)
    delimiters = (order.left_delimiter, order.right_delimiter)
    return parse_template(text, delimiters=delimiters, policy=policy)


def _render(order: RenderOrder, template: Template, data: _GivenData) -> RenderAnswer:
    try:
        answer = _pass(order, template, data)
        if not (data.reads_clock and answer.is_whole) or answer.fault:
            return answer
        data.now = 0
        timeless = _pass(order, template, data)
    except MemoryError:
        return RenderAnswer(fault="the template exceeds its limit of memory")
    finally:
        data.now = order.now_ns
    if not timeless.is_whole or timeless.fault:
        # What it reads depends on the time, and so does what it is.
        return answer
    read = tuple(dict.fromkeys(answer.read + timeless.read))
    return msgspec.structs.replace(answer, timeless=timeless.text, read=read)


def _pass(order: RenderOrder, template: Template, data: _GivenData) -> RenderAnswer:
    data.begin()
    found = template.render(data, is_missing_key_error=order.error_on_missing_key)
    files, env, lacks = tuple(data.missing_files), tuple(data.missing_env), tuple(data.lacks)
    read = tuple(data.read)
    # A variable that is not known yet counts as one that is not set: whatever came of it does not count.
    if found.fault is not None and not env:
        return RenderAnswer(fault=_shown_fault(order, template, data, found), read=read)
    if found.missing or env:
        is_secret = _depends_on_items(order, template, data, found)
        return RenderAnswer(
            files=files, env=env, lacks=lacks, missing=found.missing, is_secret=is_secret, read=read
        )
    try:
        variables = read_dotenv(found.text) if order.is_env else {}
    except DotenvInvalid as err:
        return RenderAnswer(fault=str(err), read=read)
    return RenderAnswer(text=bytes_of(found.text), variables=variables, read=read)


def _shown_fault(order: RenderOrder, template: Template, data: _GivenData, found: Rendered) -> str:
    """Describe a fault, unless its text comes from items of variables."""
    assert found.fault is not None
    if _depends_on_items(order, template, data, found):
        return str(msgspec.structs.replace(found.fault, message=_HIDDEN_FAULT))
    return str(found.fault)


def _depends_on_items(
    order: RenderOrder, template: Template, data: _GivenData, found: Rendered
) -> bool:
    """Say whether a fault, or what is missing, would be another one if the items had other texts."""
    if not data.has_secrets:
        return False
    data.is_masked = True
    try:
        other = template.render(data, is_missing_key_error=order.error_on_missing_key)
    finally:
        data.is_masked = False
    return (other.fault, other.missing) != (found.fault, found.missing)
