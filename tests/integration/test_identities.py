"""Identities on a real node: tokens in their places before a start, renewed, kept over a kill, and nowhere else."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import pytest_asyncio

from services.agent.drivers.exec.settings import ExecSettings, TaskUser
from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.inputs.digests import InputDigests
from services.agent.inputs.identities import handler as identity_handler
from services.agent.inputs.identities.handler import IdentityHandler
from services.agent.inputs.identities.token_times import boot_time_s, kept_times, token_mark
from services.agent.inputs.input_runner import InputRunner
from services.agent.inputs.templates import missing_data
from shared.core.runtime.agent_messages import TaskInput, TaskPrepareFailed
from shared.core.runtime.input_specs import IdentityInput
from shared.core.state.ids import alloc_id
from tests.bounds import level
from tests.fixed_tokens import FixedTokens
from tests.integration.agent_node import job, projection, sh
from tests.integration.exec_node import NEEDED, need
from tests.integration.followed_node import ALLOC, FollowedNode
from tests.integration.test_agent_adoption import started_and_orphaned
from tests.integration.test_agent_directories import node_at
from tests.integration.test_exec_agent import drivers, shell

pytestmark = pytest.mark.asyncio
HOUR_NS = 3600 * 10**9
VAULT = {"Name": "vault", "Audience": ["vault.io"], "TTL": HOUR_NS}
ORDER = '"$NOMAD_ALLOC_DIR/data/order"'


def lines(top: Path) -> list[str]:
    """What the task of allocation 1 wrote, line by line."""
    path = top / "alloc" / alloc_id(1) / "alloc" / "data" / "order"
    return path.read_text().splitlines() if path.exists() else []


def names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def token_file(top: Path, name: str = "nomad_vault.jwt") -> Path:
    return top / "alloc" / alloc_id(1) / "main" / "secrets" / name


def with_text(top: Path, text: bytes) -> set[str]:
    """Names of the files that hold a text; at least the journal and the records of the run are looked at."""
    files = [one for one in top.rglob("*") if one.is_file()]
    assert len(files) > 5
    return {one.name for one in files if text in one.read_bytes()}


def command_lines() -> str:
    """The arguments of all processes."""
    return "".join(" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))


# ---- a whole agent ----


async def test_a_task_finds_its_tokens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The default one and a named one, in its file with mode 0600 and in its variable; in no other text (A6)."""
    script = f'echo "$NOMAD_TOKEN $NOMAD_TOKEN_vault $(cat secrets/nomad_token local/v)" > {ORDER}; sleep 300'
    named = {**VAULT, "Env": True, "File": True, "Filepath": "local/v"}
    both = {"Identity": {"Env": True, "File": True}, "Identities": [named]}
    tokens = FixedTokens()
    async with node_at(tmp_path, job(sh(script, **both)), tokens=tokens) as node:
        node.hear(projection(5, 1))
        await level(lambda: lines(tmp_path))
        given = ["token.default.1 token.vault.2 token.default.1token.vault.2"]
        other = ["token.default.2 token.vault.1 token.default.2token.vault.1"]
        assert lines(tmp_path) in (given, other)
        found = token_file(tmp_path, "nomad_token").stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid())
        shown = json.dumps(msgspec.to_builtins(node.states))
        assert "token." not in shown
        assert with_text(tmp_path, b"token.default.") == {"order", "nomad_token"}
        assert with_text(tmp_path, b"token.vault.") == {"order", "v"}
        assert "token.default." not in command_lines()
    said = capfd.readouterr()
    assert "task.started" in said.out and "token." not in said.out + said.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_a_task_of_another_user_reads_its_token(tmp_path: Path) -> None:
    """Driver exec: the file belongs to the task's user, and stands where the task sees its secrets."""
    need(*NEEDED)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    script = 'cat "$NOMAD_SECRETS_DIR/nomad_token" && stat -c " %u %a" "$NOMAD_SECRETS_DIR/nomad_token"; sleep 300'
    spec = job(shell(script, Identity={"File": True}))
    more = drivers(ExecSettings())
    async with node_at(tmp_path, spec, tokens=FixedTokens(), more=more) as node:
        node.hear(projection(5, 1))
        await level(lambda: node.output().endswith("600\n"), lambda: node.states)
        user = ExecSettings().user_of("")
        assert isinstance(user, TaskUser) and user.uid != os.geteuid()
        assert node.output() == f"token.default.1 {user.uid} 600\n"


