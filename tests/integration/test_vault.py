"""Vault for tasks of a real node: tokens in their places, renewed, kept over a kill; secrets in templates."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from services.agent.executor.alloc_dirs import AllocDirs
from services.agent.inputs.identities.token_times import boot_time_s
from services.agent.inputs.input_runner import InputRunner
from services.agent.inputs.templates import missing_data
from services.agent.inputs.templates.handler import TemplateHandler
from services.agent.inputs.vault import handler as vault_handler
from services.agent.inputs.vault import secret_directory
from services.agent.inputs.vault.client import VaultClient
from services.agent.inputs.vault.handler import VaultHandler
from services.agent.inputs.vault.settings import VaultSettings
from shared.core.runtime.agent_messages import TaskInput, TaskPrepareFailed
from shared.core.runtime.input_specs import VaultInput
from shared.core.state.ids import alloc_id
from tests.bounds import level
from tests.fake_vault import PREFIX, FakeVault, fake_vault
from tests.fixed_tokens import FixedTokens
from tests.integration.agent_node import job, projection, sh
from tests.integration.followed_node import FollowedNode, template
from tests.integration.test_agent_adoption import started_and_orphaned
from tests.integration.test_agent_directories import node_at

pytestmark = pytest.mark.asyncio
FILE = "vault_token"


@pytest.fixture
def vault() -> Iterator[FakeVault]:
    """A server."""
    with fake_vault() as one:
        yield one


def said(top: Path) -> list[str]:
    """What the task of allocation 1 wrote, line by line."""
    path = top / "alloc" / alloc_id(1) / "alloc" / "data" / "said"
    return path.read_text().splitlines() if path.exists() else []


def with_text(top: Path, text: bytes) -> set[str]:
    """Names of the files that hold a text."""
    files = [one for one in top.rglob("*") if one.is_file()]
    assert len(files) > 5
    return {one.name for one in files if text in one.read_bytes()}


SAY = 'echo "$VAULT_ADDR $VAULT_TOKEN $(cat secrets/vault_token)" >> "$NOMAD_ALLOC_DIR/data/said"; sleep 300'


# ---- a whole agent ----


async def test_a_task_logs_in_and_reads(
    vault: FakeVault, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Token in file and variable, a template and a secret block read with it; its texts are nowhere else."""
    vault.versioned["web"] = {"password": "s3cr3t-91", "port": 5432}
    script = f'echo "$(cat local/t) $DB" > "$NOMAD_ALLOC_DIR/data/read"; {SAY}'
    task = sh(
        script,
        Vault={"Role": "web", "Namespace": "team"},
        Env={"DB": "${secret.db.password}"},
        Secrets=[{"Name": "db", "Provider": "vault", "Path": "secret/data/web"}],
        Templates=[
            {
                "DestPath": "local/t",
                "EmbeddedTmpl": '{{ with secret "secret/web" }}{{ .Data.data.password }}:{{.Data.data.port}}{{ end }}',
            }
        ],
    )
    tokens = FixedTokens()
    async with node_at(tmp_path, job(task), tokens=tokens, vault_addr=vault.address) as node:
        node.hear(projection(5, 1))
        await level(lambda: said(tmp_path), lambda: node.states)
        assert said(tmp_path) == [f"{vault.address} {PREFIX}.1 {PREFIX}.1"]
        read = tmp_path / "alloc" / alloc_id(1) / "alloc" / "data" / "read"
        assert read.read_text() == "s3cr3t-91:5432 s3cr3t-91\n"
        method, path, headers, body = vault.asked[0]
        assert (method, path) == ("POST", "auth/jwt-nomad/login")
        assert (headers["X-Vault-Namespace"], body["role"]) == ("team", "web")
        assert body["jwt"] == "token.vault_default.1"
        file = tmp_path / "alloc" / alloc_id(1) / "main" / "secrets" / FILE
        assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_uid) == (0o600, os.geteuid())
        shown = json.dumps(msgspec.to_builtins(node.states))
        assert PREFIX not in shown and "s3cr3t" not in shown
        assert with_text(tmp_path, PREFIX.encode()) == {FILE, "said"}
        assert with_text(tmp_path, b"s3cr3t") == {"t", "read"}
    out = capfd.readouterr()
    assert PREFIX not in out.out + out.err and "s3cr3t" not in out.out + out.err


