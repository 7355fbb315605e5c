"""What this process holds open, by path: other descriptors of a test runner come and go."""

import contextlib
from pathlib import Path


def held_below(folder: Path) -> list[Path]:
    """Name what is open at or below a folder, in order; one name for each descriptor."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        # One may be closed meanwhile, as that of the listing is.
        with contextlib.suppress(OSError):
            found.append(link.readlink())
    return sorted(path for path in found if path.is_relative_to(folder))
