"""Values as Go's fmt prints them: %v, print, println and printf."""

import re
from typing import Final

from shared.gotemplate.errors import TemplateError, TemplateLimitExceeded
from shared.gotemplate.layouts.numbers import float_text, hex_text, quoted
from shared.gotemplate.syntax.constants import bytes_of, text_of
from shared.gotemplate.values import (
    UNDEFINED,
    Channel,
    GoObject,
    Value,
    sorted_items,
    type_name,
)

_DIRECTIVE = re.compile(
    r"%(?P<flags>[-+# 0]*)(?P<width_at>\[\d{0,4}\])?(?P<width>\*|\d*)"
    r"(?P<dot>\.(?P<digits_at>\[\d{0,4}\])?(?P<digits>\*|\d*))?(?P<at>\[\d{0,4}\])?(?P<verb>.?)",
    re.DOTALL,
)
#: Go's own bound on widths is a million; ours keeps a line of a config.
WIDTH_MAX: Final = 100_000
#: Characters of one formatted text.
TEXT_MAX: Final = 4 * 1024 * 1024


def printed(value: Value) -> str:
    """Return what an action prints."""
    return "<no value>" if value is UNDEFINED or value is None else general(value)


def general(value: Value) -> str:
    """Return a value as %v prints it."""
    return _Format("", None, None, "v").write(value)


def sprint(values: list[Value]) -> str:
    """Join values as `print` does: blanks between two that are not texts."""
    parts: list[str] = []
    for at, value in enumerate(values):
        if at and not isinstance(value, str) and not isinstance(values[at - 1], str):
            parts.append(" ")
        parts.append(general(value))
    return "".join(parts)


def sprintln(values: list[Value]) -> str:
    """Join values as `println` does: blanks between all, and a line's end."""
    return " ".join(general(value) for value in values) + "\n"


class _Arguments:
    """The arguments of a printf, in their order or by number."""

    def __init__(self, values: list[Value]) -> None:
        self.values = values
        self.at = 0
        self.is_reordered = False
        self.is_bad = False

    def jump(self, index: str | None) -> None:
        """Go to a numbered argument: `[n]`."""
        if index is None:
            return
        self.is_reordered = True
        number = int(index[1:-1] or 0)
        self.is_bad = not 1 <= number <= len(self.values)
        if not self.is_bad:
            self.at = number - 1

    def number(self) -> int | None:
        """Take a width or precision; None: there is none."""
        if self.at >= len(self.values):
            return None
        value = self.values[self.at]
        self.at += 1
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > WIDTH_MAX:
            return None
        return value


def sprintf(pattern: str, values: list[Value]) -> str:
    """Format as `printf` does, with its notes of misuse."""
    parts: list[str] = []
    arguments = _Arguments(values)
    at = size = 0
    while (found := pattern.find("%", at)) >= 0:
        parts.append(pattern[at:found])
        directive = _DIRECTIVE.match(pattern, found)
        assert directive is not None, "it matches a percent sign alone"
        at = directive.end()
        parts.append(_directive(directive, arguments))
        size += len(parts[-1])
        if size > TEXT_MAX:
            raise TemplateLimitExceeded(f"printf makes more than {TEXT_MAX} characters")
    parts.append(pattern[at:])
    if not arguments.is_reordered and arguments.at < len(values):
        extra = ", ".join(_with_type(value) for value in values[arguments.at :])
        parts.append(f"%!(EXTRA {extra})")
    return "".join(parts)


def _with_type(value: Value) -> str:
    name = type_name(value)
    return name if name == "<nil>" else f"{name}={general(value)}"


def _directive(found: re.Match[str], arguments: _Arguments) -> str:
    notes, flags = "", found["flags"]
    arguments.is_bad = False
    arguments.jump(found["width_at"])
    width = _measure(found["width"], arguments)
    if width is None and found["width"]:
        notes += "%!(BADWIDTH)"
    if width is not None and width < 0:
        flags, width = flags + "-", -width
    arguments.jump(found["digits_at"])
    digits = (_measure(found["digits"], arguments) or 0) if found["dot"] else None
    if found["dot"] and found["digits"] == "*" and (digits is None or digits < 0):
        notes, digits = notes + "%!(BADPREC)", None
    arguments.jump(found["at"])
    verb = found["verb"]
    if not verb:
        return notes + "%!(NOVERB)"
    if verb == "%":
        return notes + "%"
    if arguments.is_bad:
        return f"{notes}%!{verb}(BADINDEX)"
    if arguments.at >= len(arguments.values):
        return f"{notes}%!{verb}(MISSING)"
    value = arguments.values[arguments.at]
    arguments.at += 1
    if verb == "T":
        return notes + _Format(flags, width, digits, "s").write(type_name(value))
    return notes + _Format(flags, width, digits, verb).write(value)


def _measure(text: str, arguments: _Arguments) -> int | None:
    """Read a width or precision; None where there is none, or none that is allowed."""
    if text == "*":
        return arguments.number()
    number = int(text[:8]) if text else None
    return number if number is not None and number <= WIDTH_MAX else None


