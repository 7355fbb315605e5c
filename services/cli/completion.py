"""`caravan completion`: scripts for bash, zsh and fish, and the candidates that they ask for.

The scripts call the hidden `caravan __complete -- WORDS…`, which reads the same table of commands as help and parser,
and queries the bus for ids; without a bus it silently offers none.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from services.cli import global_options
from services.cli.command_spec import ArgumentSpec, CommandSpec
from services.cli.command_table import COMMANDS, GROUPS
from services.cli.runtime.output import CliError, CommandOutput
from services.cli.short_forms import expand
from shared.errors import CaravanError

if TYPE_CHECKING:
    from schemas.projections import AllocSummary

S = TypeVar("S", bound=msgspec.Struct)
#: A value to insert, and its description.
Candidate = tuple[str, str]
#: Tells the script to complete file names itself.
FILES = ":files"
_TIMEOUT_S = 0.5
_LIMIT = 1_000
#: Jobs whose allocations are offered by name.
_NAMED_JOBS_MAX = 5
_ID_DIGITS = frozenset("0123456789abcdef-")
_LIVE_STATUSES = frozenset(("pending", "running", "unknown"))
_HELP = ("--help", "show help")
_RUN = "run"


class CompletionResult(msgspec.Struct, frozen=True):
    """`completion --json`."""

    shell: str
    text: str


_BASH = """# bash completion of caravan
_caravan() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ "$line" == ":files" ]]; then
      while IFS= read -r line; do COMPREPLY+=("$line"); done \\
        < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
    else
      COMPREPLY+=("${line%%$'\\t'*}")
    fi
  done < <(caravan __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _caravan caravan
"""

_ZSH = """#compdef caravan
# zsh completion of caravan
_caravan() {
  local line
  local -a values
  for line in "${(@f)$(caravan __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    if [[ "$line" == ":files" ]]; then
      _files
    elif [[ -n "$line" ]]; then
      values+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    fi
  done
  _describe caravan values
}
if [[ "$funcstack[1]" == "_caravan" ]]; then _caravan "$@"; else compdef _caravan caravan; fi
"""

_FISH = """# fish completion of caravan
function __caravan_complete
  set -l words (commandline -opc) (commandline -ct)
  for line in (caravan __complete -- $words[2..] 2>/dev/null)
    if test "$line" = ":files"
      __fish_complete_path (commandline -ct)
    else
      echo $line
    end
  end
end
complete -c caravan -f -a '(__caravan_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(out: CommandOutput, *, shell: str) -> int:
    """Print the script of a shell."""
    if shell not in _SCRIPTS:
        raise CliError("usage", f"unknown shell {shell!r}; expected bash, zsh or fish")
    text = _SCRIPTS[shell].rstrip("\n")
    out.result(CompletionResult(shell, text))
    if not out.is_json:
        print(text)
    return 0


def print_candidates(words: Sequence[str]) -> None:
    """Print candidates for the last word, each with a tab and its description."""
    for value, text in candidates(words):
        print(f"{value}\t{text}" if text else value)


def candidates(words: Sequence[str]) -> Iterator[Candidate]:
    """Candidates for the last word."""
    *done, current = words or [""]
    if "--" in done:
        return
    # `run` names roles as well as files: until there is a word behind it, both are offered.
    if done == [_RUN] and current:
        done = expand([*done, current])[:-1]
    elif done:
        done = expand(done)
    command = next((c for c in COMMANDS if tuple(done[: len(c.words)]) == c.words), None)
    found = _next_words(done) if command is None else _of_command(command, done, current)
    yield from (one for one in found if one[0].startswith(current) or one[0] == FILES)


def _next_words(done: Sequence[str]) -> Iterator[Candidate]:
    """Words that continue a command, each once."""
    begin, seen = tuple(done), set()
    for command in COMMANDS:
        if command.words[: len(begin)] == begin and command.words[len(begin)] not in seen:
            word = command.words[len(begin)]
            seen.add(word)
            is_whole = command.words == (*begin, word)
            yield word, command.summary if is_whole else GROUPS.get(word, "")
    yield _HELP
    if not begin:
        yield "--version", "print the version"


def _of_command(command: CommandSpec, done: Sequence[str], current: str) -> Iterator[Candidate]:
    """Options of a command, values of its option, or values of its next argument."""
    options = {flag: arg for arg in command.arguments for flag in arg.flags}
    given, option = 0, None
    for word in done[len(command.words) :]:
        if option is not None:
            if option.name == "context":
                global_options.set_global_options(word)
            option = None
        elif word.startswith("-") and len(word) > 1:
            known = options.get(word, options.get(f"-{word}"))
            option = known if known is not None and known.kind is not bool else None
        else:
            given += 1
    positional = [arg for arg in command.args if not arg.flags]
    if option is not None:
        yield from _values(option, current)
    elif current.startswith("-"):
        yield from ((flag, arg.help) for flag, arg in options.items())
        yield _HELP
    elif given < len(positional):
        yield from _values(positional[given], current)
    elif positional and positional[-1].kind is list:
        yield from _values(positional[-1], current)


def _values(arg: ArgumentSpec, prefix: str) -> Iterable[Candidate]:
    """Values of an argument."""
    if arg.complete.startswith("("):
        return [(word, "") for word in arg.complete.strip("()").split()]
    if arg.complete == "file":
        return [(FILES, "")]
    values = {
        "job": _jobs,
        "node": _nodes,
        "alloc": _allocations,
        "eval": _evaluations,
        "deployment": _deployments,
        "rollout": _rollouts,
        "service": _services,
        "variable": _variables,
        "context": _contexts,
    }.get(arg.complete)
    return values(prefix) if values is not None else ()


def _jobs(prefix: str) -> list[Candidate]:
    from schemas.job_answers import JobsAnswer

    answer = _query("jobs", JobsAnswer, id=prefix)
    return [(job.id, f"{job.job_type}, {job.status}") for job in answer.jobs] if answer else []


def _nodes(prefix: str) -> list[Candidate]:
    from schemas.node_answers import NodesAnswer

    answer = _query("nodes", NodesAnswer, id=prefix)
    nodes = answer.nodes if answer else ()
    found = [(node.id, node.status) for node in nodes]
    return found + [(node.name, node.id) for node in nodes if node.name not in ("", node.id)]


def _allocations(prefix: str) -> list[Candidate]:
    """Names and ids, running ones first; `JOB.group` where that names one."""
    from services.cli.runtime.output import short_id

    found = _running_first(id=prefix) if not set(prefix) - _ID_DIGITS else []
    ids = [(_shown(one.id, prefix), f"{one.name}, {one.client_status}") for one in found]
    named = found if not prefix else []
    # A job's id may have dots: each may be the one before the group.
    jobs = {prefix[:at] for at, sign in enumerate(prefix) if sign == "."}
    jobs |= {job for job, _ in _jobs(prefix)[:_NAMED_JOBS_MAX]} if prefix else set()
    for job in sorted(jobs):
        named += _running_first(job_id=job)
    names = [(one.name, f"{short_id(one.id)} on {one.node}, {one.client_status}") for one in named]
    return [*names, *_single(named), *ids]


def _running_first(**query: str) -> list["AllocSummary"]:
    from schemas.node_answers import AllocsAnswer

    running = _query("allocs", AllocsAnswer, status="running", **query)
    every = _query("allocs", AllocsAnswer, **query) if running else None
    # A list is cut at _LIMIT: those that run are asked for by themselves.
    found = [one for answer in (running, every) if answer for one in answer.allocations]
    return list({one.id: one for one in found}.values())


def _single(found: Sequence["AllocSummary"]) -> list[Candidate]:
    """`JOB.group` of the groups of which one allocation has not ended."""
    from services.cli.runtime.output import short_id

    live: dict[str, list[AllocSummary]] = {}
    for one in found:
        if one.client_status in _LIVE_STATUSES:
            live.setdefault(one.name.rpartition("[")[0], []).append(one)
    return [
        (name, f"{short_id(ones[0].id)} on {ones[0].node}")
        for name, ones in live.items()
        if len(ones) == 1
    ]


def _evaluations(prefix: str) -> list[Candidate]:
    from schemas.evaluation_answers import EvalsAnswer

    answer = _query("evals", EvalsAnswer, id=prefix)
    found = answer.evaluations if answer else ()
    return [(_shown(one.id, prefix), f"{one.job_id}, {one.status}") for one in found]


def _deployments(prefix: str) -> list[Candidate]:
    from schemas.answers import DeploymentsAnswer

    answer = _query("deployments", DeploymentsAnswer, id=prefix)
    found = answer.deployments if answer else ()
    return [(_shown(one.id, prefix), f"{one.job} {one.version}, {one.status}") for one in found]


def _rollouts(prefix: str) -> list[Candidate]:
    from schemas.rollout_answers import RolloutsAnswer

    answer = _query("rollouts", RolloutsAnswer, id=prefix)
    found = answer.rollouts if answer else ()
    ids = [(_shown(one.id, prefix), f"{one.name}, {one.status}") for one in found]
    return [
        *{one.name: (one.name, f"newest {one.status}") for one in reversed(found)}.values(),
        *ids,
    ]


def _shown(identifier: str, prefix: str) -> str:
    """A short id; the whole one where more than that was typed."""
    from services.cli.runtime.output import short_id

    short = short_id(identifier)
    return short if short.startswith(prefix) else identifier


def _services(prefix: str) -> list[Candidate]:
    from schemas.answers import ServicesAnswer

    answer = _query("services", ServicesAnswer, id=prefix)
    found = answer.services if answer else ()
    return [(one.name, f"{one.passing} of {one.instances} passing") for one in found]


def _variables(prefix: str) -> list[Candidate]:
    from schemas.variable_answers import VariablesAnswer

    answer = _query("variables", VariablesAnswer, id=prefix)
    found = answer.variables if answer else ()
    return [(one.path, f"{one.items} items, check-index {one.revision}") for one in found]


def _contexts(_prefix: str) -> list[Candidate]:
    from services.cli.runtime.contexts import known_contexts

    try:
        return [(one.name, one.url) for one in known_contexts()]
    except CaravanError:
        return []


def _query(noun: str, answer: type[S], **query: str) -> S | None:
    """Query the view; None if it does not answer at once."""
    from schemas.projections import Query
    from services.cli.runtime.bus_client import query_view, with_bus
    from shared.bus.connection.public_client import Client

    async def work(client: Client) -> S:
        wanted = query_view(
            client, noun, answer, msgspec.convert({**query, "limit": _LIMIT}, Query)
        )
        return await asyncio.wait_for(wanted, _TIMEOUT_S)

    try:
        return with_bus(work)
    except (CaravanError, OSError, TimeoutError):
        return None