#: Tokens live a second: on a busy machine a task was looked at between two runs, its token renewed before it was read.
_RESTARTED = pytest.param("restart", marks=pytest.mark.full("depends on load"))


@pytest.mark.parametrize("mode", [_RESTARTED, "signal", "noop"])
async def test_a_renewed_token_reaches_its_task(tmp_path: Path, mode: str) -> None:
    """By a restart that costs no attempt, by a signal, or as a file alone."""
    script = (
        f'say() {{ echo "$NOMAD_TOKEN_vault $(cat secrets/nomad_vault.jwt)" >> {ORDER}; }}\n'
        "trap say HUP\nsay\nwhile true; do sleep 0.05; done"
    )
    more = {"ChangeSignal": "SIGHUP"} if mode == "signal" else {}
    identity = {**VAULT, "Env": True, "File": True, "ChangeMode": mode, **more}
    tokens = FixedTokens()
    tokens.life_s = {"vault": 1}
    spec = job(sh(script, Identities=[identity]))
    async with node_at(tmp_path, spec, tokens=tokens) as node:
        node.hear(projection(5, 1))
        await level(lambda: lines(tmp_path))
        if mode == "noop":
            await level(lambda: token_file(tmp_path).read_text() >= "token.vault.3")
            assert (len(lines(tmp_path)), node.task().restarts) == (1, 0)
            return
        await level(lambda: len(lines(tmp_path)) >= 3, lambda: node.states)
        pairs = [line.split() for line in lines(tmp_path)]
        # A slow machine renews the first one before its task has said anything.
        assert pairs[2][1] > pairs[1][1] > pairs[0][1]
        if mode == "restart":
            assert all(one == other for one, other in pairs)
            assert node.task().restarts >= 2
        else:
            assert len({one for one, _ in pairs}) == 1 and pairs[2][1] != pairs[2][0]
            assert node.task().restarts == 0
        await level(lambda: node.status() == "running", lambda: node.states)


async def test_a_killed_agent_leaves_the_token_in_place(tmp_path: Path) -> None:
    """S66: a token that lives is neither asked for again nor a change, in a file or in the environment alone."""
    identities = [
        {**VAULT, "File": True, "ChangeMode": "restart"},
        {**VAULT, "Name": "env", "Env": True, "ChangeMode": "restart"},
    ]
    (tmp_path / "tokens.json").write_text('{"life_s": 3600}')
    spec = job(sh("sleep 300", Identities=identities))
    pid = await started_and_orphaned(tmp_path, spec)
    before = token_file(tmp_path).read_text()
    tokens = FixedTokens()
    async with node_at(tmp_path, spec, tokens=tokens) as node:
        node.hear(projection(7, 1))
        held = node.identities._held
        await level(lambda: [one.times for one in held.get(alloc_id(1), {}).values()] != [])
        await level(lambda: all(one.times for one in held[alloc_id(1)].values()))
        await node.until(lambda: node.task().pid == pid)
        assert (len(held[alloc_id(1)]), node.task().restarts, tokens.asked) == (2, 0, [])
        assert token_file(tmp_path).read_text() == before


async def test_a_token_that_expired_meanwhile_is_signed_anew(tmp_path: Path) -> None:
    """S66: by the next life of the agent, which performs its change_mode."""
    script = f'echo "$NOMAD_TOKEN_vault" >> {ORDER}; sleep 300'
    identity = {**VAULT, "Env": True, "ChangeMode": "restart"}
    (tmp_path / "tokens.json").write_text('{"life_s": 1}')
    spec = job(sh(script, Identities=[identity]))
    await started_and_orphaned(tmp_path, spec)
    tokens = FixedTokens()
    tokens.life_s = {"vault": 3600}
    async with node_at(tmp_path, spec, tokens=tokens) as node:
        node.hear(projection(6, 1))
        await level(lambda: lines(tmp_path)[-1:] == ["token.vault.1"], lambda: node.states)
        assert node.task().restarts >= 1


# ---- its inputs alone ----


SLOW = TaskInput(name="slow", kind="slow", spec=msgspec.Raw(b"{}"))


class SlowHandler:
    """An input of a later stage, while which is made time passes."""

    kind = event_kind = "slow"
    begin_kind = ""
    stage = 0
    timeout_s: float | None = None

    def __init__(self, node: "IdentityNode") -> None:
        self._node = node

    async def prepare(self, _about: object, _wanted: object) -> bytes:
        """Let time pass."""
        self._node.passed_s += self._node.slow_s
        return b""


