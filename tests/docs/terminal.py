"""A terminal for tests and pictures: runs a command on a pseudo terminal and keeps the screen as a person would see it.

Knows what rich and we write: colours, carriage return, cursor up, erase line; nothing else of a terminal.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from html import escape

from tests.bounds import WAIT_S

_PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_COLOURS = {
    31: "#e06c75",
    32: "#98c379",
    33: "#e5c07b",
    34: "#61afef",
    35: "#c678dd",
    36: "#56b6c2",
}
_INK, _PAPER, _DIM = "#d7dae0", "#1e2227", "#7f848e"
_FONTS = "ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace"
_CHAR, _LINE, _EDGE = 8.4, 19, 18


class Screen:
    """Lines with their colour codes. Wide enough for what is written."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0
        self._fresh = False

    def write(self, text: str) -> None:
        for match in _PART.finditer(text):
            part, code = match.group(0), match.group(2)
            if part == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
                self._fresh = False
            elif part == "\r":
                self._fresh = True
            elif code == "A":
                self._row = max(self._row - int(match.group(1) or 1), 0)
            elif code == "K":
                self.lines[self._row] = ""
            elif code in (None, "m") and part != "\x1b":
                if self._fresh and code is None:
                    self.lines[self._row] = ""
                    self._fresh = False
                self.lines[self._row] += part

    def text(self) -> list[str]:
        """Lines without colours, empty ones at the end left out."""
        return "\n".join(_SGR.sub("", line).rstrip() for line in self.lines).rstrip().splitlines()


def run(
    command: Sequence[str], env: Mapping[str, str], *, columns: int = 100
) -> tuple[int, Screen]:
    """Run a command on a terminal of that width; returns its exit code and what stands there at the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {**env, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    for name in ("COLUMNS", "LINES"):
        env.pop(name, None)
    process = subprocess.Popen(
        command, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    screen, data = Screen(), b""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 0.2)[0]:
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        data += part
    else:
        process.kill()
    os.close(ours)
    screen.write(data.decode("utf-8", "replace"))
    return process.wait(WAIT_S), screen


def svg(lines: Sequence[str], title: str) -> str:
    """Draw lines with their colours."""
    plain = [_SGR.sub("", line) for line in lines]
    width = int(max(len(line) for line in plain) * _CHAR) + 2 * _EDGE
    height = len(lines) * _LINE + _EDGE + 44
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{_PAPER}"/>',
        *(
            f'<circle cx="{_EDGE + 4 + 20 * n}" cy="20" r="6" fill="{fill}"/>'
            for n, fill in enumerate(("#e06c75", "#e5c07b", "#98c379"))
        ),
        f'<g font-family="{_FONTS}" font-size="14" fill="{_INK}">',
    ]
    for row, line in enumerate(lines):
        out += _spans(line, 52 + row * _LINE)
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"


def _spans(line: str, y: int) -> list[str]:
    """Pieces of text of one colour, each held to its columns; none has two blanks, which viewers may make one."""
    found, column, style = [], 0, ""
    for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
        code = _SGR.fullmatch(piece)
        if code:
            style = _style(style, code.group(1))
            continue
        for words in re.finditer(r"\S+(?: \S+)*", piece):
            text, x = words[0], _EDGE + (column + words.start()) * _CHAR
            size = f'textLength="{len(text) * _CHAR:.1f}"'
            found.append(f'<text x="{x:.1f}" y="{y}" {size}{style}>{escape(text)}</text>')
        column += len(piece)
    return found


def _style(before: str, codes: str) -> str:
    style = before
    for code in (int(one or 0) for one in codes.split(";")):
        if code in (0, 39, 22):
            style = ""
        elif code == 1:
            style += ' font-weight="bold"' if "font-weight" not in style else ""
        elif code == 2:
            style = f' fill="{_DIM}"'
        elif code in _COLOURS:
            style = "".join(re.findall(r' font-weight="bold"', style)) + f' fill="{_COLOURS[code]}"'
    return style
