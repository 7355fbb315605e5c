"""Whether a symbolic link of a tree stays inside it, whatever other links the tree has.

The rule: `..` stands at the beginning of the target alone, and no more often than the link is deep. Its own
directory is a real one, so the first steps end in a real directory of the tree; the rest goes down, through links that
obey the same.
"""


def is_inner_link(parts: tuple[str, ...], target: str) -> bool:
    """Say whether the link at `parts` may have this target."""
    if not target or target.startswith("/") or "\0" in target or len(target) > 4_096:
        return False
    steps = [one for one in target.split("/") if one not in ("", ".")]
    ups = 0
    while ups < len(steps) and steps[ups] == "..":
        ups += 1
    return ups < len(parts) and ".." not in steps[ups:]
