"""The line of each value of a valid JSON text, computed only to report an error. Linear in the text."""

import re

_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"|[\[\]{},:]|[^\s\[\]{},:"]+')


def line_numbers(text: str, root: str = "") -> dict[str, int]:
    """Map paths like `Job.TaskGroups[0].Count` to lines; `root` is put before each."""
    lines: dict[str, int] = {}
    #: for each open bracket: its path, and the index of the current element, -1 in an object.
    stack: list[tuple[str, int]] = []
    path, key = root, ""
    line, seen, is_value = 1, 0, True
    for found in _TOKEN.finditer(text):
        line += text.count("\n", seen, found.start())
        seen = found.start()
        mark = found[0]
        if mark in "{[":
            lines.setdefault(path, line)
            stack.append((path, 0 if mark == "[" else -1))
            path = f"{path}[0]" if mark == "[" else path
            is_value = mark == "["
        elif mark in "}]":
            path = stack.pop()[0]
            is_value = False
        elif mark == ":":
            base = stack[-1][0]
            path = f"{base}.{key}" if base else key
            lines.setdefault(path, line)
            is_value = True
        elif mark == ",":
            base, at = stack[-1]
            is_value = at >= 0
            if is_value:
                stack[-1] = (base, at + 1)
                path = f"{base}[{at + 1}]"
        elif is_value:
            lines.setdefault(path, line)
            is_value = False
        else:
            key = found[1] or ""
    return lines


def nearest_line(lines: dict[str, int], path: str) -> int:
    """Find the line of a path, or of what it is in; 0 if nothing is known."""
    path = path.partition("[...]")[0]
    while path:
        if lines.get(path):
            return lines[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return lines.get("", 0)
