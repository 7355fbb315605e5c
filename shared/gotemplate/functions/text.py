"""Functions of text. The piped value is the last argument."""

import hashlib
import hmac
import re
from typing import Any, Final

from shared.gotemplate.errors import TemplateError, TemplateLimitExceeded
from shared.gotemplate.functions.registry import pure_function, template_function
from shared.gotemplate.syntax.constants import bytes_of
from shared.gotemplate.values import TextMap, Value
from shared.regexp.matcher import RegexpMatcher
from shared.regexp.search import CapturingRegexp, RegexpMatch
from shared.regexp.syntax import PatternRefusedError

#: What Go takes for blank: Unicode's White_Space.
BLANKS: Final = "".join(
    map(
        chr,
        (
            *range(9, 14),
            32,
            0x85,
            0xA0,
            0x1680,
            *range(0x2000, 0x200B),
            0x2028,
            0x2029,
            0x202F,
            0x205F,
            0x3000,
        ),
    )
)
_STATES_MAX: Final = 1000
_WORD = re.compile(r"\w+(?:(?<=[^\W\d_])['’.:·](?=[^\W\d_])\w+)*")  # noqa: RUF001 - an apostrophe
_LETTER = re.compile(r"[^\W\d_]")
_SHOWN = re.compile("'[^']*'|\"[^\"]*\"|`[^`]*`")
_REFERENCE = re.compile(r"\$(?:\{(\w*)\}|(\w+)|(\$))")


def lower(text: str) -> str:
    """Make letters small, one by one as Go does."""
    return text.lower() if text.isascii() else "".join([_one(char.lower(), char) for char in text])


def upper(text: str) -> str:
    """Make letters large, one by one as Go does."""
    return text.upper() if text.isascii() else "".join([_one(char.upper(), char) for char in text])


def _one(changed: str, char: str) -> str:
    if len(changed) == 1:
        return changed
    return "i" if char == "\u0130" else char


@pure_function("toLower", "text")
def _to_lower(text: str) -> Value:
    """Make all letters small."""
    return lower(text)


@pure_function("toUpper", "text")
def _to_upper(text: str) -> Value:
    """Make all letters large."""
    return upper(text)


@pure_function("toTitle", "text")
def _to_title(text: str) -> Value:
    """Make the first letter of each word large."""
    return _WORD.sub(
        lambda word: _LETTER.sub(lambda found: found[0].title(), word[0], count=1), text
    )


@pure_function("trim", "text text")
def _trim(characters: str, text: str) -> Value:
    """Take any of these characters off both ends."""
    return text.strip(characters) if characters else text


@pure_function("trimPrefix", "text text")
def _trim_prefix(prefix: str, text: str) -> Value:
    """Take this beginning off."""
    return text.removeprefix(prefix)


@pure_function("trimSuffix", "text text")
def _trim_suffix(suffix: str, text: str) -> Value:
    """Take this end off."""
    return text.removesuffix(suffix)


@pure_function("trimSpace", "text")
def _trim_space(text: str) -> Value:
    """Take blanks off both ends."""
    return text.strip(BLANKS)


@template_function("replaceAll", "text text text")
def replace_all(execution: Any, old: str, new: str, text: str) -> Value:
    """Replace each occurrence of a text: `replaceAll from to text`."""
    count = text.count(old) if old else len(text) + 1
    execution.check_text(len(text) + count * max(0, len(new) - len(old)))
    return text.replace(old, new)


def split_text(text: str, separator: str) -> list[str]:
    """Split; without a separator into characters."""
    return text.split(separator) if separator else list(text)


@template_function("split", "text text")
def _split(execution: Any, separator: str, text: str) -> Value:
    """Split a text, whose blanks at both ends are taken off: `split separator text`."""
    text = text.strip(BLANKS)
    parts = split_text(text, separator) if text else []
    execution.charge(len(parts))
    return parts


@template_function("splitToMap", "text text text")
def _split_to_map(execution: Any, separator: str, between: str, text: str) -> Value:
    """Split a text into a map: `splitToMap "," "=" "a=1,b=2"`."""
    text = text.strip(BLANKS)
    found = TextMap()
    parts = split_text(text, separator) if text else []
    execution.charge(len(parts))
    for part in parts:
        key, mark, value = part.partition(between) if between else ("", "x", part)
        if mark:
            found[key] = value
    return found