class IdentityNode(FollowedNode):
    """One task whose identities are prepared and followed."""

    owner: tuple[int, int] | OSError = (-1, -1)
    #: by how much the clock is ahead, and how long the slow input takes.
    passed_s = slow_s = 0.0

    def begin(self) -> None:
        """Begin a life of the agent."""
        super().begin()
        self.tokens = FixedTokens()
        self.identities = IdentityHandler(
            self.tokens,
            lambda _driver, places: places.variables(),
            lambda _driver, _user: self.owner,
            lambda: boot_time_s() + self.passed_s,
        )
        directories = AllocDirs(self.home.top, memory=False)
        made = (self.identities, SlowHandler(self))
        self.runner = InputRunner(self.home, directories, {one.kind: one for one in made})

    def digest(self, token: str) -> str:
        """The digest that the role knows a token by."""
        return InputDigests(self.home.top).of(token_mark(token).encode())

    def secret(self, name: str = "nomad_vault.jwt") -> Path:
        """A file below `secrets/`."""
        return self.places.task / "secrets" / name


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[IdentityNode]:
    made = IdentityNode(tmp_path / "data")
    yield made
    await made.close()


def identity(
    name: str = "vault", file: str = "secrets/nomad_vault.jwt", **fields: Any
) -> TaskInput:
    spec = IdentityInput(identity=name, file=file, **fields)
    raw = msgspec.Raw(msgspec.json.encode(spec))
    return TaskInput(name=f"identity[{name}]", kind="identity", spec=raw, in_memory=True)


