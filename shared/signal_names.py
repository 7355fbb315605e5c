"""Names of signals as people write them: SIGTERM, sigterm, TERM, 15, SIGRTMIN+3.

Decides which of them name a signal, and its number on Linux, so that a job is judged alike on every machine.
"""

import difflib
import re

_NAMES = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2"),
    *("PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG"),
    *("XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS"),
)
_RTMIN, _RTMAX = 34, 64
_NUMBERS = {
    **{f"SIG{name}": number for number, name in enumerate(_NAMES, 1)},
    "SIGIOT": 6,
    "SIGCLD": 17,
    "SIGPOLL": 29,
    "SIGRTMIN": _RTMIN,
    "SIGRTMAX": _RTMAX,
}
_BY_NUMBER = {number: f"SIG{name}" for number, name in enumerate(_NAMES, 1)}
_REAL_TIME = re.compile(r"(SIGRTMIN\+|SIGRTMAX-)([0-9]{1,2})", re.ASCII)
_NUMBER = re.compile("[0-9]{1,2}", re.ASCII)


def signal_number(text: str) -> int | None:
    """Return the number of a signal; None: there is no such signal."""
    name = text.strip().upper()
    if _NUMBER.fullmatch(name):
        number = int(name)
        return number if number in _BY_NUMBER or _RTMIN <= number <= _RTMAX else None
    name = name if name.startswith("SIG") else f"SIG{name}"
    if real := _REAL_TIME.fullmatch(name):
        away = int(real[2])
        number = _RTMIN + away if "+" in name else _RTMAX - away
        return number if _RTMIN <= number <= _RTMAX else None
    return _NUMBERS.get(name)


def signal_name(text: str) -> str | None:
    """Return the one name of a signal; None: there is no such signal."""
    number = signal_number(text)
    if number is None:
        return None
    if number in _BY_NUMBER:
        return _BY_NUMBER[number]
    return "SIGRTMIN" if number == _RTMIN else f"SIGRTMIN+{number - _RTMIN}"


def signal_error(text: str) -> str:
    """Say what is wrong with the name of a signal; empty: nothing."""
    if signal_number(text) is not None:
        return ""
    near = difflib.get_close_matches(
        f"SIG{text.strip().upper()[:20].removeprefix('SIG')}", _NUMBERS, 1
    )
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown signal {text[:40]!r}{hint}"