async def test_a_killed_agent_finds_the_token_again(vault: FakeVault, tmp_path: Path) -> None:
    """The next life logs in for nothing, and the task runs on; its followed template is served with the token."""
    vault.versioned["web"] = {"v": "one"}
    block = {
        "DestPath": "local/t",
        "EmbeddedTmpl": '{{ with secret "secret/data/web" }}{{ .Data.data.v }}{{ end }}',
        "ChangeMode": "noop",
    }
    spec = job(sh(SAY, Vault={}, Templates=[block]))
    (tmp_path / "vault.addr").write_text(vault.address)
    pid = await started_and_orphaned(tmp_path, spec)
    vault.versioned["web"] = {"v": "two"}
    async with node_at(tmp_path, spec, vault_addr=vault.address) as node:
        node.hear(projection(6, 1))
        file = tmp_path / "alloc" / alloc_id(1) / "main" / "local" / "t"
        await level(lambda: file.read_text() == "two", lambda: (node.states, vault.asked))
        await node.until(lambda: node.task().pid == pid)
        assert (len(vault.tokens), node.task().restarts) == (1, 0)


async def test_a_token_that_the_task_changed_is_not_taken_up(
    vault: FakeVault, tmp_path: Path
) -> None:
    """The next life logs in anew, and performs the change_mode, without an attempt of the restart policy."""
    spec = job(sh(SAY, Vault={"ChangeMode": "restart"}))
    (tmp_path / "vault.addr").write_text(vault.address)
    await started_and_orphaned(tmp_path, spec)
    await level(lambda: said(tmp_path))
    (tmp_path / "alloc" / alloc_id(1) / "main" / "secrets" / FILE).write_text("hvs.other")
    async with node_at(tmp_path, spec, vault_addr=vault.address) as node:
        node.hear(projection(6, 1))
        await level(lambda: len(said(tmp_path)) == 2, lambda: node.states)
        assert said(tmp_path)[1] == f"{vault.address} {PREFIX}.2 {PREFIX}.2"
        texts = [one.message for one in node.task().events]
        assert any("vault was logged in for anew" in one for one in texts), texts


async def test_a_refused_login_is_a_failed_start(vault: FakeVault, tmp_path: Path) -> None:
    """403 counts under the restart policy, with the reason; neither token nor identity is in it."""
    vault.fails["auth/jwt-nomad/login"] = 403
    async with node_at(tmp_path, job(sh(SAY, Vault={})), vault_addr=vault.address) as node:
        node.hear(projection(5, 1))
        await node.until(lambda: node.status() == "failed")
        (failed,) = [one for one in node.task().events if one.kind == "Task hook failed"]
        assert "no login at Vault: status 403: permission denied" in failed.message
        assert "token.vault" not in json.dumps(msgspec.to_builtins(node.states))


# ---- its inputs alone ----


class VaultNode(FollowedNode):
    """One task whose token is prepared and followed."""

    passed_s = 0.0
    address = ""

    def begin(self) -> None:
        """Begin a life of the agent."""
        super().begin()
        self.tokens = FixedTokens()
        self.vault = VaultHandler(
            VaultClient(VaultSettings(addr=self.address)),
            self.tokens,
            lambda _driver, _user: (-1, -1),
            lambda: boot_time_s() + self.passed_s,
        )
        self.vault.secrets._clock = lambda: boot_time_s() + self.passed_s
        self.handler = TemplateHandler(
            self.home.top,
            lambda _driver, places: places.variables(),
            self.settings,
            self.services,
            secrets=self.vault.secrets,
        )
        directories = AllocDirs(self.home.top, memory=False)
        made = {one.kind: one for one in (self.vault, self.handler)}
        self.runner = InputRunner(self.home, directories, made)  # type: ignore[arg-type]

    def token(self) -> str:
        """What the task reads."""
        return (self.places.task / "secrets" / FILE).read_text()


