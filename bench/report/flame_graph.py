"""Flame graphs and top tables of folded stacks: `frame;frame;frame samples`, one a line, as samplers write them.

A width is a share of the samples, a frame's colour comes from its name, everything is in one file without scripts, and
a tooltip shows name and share. Next: `profile.py`.
"""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple
from zlib import crc32

_WIDTH, _LINE, _TOP = 1600.0, 17, 34
#: Narrower frames are left out, and shorter texts, px.
_NARROW, _NO_TEXT = 0.4, 24.0
_CHARACTER = 6.6
#: Functions that wait; a sampler cannot distinguish them from work.
_WAITING = ("_worker (concurrent/futures/thread.py", "Condition.wait (threading.py")
_LINE_NUMBER = re.compile(r":\d+\)$")


class HotFrame(NamedTuple):
    """Where samples were taken: in the frame itself, and in it or what it called. Parts of all samples."""

    frame: str
    own: float
    total: float


class _Box(NamedTuple):
    depth: int
    left: float
    width: float
    frame: str
    samples: int


def read(lines: Iterable[str]) -> dict[tuple[str, ...], int]:
    """Read folded stacks, root first; waiting, and what is no such line, is left out."""
    found: dict[tuple[str, ...], int] = {}
    for line in lines:
        stack, _, count = line.strip().rpartition(" ")
        if stack and count.isdigit() and not stack.rpartition(";")[2].startswith(_WAITING):
            key = tuple(stack.split(";"))
            found[key] = found.get(key, 0) + int(count)
    return found


def hottest_frames(stacks: Mapping[tuple[str, ...], int], most: int = 25) -> list[HotFrame]:
    """Functions with the most samples of their own; lines of one are taken together."""
    own: dict[str, int] = {}
    total: dict[str, int] = {}
    for lines, count in stacks.items():
        stack = [_LINE_NUMBER.sub(")", frame) for frame in lines]
        own[stack[-1]] = own.get(stack[-1], 0) + count
        for frame in dict.fromkeys(stack):
            total[frame] = total.get(frame, 0) + count
    samples = max(sum(stacks.values()), 1)
    ranked = sorted(own, key=lambda frame: (-own[frame], frame))[:most]
    return [HotFrame(frame, own[frame] / samples, total[frame] / samples) for frame in ranked]


def render_svg(stacks: Mapping[tuple[str, ...], int], title: str) -> str:
    """Draw one SVG, root at the top."""
    samples = sum(stacks.values())
    boxes = _boxes(stacks, samples)
    height = _TOP + _LINE * (max((box.depth for box in boxes), default=0) + 2)
    size = f'width="{_WIDTH:.0f}" height="{height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">',
        f'<text x="8" y="20" font-size="14">{escape(title)}: {samples} samples</text>',
    ]
    for box in boxes:
        y = _TOP + box.depth * _LINE
        label = f"{box.frame} ({box.samples} samples, {100 * box.samples / samples:.1f} %)"
        out.append(
            f"<g><title>{escape(label)}</title>"
            f'<rect x="{box.left:.1f}" y="{y}" width="{box.width:.1f}" height="{_LINE - 1}" '
            f'fill="{_colour(box.frame)}" rx="1"/>'
        )
        if box.width > _NO_TEXT:
            shown = box.frame[: int(box.width / _CHARACTER)]
            out.append(f'<text x="{box.left + 3:.1f}" y="{y + 12}">{escape(shown)}</text>')
        out.append("</g>")
    return "\n".join([*out, "</svg>", ""])


def _boxes(stacks: Mapping[tuple[str, ...], int], samples: int) -> list[_Box]:
    """Lay out every frame under its caller, siblings by name."""
    boxes: list[_Box] = []

    def lay(within: list[tuple[tuple[str, ...], int]], depth: int, left: float) -> None:
        by_frame: dict[str, list[tuple[tuple[str, ...], int]]] = {}
        for stack, count in within:
            if len(stack) > depth:
                by_frame.setdefault(stack[depth], []).append((stack, count))
        for frame in sorted(by_frame):
            count = sum(number for _, number in by_frame[frame])
            width = _WIDTH * count / samples
            if width >= _NARROW:
                boxes.append(_Box(depth, left, width, frame, count))
                lay(by_frame[frame], depth + 1, left)
            left += width

    lay(list(stacks.items()), 0, 0.0)
    return boxes


def _colour(frame: str) -> str:
    drawn_from = crc32(frame.encode())
    return (
        f"rgb({205 + drawn_from % 50},{90 + drawn_from // 50 % 130},{60 + drawn_from // 6500 % 50})"
    )
