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
from collections.abc import Sequence

import msgspec

from services.agent.drivers.isolation import landlock
from services.agent.inputs.forking import serve
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID, give_up_rights
from services.agent.inputs.templates.dotenv import DotenvInvalid, read_dotenv
from services.agent.inputs.templates.render_order import DataGiven, RenderAnswer, RenderOrder
from shared.gotemplate.data import NamedInstance, ServiceName, Variable
from shared.gotemplate.errors import TemplateError
from shared.gotemplate.functions.catalog import UNBUILT_SOURCES, FunctionPolicy
from shared.gotemplate.syntax.constants import bytes_of, text_of
from shared.gotemplate.template import Template, parse_template
from shared.jobspec.checks.templates import FILE_UNWATCHED
from shared.jobspec.drivers.switches import TEMPLATE_DENYLIST

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
        self.take(order.given)
        self.begin()

    def begin(self) -> None:
        """Begin a pass."""
        self.reads_clock = False
        self.missing_files: dict[str, None] = {}
        self.missing_env: dict[str, None] = {}
        self.missing_services: dict[str, None] = {}
        self.read: dict[str, None] = {}

    def take(self, given: DataGiven) -> None:
        """Add what the agent gave."""
        self._files |= given.files
        self._env |= given.env
        self._services |= given.services
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

    def service(self, name: str) -> Sequence[NamedInstance] | None:
        """List the instances of a service."""
        self.read[name] = None
        if name not in self._services:
            self.missing_services[name] = None
            return None
        return self._services[name]

    def services(self) -> Sequence[ServiceName] | None:
        """List all services."""
        self.read[""] = None
        if self._names is None:
            self.missing_services[""] = None
        return self._names

    def variable(self, path: str) -> Variable | None:
        """Refuse: the check of the functions comes first."""
        raise TemplateError(f"variables are not built yet: {path[:40]}")

    def variable_exists(self, path: str) -> bool | None:
        """Refuse: the check of the functions comes first."""
        raise TemplateError(f"variables are not built yet: {path[:40]}")

    def variables(self, prefix: str) -> list[Variable] | None:
        """Refuse: the check of the functions comes first."""
        raise TemplateError(f"variables are not built yet: {prefix[:40]}")


def unbuilt_functions(*, reads_files: bool) -> dict[str, str]:
    """Name what a template may not use: pattern -> reason."""
    return {**UNBUILT_SOURCES, **({} if reads_files else {"file": FILE_UNWATCHED})}


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
    read = tuple(data.read)
    # A variable that is not known yet counts as one that is not set: whatever came of it does not count.
    if found.fault is not None and not data.missing_env:
        return RenderAnswer(fault=str(found.fault), read=read)
    if found.missing or data.missing_env:
        return RenderAnswer(
            files=tuple(data.missing_files),
            env=tuple(data.missing_env),
            services=tuple(data.missing_services),
            read=read,
        )
    try:
        variables = read_dotenv(found.text) if order.is_env else {}
    except DotenvInvalid as err:
        return RenderAnswer(fault=str(err), read=read)
    return RenderAnswer(text=bytes_of(found.text), variables=variables, read=read)