class _Format:
    """One verb with its flags."""

    def __init__(self, flags: str, width: int | None, digits: int | None, verb: str) -> None:
        self._left = "-" in flags
        self._plus = "+" in flags and verb != "v"
        self._sharp = "#" in flags
        self._space = " " in flags
        self._zero = "0" in flags
        self._width = width or 0
        self._digits = digits
        self._verb = verb
        self._made = 0

    def write(self, value: Value) -> str:
        """Format one value."""
        if value is None or value is UNDEFINED:
            shown = "<nil>" if self._verb == "v" else f"%!{self._verb}(<nil>)"
            return self._padded(shown, zeros=False) if self._verb == "v" else shown
        if isinstance(value, bool):
            return self._bool(value)
        if isinstance(value, int):
            return self._int(value)
        if isinstance(value, float):
            return self._float(value)
        if isinstance(value, str):
            return self._text(value)
        return self._composite(value)

    def _composite(self, value: Value) -> str:
        if isinstance(value, list):
            if self._verb == "v" and self._sharp:
                return "[]interface {}{" + ", ".join(self.write(one) for one in value) + "}"
            return "[" + " ".join(self.write(one) for one in value) + "]"
        if isinstance(value, dict):
            items = [self.write(key) + ":" + self.write(one) for key, one in sorted_items(value)]
            if self._verb == "v" and self._sharp:
                return type_name(value) + "{" + ", ".join(items) + "}"
            return "map[" + " ".join(items) + "]"
        if isinstance(value, GoObject):
            if value.text is not None and self._verb in "vsqxX":
                return self._text(value.text)
            return "{" + " ".join(self.write(one) for one in value.fields.values()) + "}"
        shown = "a channel" if isinstance(value, Channel) else "a function"
        return f"%!{self._verb}({type_name(value)}={shown})"

    def _padded(self, text: str, *, zeros: bool) -> str:
        missing = self._width - len(text)
        self._made += max(len(text), self._width)
        if self._made > TEXT_MAX:
            raise TemplateLimitExceeded(f"printf makes more than {TEXT_MAX} characters")
        if missing <= 0:
            return text
        if self._left:
            return text + " " * missing
        if not zeros:
            return " " * missing + text
        sign = text[:1] if text[:1] in {"+", "-", " "} else ""
        return sign + "0" * missing + text[len(sign) :]

    def _misused(self, value: Value) -> str:
        return f"%!{self._verb}({_with_type(value)})"

    def _bool(self, value: bool) -> str:  # noqa: FBT001 - the value itself
        if self._verb not in "tv":
            return self._misused(value)
        return self._padded("true" if value else "false", zeros=False)

    def _int(self, value: int) -> str:
        verb = self._verb
        if verb in "cqU":
            return self._character(value)
        if verb not in "vdbooOxX" or not verb:
            return self._misused(value)
        base = {"v": "d", "O": "o"}.get(verb, verb)
        digits = format(abs(value), base)
        if self._digits is not None:
            digits = "" if not self._digits and not value else digits.rjust(self._digits, "0")
        sign = "-" if value < 0 else "+" if self._plus else " " if self._space else ""
        prefix = {"b": "0b", "o": "0", "x": "0x", "X": "0X"}.get(verb, "") if self._sharp else ""
        if verb == "o" and digits.startswith("0"):
            prefix = ""
        prefix = "0o" if verb == "O" else prefix
        if self._zero and not self._left and self._digits is None:
            digits = digits.rjust(self._width - len(sign), "0")
        return self._padded(sign + prefix + digits, zeros=False)

    def _character(self, value: int) -> str:
        number = value if 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else 0xFFFD
        if self._verb == "U":
            shown = f"U+{value:04X}" if value >= 0 else self._misused(value)
            if self._sharp and chr(number).isprintable():
                shown += f" '{chr(number)}'"
            return self._padded(shown, zeros=False)
        char = chr(number)
        shown = char if self._verb == "c" else quoted(char, "'", ascii_only=self._plus)
        return self._padded(shown, zeros=self._zero)

    def _float(self, value: float) -> str:
        verb = "g" if self._verb == "v" else "f" if self._verb == "F" else self._verb
        if verb in "bxX":
            raise TemplateError(f"printf: %{verb} of a number with a fraction is not supported")
        if verb not in "eEfgG":
            return self._misused(value)
        digits = self._digits if verb in "gG" or self._digits is not None else 6
        shown = float_text(value, verb, digits)
        if shown[0] not in "+-" and (self._plus or self._space):
            shown = ("+" if self._plus else " ") + shown
        if shown[0] == "+" and self._space and not self._plus:
            shown = " " + shown[1:]
        return self._padded(shown, zeros=self._zero and shown.lstrip("+- ")[0].isdigit())

    def _text(self, value: str) -> str:
        verb = self._verb
        if verb in "sq" or verb == "v":
            if self._digits is not None:
                value = value[: self._digits]
            if verb == "q" or (verb == "v" and self._sharp):
                raw = self._sharp and verb == "q" and "`" not in value and value.isprintable()
                value = f"`{value}`" if raw else quoted(value, ascii_only=self._plus)
            return self._padded(value, zeros=self._zero)
        if verb in "xX":
            if self._digits is not None:
                value = text_of(bytes_of(value)[: self._digits])
            shown = hex_text(
                value,
                upper=verb == "X",
                separator=" " if self._space else "",
                prefix="0x" if self._sharp else "",
            )
            return self._padded(shown, zeros=self._zero)
        return self._misused(value)
