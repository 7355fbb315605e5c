"""Templates over generated input: no text and no data is a crash, and none exceeds its budget."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.gotemplate.functions.registry import FUNCTIONS
from shared.gotemplate.layouts.yaml_text import read_yaml, yaml_text
from shared.gotemplate.template import RenderLimits, parse_template
from tests.examples import examples
from tests.unit.gotemplate.no_data import NoData

pytestmark = pytest.mark.property

STEPS = 5_000
LIMITS = RenderLimits(steps=STEPS, output_bytes=10_000)
WORDS = st.sampled_from(
    [
        *(
            "{{",
            "}}",
            "{{-",
            "-}}",
            " ",
            "\n",
            "|",
            "(",
            ")",
            ".",
            "$",
            "$x",
            ":=",
            "=",
            ",",
            "nil",
        ),
        *("if", "else", "end", "range", "with", "define", "block", "template", "break", "continue"),
        *(
            ".a",
            ".a.b",
            '"t"',
            '"a/b"',
            "`r`",
            "'c'",
            "1",
            "-2",
            "0x1F",
            "1.5",
            "1e3",
            "true",
            "{{/*",
            "*/}}",
        ),
    ]
)
NAMES = st.sampled_from(sorted(FUNCTIONS))
ARGUMENTS = st.sampled_from(
    [
        *(
            "nil",
            "0",
            "1",
            "-1",
            "3.7",
            "true",
            '""',
            '"a"',
            '"a,b=c"',
            '"[1,2]"',
            "$d",
            "$d.list",
            "$d.map",
            "$d.no",
        ),
        *(
            '"{\\"a\\":1}"',
            '"(a+)*"',
            '"$1"',
            '"é"',
            '"\\xff"',
            "9223372036854775807",
            '"%d%s%v%q"',
            "(loop 3)",
        ),
        *(
            '(nomadVar "v")',
            "scratch",
            "(parseUint `7`)",
            '(splitToMap "," "=" "a=1")',
            '"1e999"',
            '"5000"',
        ),
    ]
)
DATA = '{{ $d := parseJSON `{"list": ["a", 1, null, [2]], "map": {"a": {"b": 1}}}` }}'
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def check(text: str) -> None:
    template = parse_template(text)
    rendered = template.render(NoData({"A": "x"}), limits=LIMITS)
    assert len(rendered.text.encode("utf-8", "surrogateescape")) <= LIMITS.output_bytes
    assert bool(template.faults) <= (rendered.fault is not None)
    again = template.render(NoData({"A": "x"}), limits=LIMITS)
    assert again == rendered


@given(st.lists(WORDS | NAMES, max_size=30))
@examples(150)
def test_no_text_is_a_crash(words: list[str]) -> None:
    """Any mixture of the language's pieces is rendered or has a fault, twice the same."""
    check(" ".join(words))
    check("".join(words))


@given(st.text(max_size=60))
@examples(100)
def test_no_characters_are_a_crash(text: str) -> None:
    """Any characters, inside an action and outside, are rendered or have a fault."""
    check(text)
    check("{{ " + text + " }}")


@given(st.lists(st.tuples(NAMES, st.lists(ARGUMENTS, max_size=4)), min_size=1, max_size=4))
@examples(600, gate=200)
def test_no_arguments_are_a_crash(calls: list[tuple[str, list[str]]]) -> None:
    """Any function takes any arguments, and any result goes into any function."""
    pipeline = " | ".join(" ".join([name, *arguments]) for name, arguments in calls)
    check(DATA + "{{ " + pipeline + " }}{{ range " + pipeline + " }}{{ . }}{{ end }}")


@given(VALUES)
@examples(100)
def test_values_survive_json(value: object) -> None:
    """What toJSON writes is what was read."""
    text = json.dumps(value)
    rendered = parse_template("{{ parseJSON (env `V`) | toJSON }}").render(NoData({"V": text}))
    assert rendered.fault is None
    assert json.loads(rendered.text) == json.loads(text, parse_int=float)


@given(VALUES)
@examples(100)
def test_values_survive_yaml(value: object) -> None:
    """What toYAML writes is read back as the same value."""
    assert read_yaml(yaml_text(value)) == value
