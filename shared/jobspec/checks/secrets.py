"""Validation of secret blocks, and of the references to their values.

Source: Nomad structs.go, Secret.Validate. A reference that nothing fills in is found here, where Nomad starts the task
with its text.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from shared.jobspec.checks.error_list import ErrorList
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec
from shared.jobspec.nomad.tasks import Secret
from shared.jobspec.secret_references import MARK, find_references
from shared.protocol.task_variables import path_refusal, task_paths

#: Of provider vault; which one a store is, Vault says.
ENGINES = ("kv_v2", "kv_v1")
#: Providers that are not programs of the node's operator.
NOMAD, VAULT = "nomad", "vault"
SECRETS_MAX = 64
TEXT_CHARS_MAX = 4_096
PAIRS_MAX = 64
WITHOUT_SECRET = (
    "--accept-unbuilt (accept_unbuilt beside the job) submits the job without this secret"
)
NOT_FILLED = (
    "references to secrets are not filled in here, which is not built yet; env of the task has them"
)
_NAME = re.compile(r"[A-Za-z0-9_]{1,128}", re.ASCII)
_PROGRAM = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
#: Variables by which a job would choose what a program of the operator loads or runs, whom it trusts, and through whom
#: it connects. Those of programs that are not known here are the operator's to clear.
_OF_THE_LOADER = re.compile(
    r"(LD_|DYLD_|PYTHON|PERL|RUBY|NODE_|JAVA_|JDK_|_JAVA|LUA|PHP|BASH_|GIT_|GCONV|GLIBC_|MALLOC_|CARAVAN_"
    r"|OPENSSL_|SSL|CURL_|XDG_|DOTNET_|COR_|CORECLR_|ERL_|GOCOVERDIR|GODEBUG|KRB5|TERMINFO|LESS).*"
    r"|PATH|ENV|IFS|SHELL|SHELLOPTS|BASHOPTS|PS4|HOME|TMPDIR|CLASSPATH|LOCPATH|NLSPATH|HOSTALIASES|RES_OPTIONS"
    r"|TMP|TEMP|ZDOTDIR|CDPATH|GLOBIGNORE|PROMPT_COMMAND|EDITOR|VISUAL|PAGER|AWKPATH|AWKLIBPATH|NETRC|LOCALDOMAIN"
    r"|REQUESTS_CA_BUNDLE|KUBECONFIG|AWS_CONFIG_FILE|AWS_SHARED_CREDENTIALS_FILE|VAULT_CONFIG_PATH|DOCKER_CONFIG"
    r"|GNUPGHOME|(?i:(http|https|ftp|all|no)_proxy)"
)


def variable_error(name: str) -> str:
    """Say why a job may not give a program of the operator this variable; empty: it may."""
    if not _VARIABLE.fullmatch(name):
        return f"{name[:40]!r} is not a valid name of an environment variable"
    if _OF_THE_LOADER.fullmatch(name):
        return f"{name[:40]} would change what the program runs, and is set by the node alone"
    return ""


def check_secrets(faults: ErrorList, job: JobSpec) -> None:
    """Find what is impossible in the secrets of a job, and in references to them."""
    for at, group in enumerate(job.groups):
        here = f"Job.TaskGroups[{at}]"
        if any(task.secrets for task in group.tasks):
            _services(faults, group, here)
        for number, task in enumerate(group.tasks):
            path = f"{here}.Tasks[{number}]"
            if task.secrets:
                _needs_vault(faults, task, path)
                _blocks(faults, task, path, task_paths(job.id, group.name, task.name))
            _references(faults, task, path)


def _blocks(faults: ErrorList, task: TaskSpec, path: str, readable: tuple[str, ...]) -> None:
    if len(task.secrets) > SECRETS_MAX:
        faults.add(f"{path}.Secrets", f"at most {SECRETS_MAX} secrets are allowed")
        return
    seen: set[str] = set()
    for at, one in enumerate(task.secrets):
        here = f"{path}.Secrets[{at}]"
        if not _NAME.fullmatch(one.name):
            text = f"must be 1 to 128 letters, digits and _, was {one.name[:40]!r}"
            faults.add(f"{here}.Name", text)
        elif one.name in seen:
            faults.add(f"{here}.Name", f"another secret of the task is named {one.name!r}")
        seen.add(one.name)
        _block(faults, one, here, readable)


def _block(faults: ErrorList, one: Secret, path: str, readable: tuple[str, ...]) -> None:
    if not one.provider:
        faults.add(f"{path}.Provider", "must be set: nomad, or a program of the node")
    elif not _PROGRAM.fullmatch(one.provider):
        text = f"must be 1 to 128 letters, digits, _ and -, was {one.provider[:40]!r}"
        faults.add(f"{path}.Provider", text)
    if not one.path:
        faults.add(f"{path}.Path", "must be set")
    elif len(one.path) > TEXT_CHARS_MAX or not one.path.isprintable():
        faults.add(f"{path}.Path", f"at most {TEXT_CHARS_MAX} printable characters are allowed")
    elif (
        one.provider == NOMAD
        and "${" not in one.path
        and (text := path_refusal(one.path, readable))
    ):
        faults.add(f"{path}.Path", text)
    if one.has_references:
        text = f"a secret that refers to another one is not built yet; {WITHOUT_SECRET}"
        faults.add_unbuilt(path, text)
    _config(faults, one, path)
    _env(faults, one, path)


def _needs_vault(faults: ErrorList, task: TaskSpec, path: str) -> None:
    for at, one in enumerate(task.secrets):
        if one.provider == VAULT and task.vault is None:
            text = "provider vault needs a vault block of the task"
            faults.add(f"{path}.Secrets[{at}].Provider", text)


def _config(faults: ErrorList, one: Secret, path: str) -> None:
    found = msgspec.json.decode(one.config)
    if not isinstance(found, dict):
        faults.add(f"{path}.Config", "must be an object")
    elif one.provider == NOMAD:
        for key in sorted(found.keys() - {"namespace"}):
            text = f"unknown parameter {key[:40]!r}; provider nomad has namespace"
            faults.add(f"{path}.Config", text)
        if found.get("namespace", "default") not in ("", "default"):
            faults.add(f"{path}.Config", "namespace must be default: there are no others yet")
    elif one.provider == VAULT:
        for key in sorted(found.keys() - {"engine"}):
            text = f"unknown parameter {key[:40]!r}; provider vault has engine"
            faults.add(f"{path}.Config", text)
        if found.get("engine", ENGINES[0]) not in ENGINES:
            faults.add(f"{path}.Config", f"engine must be one of {', '.join(ENGINES)}")
    elif found:
        faults.add(f"{path}.Config", "is for provider nomad and vault alone; a program has env")


def _env(faults: ErrorList, one: Secret, path: str) -> None:
    if one.env and one.provider in (NOMAD, VAULT):
        faults.add(f"{path}.Env", f"is for programs of the node alone, not for {one.provider}")
        return
    texts = (*one.env, *one.env.values())
    if len(one.env) > PAIRS_MAX or any(len(text) > TEXT_CHARS_MAX for text in texts):
        text = f"at most {PAIRS_MAX} of {TEXT_CHARS_MAX} characters are allowed"
        faults.add(f"{path}.Env", text)
    for name in sorted(one.env):
        if text := variable_error(name):
            faults.add(f"{path}.Env", text)
        elif "\0" in one.env[name]:
            faults.add(f"{path}.Env", f"{name} must not contain a NUL byte")


# ---- references ----


def _references(faults: ErrorList, task: TaskSpec, path: str) -> None:
    """Refuse references to what is no secret of the task, where they are filled in."""
    known = {one.name for one in task.secrets}
    for where, value in _filled_texts(task):
        for one in dict.fromkeys(find_references(value)):
            if one.secret not in known:
                text = f"{one.text[:80]}: the task has no secret {one.secret[:40]!r}"
                faults.add(f"{path}.{where}", text)
            elif not one.key:
                faults.add(f"{path}.{where}", f"{one.text[:80]} names no key of the secret")


def _filled_texts(task: TaskSpec) -> Iterator[tuple[str, Any]]:
    """List the texts of a task in which references are filled in, each with its place."""
    for name, text in task.env.items():
        if MARK in text:
            yield f"Env.{name}", text
    if MARK.encode() in bytes(task.config):
        config = msgspec.json.decode(task.config)
        if isinstance(config, dict):
            yield from ((f"Config.{name}", one) for name, one in config.items())
    for at, one in enumerate(task.artifacts):
        here = f"Artifacts[{at}]"
        yield f"{here}.GetterSource", one.source
        yield f"{here}.GetterOptions", one.options
        yield f"{here}.GetterHeaders", one.headers
        yield f"{here}.RelativeDest", one.destination
    for at, block in enumerate(task.templates):
        here = f"Templates[{at}]"
        yield f"{here}.SourcePath", block.source
        yield f"{here}.DestPath", block.destination
        if block.change_script is not None:
            script = block.change_script
            yield f"{here}.ChangeScript", [script.command, *script.args]


def _services(faults: ErrorList, group: TaskGroup, path: str) -> None:
    """Refuse references in services: checks are made by a later life of the agent, too, which has no values."""
    places = [(path, group.services)]
    places += [(f"{path}.Tasks[{at}]", one.services) for at, one in enumerate(group.tasks)]
    for where, services in places:
        for at, service in enumerate(services):
            if next(find_references(msgspec.to_builtins(service)), None) is not None:
                faults.add(f"{where}.Services[{at}]", NOT_FILLED)


# ---- warnings ----


def secret_warnings(job: JobSpec) -> list[str]:
    """Say which values others can see: in arguments of a program, and that labels and templates get none."""
    found: list[str] = []
    for group in job.groups:
        for task in group.tasks:
            if task.secrets:
                found += _warnings(task)
    return found


def _warnings(task: TaskSpec) -> Iterator[str]:
    config = msgspec.json.decode(task.config)
    for name in ("command", "args", "entrypoint"):
        if next(find_references(config.get(name)), None) is not None:
            yield (
                f"task {task.name!r}: {name} holds a secret, which other users of the node can read "
                "while the task runs; env hides it from them"
            )
    if next(find_references(config.get("labels")), None) is not None:
        yield f"task {task.name!r}: secrets are not filled in in labels, which everybody on the engine sees"
    if any(next(find_references(one.data), None) is not None for one in task.templates):
        yield (
            f"task {task.name!r}: data of a template keeps ${{secret…}} as a text, as in Nomad; put it into env, "
            'and read it with {{ env "…" }}'
        )
