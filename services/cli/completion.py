"""`caravan completion`: scripts for bash, zsh and fish, written from the table of commands.

Decides what a shell offers: words and options from the table; job, node, allocation and evaluation ids from the bus,
asked by the script itself, so that nothing is offered when there is no bus.
"""

from collections.abc import Iterable

from services.cli.commands import COMMANDS, GROUPS
from services.cli.output import CliError, Output
from services.cli.words import Command

_ASK = {
    "job": "caravan job status --json 2>/dev/null | tr '{' '\\n' | sed -n 's/^\"id\":\"\\([^\"]*\\)\".*/\\1/p'",
    "node": "caravan node status --json 2>/dev/null | tr ',' '\\n' | sed -n 's/^\"id\":\"\\([^\"]*\\)\".*/\\1/p'",
    "eval": "caravan eval list --json 2>/dev/null | tr '{' '\\n' | sed -n 's/^\"id\":\"\\([^\"]*\\)\".*/\\1/p'",
    "alloc": "caravan node status --allocs --json 2>/dev/null | tr '{' '\\n' "
    '| sed -n \'s/^"id":"\\([^"]*\\)","key".*/\\1/p\'',
    "context": "caravan context list 2>/dev/null | sed -n '2,$s/^[* ]* *\\([^ ]*\\).*/\\1/p'",
}


def completion(out: Output, *, shell: str) -> int:
    """Print the script of a shell."""
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in scripts:
        raise CliError("usage", f"no shell {shell!r}, known are bash, zsh and fish")
    text = scripts[shell]()
    out.result({"shell": shell, "text": text})
    for line in text.splitlines():
        out.line(line)
    return 0


def _next_words() -> dict[str, list[str]]:
    """What may follow each beginning of a command."""
    found: dict[str, dict[str, None]] = {}
    for command in COMMANDS:
        for at, word in enumerate(command.words):
            found.setdefault(" ".join(command.words[:at]), {})[word] = None
    return {begin: list(words) for begin, words in found.items()}


def _options(command: Command) -> list[str]:
    return [*(flag for arg in command.args for flag in arg.flags), "--json", "--help"]


def _wants(command: Command) -> str:
    """What its first positional argument is."""
    return next((arg.complete for arg in command.args if not arg.flags), "")


def _values(wanted: str) -> str:
    """A shell expression that gives the values of a kind of argument."""
    if wanted.startswith("("):
        return f"echo {wanted.strip('()')}"
    return _ASK.get(wanted, "")


def _bash() -> str:
    lines = [
        "# bash completion of caravan; written by `caravan completion bash`",
        "_caravan() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" line="" part',
        '  for part in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '    [[ "$part" == -* ]] || line="${line:+$line }$part"',
        "  done",
        '  local words="" options="" files=""',
        '  case "$line" in',
    ]
    for begin, following in _next_words().items():
        lines.append(f'    "{begin}") words="{" ".join(following)}" ;;')
    for command in COMMANDS:
        begin = " ".join(command.words)
        values = _values(_wants(command))
        given = f' words="$({values})"' if values else ""
        files = " files=1" if _wants(command) == "file" else ""
        lines.append(f'    "{begin}"*) options="{" ".join(_options(command))}"{given}{files} ;;')
    lines += [
        "  esac",
        '  [[ "$word" == -* ]] && words="$options"',
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        '  [[ -n "$files" && "$word" != -* ]] && COMPREPLY+=($(compgen -f -- "$word"))',
        "}",
        "complete -F _caravan caravan",
    ]
    return "\n".join(lines)


def _zsh() -> str:
    head = ["#compdef caravan", "# zsh completion of caravan; written by `caravan completion zsh`"]
    return "\n".join(
        [*head, "autoload -U +X bashcompinit && bashcompinit", *_bash().splitlines()[1:]]
    )


def _fish() -> str:
    lines = [
        "# fish completion of caravan; written by `caravan completion fish`",
        "function __caravan_at",
        "  set -l line (commandline -opc | string match -v -- '-*')",
        '  test "$line[2..]" = "$argv"',
        "end",
        "complete -c caravan -f",
    ]
    for begin, following in _next_words().items():
        for word in following:
            about = _about([*begin.split(), word])
            at = f"__caravan_at {begin}".strip()
            lines.append(f"complete -c caravan -n '{at}' -a {word} -d '{about}'")
    for command in COMMANDS:
        at = f"__caravan_at {' '.join(command.words)}"
        for arg in command.args:
            about = arg.help.replace("'", "")
            for flag in arg.flags:
                name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                lines.append(f"complete -c caravan -n '{at}' {name} -d '{about}'")
        values = _values(_wants(command))
        if values:
            escaped = values.replace("'", "\\'")
            lines.append(f"complete -c caravan -n '{at}' -a '({escaped})'")
        elif _wants(command) == "file":
            lines.append(f"complete -c caravan -n '{at}' -F")
    return "\n".join(lines)


def _about(words: Iterable[str]) -> str:
    known = tuple(words)
    for command in COMMANDS:
        if command.words == known:
            return command.summary.replace("'", "").replace("`", "")
    return GROUPS.get(known[0], "")
