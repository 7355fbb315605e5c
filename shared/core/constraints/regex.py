"""Regular expressions of constraints: RE2 syntax within limits, since every decision may evaluate them.

Reads a stored pattern as every release has read it: decisions in logs depend on that. The engine: `shared/regexp/`.
"""

import re
from functools import lru_cache
from typing import Final

from shared.regexp.char_sets import POSIX
from shared.regexp.matcher import RegexpMatcher
from shared.regexp.syntax import PatternRefusedError

#: Characters of a pattern, states of its automaton.
PATTERN_CHARS_MAX: Final = 512
STATES_MAX: Final = 2_000
#: A longer text matches nothing: no attribute a pattern is meant for is that long.
TEXT_CHARS_MAX: Final = 1_024
_PATTERNS_KEPT: Final = 64

_QUOTED: Final = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_POSIX_CLASS: Final = re.compile(r"\[:([a-z]+):\]")


@lru_cache(maxsize=_PATTERNS_KEPT)
def compile_pattern(text: str) -> RegexpMatcher:
    """Compile a pattern. Raises: PatternRefusedError."""
    if len(text) > PATTERN_CHARS_MAX:
        raise PatternRefusedError(
            f"has {len(text)} characters, at most {PATTERN_CHARS_MAX} are allowed"
        )
    return RegexpMatcher(_expand(text), states_max=STATES_MAX, text_chars_max=TEXT_CHARS_MAX)


def _expand(text: str) -> str:
    r"""Replace quotes, `\z` and POSIX classes in the text.

    The parser reads them too, but not alike where they stand behind a backslash, outside a class or in a range.
    """
    plain = _QUOTED.sub(lambda found: re.escape(found[1]), text).replace(r"\z", r"\Z")
    return _POSIX_CLASS.sub(lambda found: POSIX.get(found[1], found[0]), plain)
