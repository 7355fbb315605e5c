"""The render helper: one process for one template, which gives up all rights before it reads what others wrote.

Forked by a process that loads all modules (inputs/forking.py); a RenderOrder comes over its socket, and it answers each
line with one. It opens no file: what a template reads is asked of the agent, and the template is
rendered anew with it. Its work is bounded by the engine's budget, and by limits on memory and processor time.
"""

import codecs
import contextlib
import os
import resource
import socket

import msgspec

from services.agent.drivers.isolation import landlock
from services.agent.inputs.forking import serve
from services.agent.inputs.helper_rights import UNPRIVILEGED_ID, give_up_rights
from services.agent.inputs.templates.dotenv import DotenvInvalid, read_dotenv
from services.agent.inputs.templates.render_order import FilesGiven, RenderAnswer, RenderOrder
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
#: Passes that each ask for other files.
PASSES_MAX = 16
_TOO_MANY = RenderAnswer(fault=f"files decide about further files more than {PASSES_MAX} times")
#: Loaded while modules can still be read.
_CODECS = ("utf-8", "ascii", "latin-1")


class _FixedData:
    """The data of one template. `asked`: files that are not known yet."""

    def __init__(self, order: RenderOrder) -> None:
        self._order = order
        self.files: dict[str, bytes] = {}
        self.asked: dict[str, None] = {}

    def env(self, name: str) -> str | None:
        """Read a variable of the task, or a value of its node."""
        return self._order.env.get(name)

    def file(self, path: str) -> str | None:
        """Read a file that the agent gave."""
        if path not in self.files:
            self.asked[path] = None
            return None
        return text_of(self.files[path])

    def now_ns(self) -> int:
        """Return when the order was made."""
        return self._order.now_ns

    def service(self, name: str) -> list[NamedInstance] | None:
        """Refuse: the check of the functions comes first."""
        raise TemplateError(f"services are not built yet: {name[:40]}")

    def services(self) -> list[ServiceName] | None:
        """Refuse, as `service`."""
        raise TemplateError("services are not built yet")

    def variable(self, path: str) -> Variable | None:
        """Refuse, as `service`."""
        raise TemplateError(f"variables are not built yet: {path[:40]}")

    def variable_exists(self, path: str) -> bool | None:
        """Refuse, as `service`."""
        raise TemplateError(f"variables are not built yet: {path[:40]}")

    def variables(self, prefix: str) -> list[Variable] | None:
        """Refuse, as `service`."""
        raise TemplateError(f"variables are not built yet: {prefix[:40]}")


def unbuilt_functions(*, reads_files: bool) -> dict[str, str]:
    """Name what a template may not use: pattern -> reason."""
    return {**UNBUILT_SOURCES, **({} if reads_files else {"file": FILE_UNWATCHED})}


def main() -> None:
    """Serve the socket that is descriptor 0: one helper for each socket that comes over it."""
    for name in _CODECS:
        codecs.lookup(name)
    serve(socket.socket(fileno=0), _work)


def _work(agent: socket.socket, parent_pid: int) -> None:
    """Render one template."""
    _give_up_rights(parent_pid)
    with agent.makefile("rb") as lines:
        order = msgspec.json.decode(lines.readline(), type=RenderOrder)
        data = _FixedData(order)
        template = _parsed(order)
        for left in reversed(range(PASSES_MAX)):
            answer = _render(order, template, data)
            if answer.missing and not left:
                answer = _TOO_MANY
            agent.sendall(msgspec.json.encode(answer) + b"\n")
            if not answer.missing:
                break
            data.files |= msgspec.json.decode(lines.readline(), type=FilesGiven).files


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


def _render(order: RenderOrder, template: Template, data: _FixedData) -> RenderAnswer:
    data.asked.clear()
    try:
        found = template.render(data, is_missing_key_error=order.error_on_missing_key)
        if found.fault is not None:
            return RenderAnswer(fault=str(found.fault))
        if found.missing:
            return RenderAnswer(missing=tuple(data.asked))
        variables = read_dotenv(found.text) if order.is_env else {}
    except DotenvInvalid as err:
        return RenderAnswer(fault=str(err))
    except MemoryError:
        return RenderAnswer(fault="the template exceeds its limit of memory")
    return RenderAnswer(text=bytes_of(found.text), variables=variables)
