"""A template, parsed once and rendered as often as its data changes.

A render is one pass: each call whose data is not known yet returns an empty value and notes the key. The text counts
only when nothing is missing; an error beside missing data is not a fault, since an empty value may have caused it.
"""

from typing import Final

import msgspec

from shared.gotemplate.data import TemplateData
from shared.gotemplate.errors import (
    TemplateError,
    TemplateFault,
    TemplateLimitExceeded,
    line_of,
)
from shared.gotemplate.execution import OUTPUT_BYTES_MAX, STEPS_MAX, Execution
from shared.gotemplate.functions.catalog import FunctionPolicy
from shared.gotemplate.syntax.parser import Parser
from shared.gotemplate.syntax.tree import Body

#: Characters of one template.
TEMPLATE_CHARS_MAX: Final = 1024 * 1024
#: Faults reported at once.
FAULTS_MAX: Final = 20
DELIMITERS: Final = ("{{", "}}")


class RenderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of one pass."""

    steps: int = STEPS_MAX
    output_bytes: int = OUTPUT_BYTES_MAX


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pass: a text that counts only without `missing` and `fault`."""

    text: str = ""
    #: keys of data that is not known yet, in the order met.
    missing: tuple[str, ...] = ()
    #: all keys that were asked for.
    used: tuple[str, ...] = ()
    fault: TemplateFault | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the text counts."""
        return self.fault is None and not self.missing


class Template:
    """A parsed template. With `faults` it cannot be rendered."""

    def __init__(
        self, text: str, definitions: dict[str, Body], faults: list[TemplateFault]
    ) -> None:
        self._text = text
        self._definitions = definitions
        self.faults = tuple(faults)

    def render(
        self,
        data: TemplateData,
        *,
        is_missing_key_error: bool = False,
        limits: RenderLimits | None = None,
    ) -> Rendered:
        """Evaluate it once. Never raises because of the template or its data."""
        if self.faults:
            return Rendered(fault=self.faults[0])
        bounds = limits or RenderLimits()
        execution = Execution(
            self._definitions,
            data,
            is_missing_key_error=is_missing_key_error,
            steps=bounds.steps,
            output_max=bounds.output_bytes,
        )
        text, fault = "", None
        try:
            text = execution.run()
        except TemplateError as err:
            if not execution.missing or isinstance(err, TemplateLimitExceeded):
                fault = TemplateFault(line_of(self._text, err.at), err.message)
        missing = tuple(execution.missing)
        return Rendered(text=text, missing=missing, used=tuple(execution.used), fault=fault)


def parse_template(
    text: str,
    *,
    delimiters: tuple[str, str] = DELIMITERS,
    policy: FunctionPolicy | None = None,
) -> Template:
    """Parse a template and check its functions; all that is wrong is in `faults`."""
    faults: list[TemplateFault] = []
    rules = policy or FunctionPolicy()

    def check(name: str, at: int) -> None:
        # The nearest name of an unknown function costs more than the rest of its check.
        if len(faults) < FAULTS_MAX and (reason := rules.refusal(name)):
            faults.append(TemplateFault(line_of(text, at), reason, rules.is_unbuilt(name)))

    def check_argument(name: str, argument: str, at: int) -> None:
        if len(faults) < FAULTS_MAX and (reason := rules.argument_refusal(name, argument)):
            faults.append(TemplateFault(line_of(text, at), reason))

    if len(text) > TEMPLATE_CHARS_MAX:
        reason = f"a template has at most {TEMPLATE_CHARS_MAX} characters, was {len(text)}"
        return Template("", {}, [TemplateFault(1, reason)])
    left, right = (given or default for given, default in zip(delimiters, DELIMITERS, strict=True))
    definitions: dict[str, Body] = {}
    try:
        definitions = Parser(text, (left, right), check, check_argument).parse()
    except TemplateError as err:
        faults.append(TemplateFault(line_of(text, err.at), err.message))
    except RecursionError:
        faults.append(TemplateFault(1, "nested too deeply"))
    return Template(text, definitions, faults)
