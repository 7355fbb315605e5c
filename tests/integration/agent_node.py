"""An agent on a real node without a bus: the role, its edge and a shell of thirty lines.

`python agent_node.py DIR` is one as a process of its own, to be killed: projections come in on stdin, one JSON a line,
reports go out on stdout. The job of every version is the one in DIR/job.json.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from schemas.envelope import COMMANDS_DECODER, ENCODER
from schemas.job_answers import JobVersionAnswer
from schemas.nodes import NodeSpec
from schemas.projections import Query
from services.agent.drivers.driver import Driver
from services.agent.drivers.exec.isolated_drivers import isolated_drivers
from services.agent.drivers.exec.settings import ExecSettings
from services.agent.drivers.isolation.cgroups import CgroupTree
from services.agent.drivers.plugin.programs import plugin_drivers
from services.agent.drivers.raw_exec import RawExecDriver
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.executor.data_dir import DataDir
from services.agent.executor.executor import TaskExecutor
from services.agent.inputs.identities.handler import IdentityHandler, task_owner
from services.agent.inputs.identities.keeper_tokens import TokenSource
from services.agent.inputs.input_handler import InputHandler
from services.agent.inputs.secrets.handler import SecretHandler
from services.agent.inputs.secrets.plugins import SecretPlugins
from services.agent.inputs.templates.handler import TemplateHandler, task_view
from services.agent.inputs.templates.service_directory import ServiceSource
from services.agent.inputs.templates.variable_directory import VariableSource
from services.agent.inputs.vault.client import VaultClient
from services.agent.inputs.vault.handler import VaultHandler
from services.agent.inputs.vault.settings import VaultSettings
from services.agent.network.group_networks import GroupNetworks
from services.agent.network.settings import BridgeSettings
from services.agent.node_reconciler import AgentLimits
from services.agent.role import Agent
from services.agent.task_api.reads import TaskReads
from services.agent.task_api.sockets import TaskSockets
from shared.bus.process.settings import configure_logging
from shared.core.runtime.agent_messages import Answer, Ask, EndTasks
from shared.core.runtime.desired_allocs import DesiredAlloc
from shared.core.runtime.messages import Message, Send, SetTimer, Stop, Timer
from shared.core.state.ids import alloc_id
from tests.bounds import WAIT_S
from tests.fixed_services import FixedServices
from tests.fixed_tokens import FileTokens, FixedTokens
from tests.fixed_variables import FixedVariables
from tests.projected import projected

NODE = "n1"


def sh(script: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """A raw_exec task that runs a shell script."""
    config = {"command": "/bin/sh", "args": ["-c", script]}
    return {"Name": name, "Driver": "raw_exec", "Config": config, **more}


def job(*tasks: dict[str, Any], kind: str = "service", **group: Any) -> dict[str, Any]:
    """A job `j` with one group `g` that fails at once."""
    policy = {"Attempts": 0, "Mode": "fail"}
    one = {"Name": "g", "RestartPolicy": policy, "Tasks": list(tasks), **group}
    return {"ID": "j", "Name": "jay", "Type": kind, "TaskGroups": [one], "Meta": {"owner": "me"}}


def wanted(key: int, **more: Any) -> DesiredAlloc:
    """An allocation of the job."""
    shown = alloc_id(key)
    return DesiredAlloc(
        key=key, row=key, alloc_id=shown, job_id="j", version=0, group="g", index=key, **more
    )


def projection(seq: int, *keys: int, **more: dict[int, Any]) -> bytes:
    """What view would publish. `more`: fields of allocations, by key."""
    allocs = tuple(
        wanted(key, **{name: values[key] for name, values in more.items() if key in values})
        for key in keys
    )
    said = projected(allocs, cluster_id="c1", seq=seq, node_id=NODE)
    return ENCODER.encode(said)


def _networks(
    home: DataDir, drivers: dict[str, Driver], bridge: BridgeSettings | None
) -> GroupNetworks:
    """What makes networks of groups; None: nothing does."""
    return GroupNetworks(
        top=home.top,
        host_id=home.host_id,
        settings=bridge or BridgeSettings(enabled=False),
        pause=getattr(drivers.get("docker"), "pause", None),
    )


def _agent(home: DataDir, attributes: dict[str, str], settings: dict[str, Any]) -> Agent:
    """The role of a node with these attributes."""
    return Agent(
        node_id=NODE,
        instance="i1",
        host_id=home.host_id,
        boot_id=home.boot_id,
        spec=NodeSpec(node_id=NODE, name="one", attributes=attributes),  # type: ignore[arg-type]
        journal=home.journal.entries,
        settings=AgentLimits(**settings),
    )


class Node:
    """A node with an agent on it."""

    def __init__(
        self,
        top: Path,
        spec: dict[str, Any],
        *,
        memory: bool = False,
        more: Callable[[DataDir], Iterable[Driver]] = lambda _home: (),
        groups: CgroupTree | None = None,
        services: ServiceSource | None = None,
        tokens: TokenSource | None = None,
        variables: VariableSource | None = None,
        vault_addr: str = "",
        inputs: Callable[[DataDir], Iterable[InputHandler]] = lambda _home: (),
        bridge: BridgeSettings | None = None,
        **settings: Any,
    ) -> None:
        self.home = DataDir(top, NODE)
        self.spec = spec
        self.states: dict[int, Any] = {}
        self.stopped = ""
        self.changed = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._inbox: list[Any] = []
        self._awake = False
        self._plain = RawExecDriver(kernel_boot=self.home.kernel_boot, groups=groups)
        drivers = [self._plain, *more(self.home)]
        self.directories = AllocDirs(top.absolute(), memory=memory)
        by_name = {driver.name: driver for driver in drivers}
        signed = tokens or FixedTokens()
        vault = VaultClient(VaultSettings(addr=vault_addr)) if vault_addr else None
        self.vault = vault and VaultHandler(vault, signed, task_owner(by_name))
        known = self.vault and self.vault.secrets
        templates = TemplateHandler(
            self.home.top,
            task_view(by_name),
            services=services,
            variables=variables,
            secrets=known,
        )
        self.identities = IdentityHandler(signed, task_view(by_name), task_owner(by_name))
        # Beside the data directory, as an operator's folder is.
        plugins = SecretPlugins(str(top.absolute().parent / "plugins"))
        secrets = SecretHandler(plugins, variables=variables, vault=known)
        handlers: list[InputHandler] = [self.identities, templates, secrets, *inputs(self.home)]
        handlers += [self.vault] if self.vault is not None else []
        self.networks = _networks(self.home, by_name, bridge)
        reads = TaskReads(variables or FixedVariables(), services or FixedServices())
        self.edge = TaskExecutor(
            home=self.home,
            drivers=by_name,
            inject=self.put,
            directories=self.directories,
            handlers={one.kind: one for one in handlers},
            networks=self.networks,
            sockets=TaskSockets(self.home.top, task_owner(by_name), reads),
        )
        self._performers = {**self.edge.performers(), Ask: self._answer}
        self.agent = _agent(self.home, self.networks.fingerprint(), settings)

    def put(self, one: Any) -> None:
        """Hand an input to the role, with whatever else this turn of the loop brings."""
        self._inbox.append(one)
        if not self._awake:
            self._awake = True
            asyncio.get_running_loop().call_soon(self.turn)

    def hear(self, data: bytes) -> None:
        """A projection arrives."""
        self.put(Message("projection", "", data, token=0))

    def turn(self) -> None:
        """One step of the role."""
        self._awake = False
        inputs, self._inbox = self._inbox, []
        for effect in self.agent.step(inputs, time.time_ns()):
            if type(effect) in self._performers:
                self._performers[type(effect)](effect)
            elif isinstance(effect, SetTimer):
                self._set_timer(effect)
            elif isinstance(effect, Send) and "report" in effect.subject:
                self._read_report(effect.data)
            elif isinstance(effect, Stop):
                self.stopped = effect.reason
        self.changed.set()

    def _set_timer(self, effect: SetTimer) -> None:
        if effect.name in self._timers:
            self._timers.pop(effect.name).cancel()
        if effect.at_ns:
            delay_s = max(effect.at_ns - time.time_ns(), 0) / 1e9
            fired = Timer(effect.name, effect.at_ns)
            loop = asyncio.get_running_loop()
            self._timers[effect.name] = loop.call_later(delay_s, self.put, fired)

    def _read_report(self, data: bytes) -> None:
        for command in COMMANDS_DECODER.decode(data).commands:
            for state in command.states:  # type: ignore[union-attr]
                self.states[state.key] = state

    def _answer(self, ask: Ask) -> None:
        if not ask.data:
            # It looks for its projection: nothing is kept here.
            self.put(Answer(name=ask.name))
            return
        query = msgspec.json.decode(ask.data, type=Query)
        text = msgspec.Raw(ENCODER.encode(self.spec))
        found = JobVersionAnswer(seq=1, job_id=query.id, version=query.version, spec=text)
        self.put(Answer(name=ask.name, data=ENCODER.encode(found)))

    async def until(self, check: Any, within_s: float = WAIT_S) -> None:
        """Wait for a level. Raises TimeoutError with the states that there are."""
        try:
            async with asyncio.timeout(within_s):
                while not check():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise TimeoutError(f"states: {self.states}") from None

    def status(self, key: int = 1) -> str:
        """Client status of an allocation as last reported."""
        return self.states[key].status if key in self.states else ""

    def task(self, key: int = 1, name: str = "main") -> Any:
        """State of a task as last reported."""
        return self.states[key].tasks[name]

    async def end_tasks(self, *, at_once: bool = True) -> None:
        """The agent ends, and its tasks with it."""
        self.put(EndTasks(at_once=at_once))
        await asyncio.wait_for(self.edge.tasks_ended.wait(), WAIT_S)
        await self.edge.settle()

    async def close(self) -> None:
        """The agent goes, its tasks stay."""
        for timer in self._timers.values():
            timer.cancel()
        await self.edge.close()
        self._plain.close()

    def output(self, key: int = 1, name: str = "main") -> str:
        """What a task wrote to stdout."""
        path = self.home.places(alloc_id(key), name).stdout
        return path.read_text() if path.exists() else ""


def _isolated(home: DataDir) -> list[Driver]:
    return isolated_drivers(home.top, home.kernel_boot, ExecSettings())


def plugins_beside(home: DataDir) -> list[Driver]:
    """Start the driver plugins in the folder `drivers` beside the data directory."""
    return list(plugin_drivers(str(home.top.parent / "drivers"), home, os.environ))


async def _serve(top: Path) -> None:
    more: Callable[[DataDir], Iterable[Driver]] = lambda _home: ()  # noqa: E731 - as above.
    if "--isolated" in sys.argv:
        more = _isolated
    elif "--plugins" in sys.argv:
        more = plugins_beside
    spec = json.loads((top / "job.json").read_text())
    bridge = BridgeSettings() if "--bridge" in sys.argv else None
    said = top / "vault.addr"
    vault = said.read_text() if said.exists() else ""
    tokens = FileTokens(top / "tokens.json")
    node = Node(top, spec, more=more, tokens=tokens, vault_addr=vault, bridge=bridge)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 22)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    read_report = node._read_report

    def tell(data: bytes) -> None:
        read_report(data)
        os.write(1, data + b"\n")

    node._read_report = tell  # type: ignore[method-assign]
    node.turn()
    async for line in reader:
        node.hear(line)
    await node.close()


if __name__ == "__main__":
    # Stdout carries the reports.
    configure_logging("warning")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(Path(sys.argv[1])))