@template_function("join", "text list?")
def _join(execution: Any, separator: str, texts: list[Value]) -> Value:
    """Join texts: `join separator list`."""
    return join_texts(execution, separator, texts)


def join_texts(execution: Any, separator: str, texts: list[Value]) -> str:
    """Join texts. Raises TemplateError where one is none."""
    for one in texts:
        if not isinstance(one, str):
            raise TemplateError("wrong type for value; expected a list of strings")
    execution.check_text(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


@template_function("indent", "int text")
def indent_text(execution: Any, spaces: int, text: str) -> Value:
    """Put spaces before each line that is not empty: `indent 4 text`."""
    if spaces < 0:
        raise TemplateError("the number of spaces is negative")
    lines = text.split("\n")
    execution.check_text(len(text) + spaces * len(lines))
    return "\n".join([" " * spaces + line if line else line for line in lines])


# ---- regular expressions ----


def _refused(err: PatternRefusedError) -> TemplateError:
    # Without the text between quotes: it may be data, and faults are shown as events.
    return TemplateError(f"the regular expression {_SHOWN.sub('…', str(err))}")


def compile_search(pattern: str) -> CapturingRegexp:
    """Compile a pattern. Raises TemplateError."""
    try:
        return CapturingRegexp(pattern, states_max=_STATES_MAX)
    except PatternRefusedError as err:
        raise _refused(err) from None


@template_function("regexMatch", "text text")
def regex_match(execution: Any, pattern: str, text: str) -> Value:
    """Return whether a text has a match: `regexMatch pattern text`."""
    try:
        matcher = RegexpMatcher(pattern, states_max=_STATES_MAX, text_chars_max=len(text))
    except PatternRefusedError as err:
        raise _refused(err) from None
    return matcher.is_in(text, execution.charge)


@template_function("regexReplaceAll", "text text text")
def regex_replace(execution: Any, pattern: str, new: str, text: str) -> Value:
    """Replace each match: `regexReplaceAll pattern new text`, with $1 and ${name} in the new text."""
    return replace_matches(execution, compile_search(pattern), new, text)


def replace_matches(execution: Any, regexp: CapturingRegexp, new: str, text: str) -> str:
    """Replace each match; an empty one right behind another is none."""
    parts: list[str] = []
    at, size, last = 0, 0, -1
    for match in regexp.find_all(text, execution.charge):
        start, end = match.span
        if start == end == last:
            continue
        parts += [text[at:start], expand(new, match)]
        size += len(parts[-1]) + len(parts[-2])
        execution.check_text(size)
        at = last = end
    return "".join([*parts, text[at:]])


def expand(new: str, match: RegexpMatch) -> str:
    """Fill $1, $name, ${name} and $$ of a replacement."""

    def value(found: re.Match[str]) -> str:
        if found[3]:
            return "$"
        name = found[1] if found[2] is None else found[2]
        return match.get(name) if name else ("" if found[2] is not None else found[0])

    size = len(new) + new.count("$") * max((len(one or "") for one in match.groups), default=0)
    if size > 4 * 1024 * 1024:
        raise TemplateLimitExceeded("a replacement is too long")
    return _REFERENCE.sub(value, new)


# ---- hashes ----


@pure_function("sha256Hex", "text")
def _sha256(text: str) -> Value:
    """Return the SHA-256 of a text in hexadecimal digits."""
    return hashlib.sha256(bytes_of(text)).hexdigest()


@pure_function("md5sum", "text")
def _md5(text: str) -> Value:
    """Return the MD5 of a text in hexadecimal digits."""
    return hashlib.md5(bytes_of(text), usedforsecurity=False).hexdigest()


@pure_function("hmacSHA256Hex", "text text")
def _hmac(message: str, key: str) -> Value:
    """Return the HMAC-SHA-256 of a message in hexadecimal digits: `hmacSHA256Hex message key`."""
    return hmac.new(bytes_of(key), bytes_of(message), hashlib.sha256).hexdigest()