async def test_a_start_waits_for_the_keeper_and_says_so(
    node: IdentityNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All names in one event; the answer ends the wait, and a stop does."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    monkeypatch.setattr(identity_handler, "RESEND_S", 0.0)
    node.tokens.is_silent = True
    node.prepare(identity(), identity("default", env=True, file=""))
    said = "Missing: default, vault, waits for the keeper"
    await level(lambda: node.notes()[-1:] == [said], node.notes)
    node.tokens.is_silent = False
    await node.answer()
    assert node.secret().read_text().startswith("token.vault.")


async def test_a_start_begins_with_a_token_that_lives(node: IdentityNode) -> None:
    """Where other inputs took longer than it lives it is signed anew; one that does not expire is not."""
    node.tokens.life_s = {"vault": 3600}
    node.slow_s = 3500.0
    given = (identity(), identity("default", file="secrets/nomad_token"), SLOW)
    await node.prepared(*given)
    assert node.secret().read_text() in ("token.vault.1", "token.vault.2")
    node.tokens.asked.clear()
    node.slow_s = 3601.0
    digests = await node.prepared(*given, run=2)
    asked = [name for _, _, name in node.tokens.asked]
    assert sorted(asked) == ["default", "vault", "vault"]
    assert node.secret().read_text() == "token.vault.5"
    assert digests["identity[vault]"] == node.digest("token.vault.5")


async def test_a_refusal_fails_the_start_after_a_grace(
    node: IdentityNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper may hear of an allocation later than its node; another task of the node is not touched."""
    monkeypatch.setattr(identity_handler, "RESEND_S", 0.0)
    node.tokens.refusal = "forbidden: not here"
    node.prepare(identity())
    await level(lambda: len(node.tokens.asked) > 3)
    assert not [one for one in node.told if isinstance(one, TaskPrepareFailed)]
    monkeypatch.setattr(identity_handler, "GRACE_S", 0.0)
    failed = await node.answer()
    assert isinstance(failed, TaskPrepareFailed)
    assert (failed.kind, failed.recoverable) == ("Task hook failed", True)
    assert failed.reason == "identity vault is not signed: forbidden: not here"
    node.tokens.refusal = ""
    await node.prepared(identity(), run=2)


async def test_the_file_is_the_tasks_own(node: IdentityNode) -> None:
    """Its user alone reads it; root gives it away."""
    if os.geteuid() == 0:
        node.owner = (12_345, 12_346)
    await node.prepared(identity())
    found = node.secret().stat()
    expected = (12_345, 12_346) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (*expected, 0o600)


async def test_no_link_leads_a_token_out(node: IdentityNode, tmp_path: Path) -> None:
    """A3: a link in the place of the directory is a final fault, one in the place of the file is replaced."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "target").write_text("mine")
    await node.prepared(identity())
    node.secret().unlink()
    node.secret().symlink_to(outside / "target")
    await node.prepared(identity(), run=2)
    assert not node.secret().is_symlink() and (outside / "target").read_text() == "mine"
    (node.places.task / "local" / "sub").symlink_to(outside)
    node.prepare(identity(file="local/sub/token"), run=3)
    failed = await node.answer(3)
    assert isinstance(failed, TaskPrepareFailed) and not failed.recoverable
    assert "symbolic link" in failed.reason and names(outside) == ["target"]
    node.prepare(identity(file="../../x"), run=4)
    failed = await node.answer(4)
    assert isinstance(failed, TaskPrepareFailed) and "leaves" in failed.reason


async def test_a_file_that_cannot_be_written_fails_the_start(node: IdentityNode) -> None:
    """S65: of a named identity, too; a directory in its place stays there, so that it is final."""
    await node.prepared(identity())
    node.secret("taken").mkdir()
    node.prepare(identity(file="secrets/taken"), run=2)
    failed = await node.answer(2)
    assert isinstance(failed, TaskPrepareFailed)
    assert (failed.kind, failed.recoverable) == ("Task hook failed", False)
    assert "secrets/taken" in failed.reason and names(node.secret("taken")) == []


async def test_each_identity_is_renewed_in_its_own_time(node: IdentityNode) -> None:
    """S64: only the one whose life is short is signed anew, and told; one that does not expire never is."""
    node.tokens.life_s = {"short": 1, "long": 3600}
    names = ("short", "long", "always")
    given = [identity(name, file="", env=True) for name in names]
    await node.followed(*given)
    await level(lambda: len(node.changes()) >= 2)
    assert {one.input for one in node.changes()} == {"identity[short]"}
    asked = [name for _, _, name in node.tokens.asked]
    assert (asked.count("long"), asked.count("always")) == (1, 1)
    token = node.identities.environment(ALLOC, "main", given[0])["NOMAD_TOKEN_short"]
    assert token.startswith("token.short.") and token != "token.short.1"


async def test_a_keeper_that_is_away_leaves_the_token(
    node: IdentityNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event says so once; the next answer is taken, however late."""
    monkeypatch.setattr(identity_handler, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(identity_handler, "RETRY_EXPIRED_S", 0.01)
    node.tokens.life_s = {"vault": 1}
    await node.followed(identity())
    before = node.secret().read_text()
    node.tokens.is_silent = True
    await level(lambda: len(node.tokens.asked) > 5)
    assert node.notes() == ["identity vault is not renewed yet: the keeper does not answer"]
    assert node.secret().read_text() == before
    node.tokens.is_silent = False
    await level(node.changes)
    assert node.secret().read_text() != before


async def test_a_change_that_the_role_has_not_heard_of_is_told_by_the_next_life(
    node: IdentityNode,
) -> None:
    """The agent was killed between the new token and the journal: its times tell that it is another one."""
    node.tokens.life_s = {"vault": 3600}
    one = identity(ttl_ns=HOUR_NS)
    first = await node.prepared(one)
    second = await node.prepared(one, run=2)
    assert first != second
    await node.restart()
    node.watch(one, digests=second, run=3)
    node.watch(one, digests=first, run=4)
    (change,) = await level(node.changes)
    assert (change.run, {one.name: change.digest}) == (4, second)
    assert node.tokens.asked == []


async def test_what_is_kept_is_no_token(node: IdentityNode) -> None:
    """Beside the runs stand times and a mark; what cannot be read is as if there was none."""
    node.tokens.life_s = {"vault": 60}
    await node.prepared(identity(file="", env=True))
    text = (node.places.runs / "identity-vault.json").read_text()
    assert "token." not in text
    found = kept_times(node.home.top, node.places.runs, "vault")
    assert found is not None and found.life_s == 60
    (node.places.runs / "identity-vault.json").write_text("{")
    assert kept_times(node.home.top, node.places.runs, "vault") is None
    assert kept_times(node.home.top, node.places.runs, "other") is None


async def test_an_allocation_that_is_over_leaves_no_token_in_memory(node: IdentityNode) -> None:
    """A start after it would not find one."""
    one = identity(file="", env=True)
    await node.followed(one)
    assert node.identities.environment(ALLOC, "main", one) == {"NOMAD_TOKEN_vault": "token.vault.1"}
    assert node.identities.environment(ALLOC, "main", identity()) == {}
    node.runner.forget(ALLOC)
    with pytest.raises(KeyError):
        node.identities.environment(ALLOC, "main", one)
    await asyncio.sleep(0)