@pytest_asyncio.fixture
async def node(tmp_path: Path, vault: FakeVault) -> AsyncIterator[VaultNode]:
    VaultNode.address = vault.address
    made = VaultNode(tmp_path / "data")
    yield made
    await made.close()


def block(**fields: Any) -> TaskInput:
    raw = msgspec.Raw(msgspec.json.encode(VaultInput(**fields)))
    return TaskInput(name="vault", kind="vault", spec=raw, in_memory=True)


READ = '{{ with secret "secret/data/web" }}{{ .Data.data.v }}{{ end }}'


async def test_a_start_waits_for_vault_and_says_so(
    vault: FakeVault, node: VaultNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed, failing, away, or a standby: the start waits, an event says why; the answer ends the wait."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    monkeypatch.setattr(vault_handler, "RESEND_FIRST_S", 0.01)
    vault.is_sealed = True
    node.prepare(block())
    text = "Missing: token (status 503: Vault is sealed), waits for Vault"
    await level(lambda: node.notes()[-1:] == [text], node.notes)
    # A redirect is not followed: the token would go to an address that no operator allowed.
    vault.is_sealed, vault.fails["auth/jwt-nomad/login"] = False, 307
    text = "status 307: redirected, name the active server"
    await level(lambda: any(text in one for one in node.notes()), node.notes)
    del vault.fails["auth/jwt-nomad/login"]
    await node.answer()
    assert node.token() == f"{PREFIX}.1"


async def test_a_token_is_renewed_at_half_of_its_life(vault: FakeVault, node: VaultNode) -> None:
    """It stays the same token, and nothing has changed for the task."""
    vault.life_s = 2
    await node.followed(block())
    await level(lambda: vault.count("auth/token/renew-self") >= 2)
    assert (node.changes(), node.token(), len(vault.tokens)) == ([], f"{PREFIX}.1", 1)


@pytest.mark.parametrize("why", ["refused", "not renewable", "at its end"])
async def test_a_renewal_that_does_not_help_is_a_new_login(
    vault: FakeVault, node: VaultNode, why: str
) -> None:
    """Another token, which is a change; a leased secret is read anew, as its lease ends with the old token."""
    vault.dynamic["database/creds/web"] = 3600
    vault.life_s = 2
    secret = template('{{ with secret "database/creds/web" }}{{ .Data.username }}{{ end }}')
    await node.followed(block(), secret)
    await node.reads("user-1")
    if why == "refused":
        vault.fails["auth/token/renew-self"] = 403
    vault.is_renewable = why != "not renewable"
    vault.renewed_s = 0 if why == "at its end" else None
    await level(node.changes, lambda: vault.asked)
    vault.life_s = 3600
    vault.fails.clear()
    assert node.changes()[0].input == "vault" and node.token() != f"{PREFIX}.1"
    await level(lambda: node.path().read_text() not in {"", "user-1"}, lambda: node.told)


async def test_a_token_outlives_a_sealed_vault(
    vault: FakeVault, node: VaultNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals are tried until it expires, and then logins; an event says why, the task runs on."""
    monkeypatch.setattr(vault_handler, "RETRY_FIRST_S", 0.05)
    vault.life_s = 3600
    await node.followed(block())
    vault.is_sealed = True
    node.passed_s = 3601.0
    await node.restart()
    node.watch(block(), digests={}, run=1)
    await level(lambda: any("not logged in anew" in one for one in node.notes()), node.notes)
    vault.is_sealed = False
    await level(lambda: node.token() == f"{PREFIX}.2")
    assert len(vault.tokens) == 2


async def test_a_token_may_expire_where_the_job_says_so(vault: FakeVault, node: VaultNode) -> None:
    """It is neither renewed nor made anew."""
    vault.life_s = 1
    wanted = block(allows_expiration=True)
    digests = await node.prepared(wanted)
    node.passed_s = 5.0
    node.watch(wanted, digests=digests)
    await asyncio.sleep(0)
    await node.runner.settle()
    assert (vault.count("auth/token/renew-self"), len(vault.tokens)) == (0, 1)


async def test_a_token_without_file_and_variable(vault: FakeVault, node: VaultNode) -> None:
    """It serves templates alone."""
    vault.versioned["web"] = {"v": "one"}
    await node.followed(block(disable_file=True, env=False), template(READ))
    assert not (node.places.task / "secrets" / FILE).exists()
    assert node.path().read_text() == "one"
    given = node.vault.environment(node.places.shared.parent.name, "main", block(env=False))
    assert given == {"VAULT_ADDR": vault.address}


async def test_a_secret_that_changed_is_rendered_anew(vault: FakeVault, node: VaultNode) -> None:
    """One without a lease is read again after five minutes."""
    vault.versioned["web"] = {"v": "one"}
    await node.followed(block(), template(READ))
    assert node.path().read_text() == "one"
    vault.versioned["web"] = {"v": "two"}
    node.passed_s = secret_directory.REREAD_S
    node.vault.secrets._woken.set()
    await node.reads("two")
    await level(node.changes)
    assert [one.input for one in node.changes()] == ["template[0]"]


async def test_a_lease_is_renewed(vault: FakeVault, node: VaultNode) -> None:
    """The secret stays the same: nothing is rendered."""
    vault.dynamic["database/creds/web"] = 2
    await node.followed(block(), template('{{ (secret "database/creds/web").Data.username }}'))
    await level(lambda: vault.count("sys/leases/renew") >= 1)
    assert (node.path().read_text(), node.changes(), vault.leases) == ("user-1", [], 1)


async def test_stores_of_both_kinds_and_lists(vault: FakeVault, node: VaultNode) -> None:
    """With and without `data/` in the path, nested values, and the names below a path."""
    vault.versioned |= {"app/a": {"v": {"in": [1, "x"]}}, "app/b": {"v": True}}
    vault.plain["old"] = {"v": "plain"}
    data = (
        '{{ (secret "secret/app/a").Data.data.v.in }} {{ (secret "kv1/old").Data.v }} '
        '{{ range secrets "secret/app" }}{{ . }},{{ end }}{{ len (secrets "secret/none") }}'
    )
    await node.prepared(block(), template(data))
    assert node.path().read_text() == "[1 x] plain a,b,0"


async def test_a_secret_that_does_not_exist_is_waited_for(
    vault: FakeVault, node: VaultNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event names it; when it is there the start goes through."""
    monkeypatch.setattr(missing_data, "TELL_AFTER_S", 0.0)
    monkeypatch.setattr(secret_directory, "ABSENT_FIRST_S", 0.01)
    node.prepare(block(), template(READ))
    text = "Missing: vault.read(secret/data/web)"
    await level(lambda: node.notes()[-1:] == [text], node.notes)
    vault.versioned["web"] = {"v": "one"}
    await node.answer()
    assert node.path().read_text() == "one"


async def test_a_secret_that_the_token_may_not_read(vault: FakeVault, node: VaultNode) -> None:
    """A failed start that may be tried again, with Vault's reason."""
    vault.fails["secret/data/web"] = 403
    node.prepare(block(), template(READ))
    failed = await node.answer()
    assert isinstance(failed, TaskPrepareFailed) and failed.recoverable
    assert "secret/data/web: status 403: permission denied" in failed.reason


async def test_a_fault_does_not_show_a_secret(vault: FakeVault, node: VaultNode) -> None:
    """A template that fails because of a value fails without its text."""
    vault.versioned["web"] = {"v": "s3cr3t-91"}
    node.prepare(
        block(), template('{{ with secret "secret/web" }}{{ .Data.data.v | parseInt }}{{ end }}')
    )
    failed = await node.answer()
    assert isinstance(failed, TaskPrepareFailed) and not failed.recoverable
    assert "s3cr3t" not in failed.reason and "not shown" in failed.reason
