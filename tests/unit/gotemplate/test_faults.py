"""Faults of templates: line, nearest name, reason; limits that no template exceeds."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.gotemplate import execution
from shared.gotemplate.functions.catalog import FunctionPolicy
from shared.gotemplate.functions.registry import FUNCTIONS
from shared.gotemplate.template import RenderLimits, parse_template
from tests.unit.gotemplate.no_data import NoData

#: Each line has nine of the one before.
ALIASES = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)
SMALL = RenderLimits(steps=50_000, output_bytes=100_000)


def test_all_functions_that_are_refused_are_reported_with_line_and_reason() -> None:
    """Every function is checked before anything runs: unknown with the nearest name, Consul, Vault, others."""
    text = '{{ toUper "a" }}\n{{ key "x" }}\n{{ with pkiCert "y" }}{{ end }}\n{{ plugin "z" }}\n{{ sprig_now }}'
    assert list(map(str, parse_template(text).faults)) == [
        "line 1: unknown function toUper; did you mean toUpper?",
        "line 2: function key needs Consul, which is not supported; nomadVar may serve instead",
        "line 3: function pkiCert writes to Vault, which is not built yet",
        "line 4: function plugin is not supported: it would start a program on the node",
        "line 5: function sprig_now is not supported",
    ]


def test_the_operator_denies_by_patterns() -> None:
    """A denied function is a fault that names it."""
    policy = FunctionPolicy(denied=dict.fromkeys(("sprig_*", "executeTemplate"), "is denied"))
    text = '{{ sprig_upper "a" }}{{ executeTemplate "b" }}{{ toUpper "c" }}'
    assert [one.message for one in parse_template(text, policy=policy).faults] == [
        "function sprig_upper is denied",
        "function executeTemplate is denied",
    ]
    assert parse_template(text).faults == ()


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a\n{{ if 1 }}", 2, "{{end}} is missing"),
        ("a\n\n{{ 1", 3, "unclosed action"),
        ("{{ end }}", 1, "unexpected {{end}}"),
        ("\n{{ $x }}", 2, "undefined variable $x"),
        ("{{ 1 | 2 }}", 1, "first stage"),
        ('\n{{ "open }}', 2, "unterminated quoted string"),
        ("{{/* x", 1, "unclosed comment"),
        ("{{ if }}{{ end }}", 1, "missing value for if"),
        ("{{ 1i }}", 1, "complex numbers are not supported"),
        ("{{ (1 }}", 1, "unclosed parenthesis"),
        ("{{ else }}", 1, "unexpected {{else}}"),
        ('{{ define "a" }}x{{ end }}\n{{ define "a" }}y{{ end }}', 2, "defined twice"),
        ("{{ if 1 }}" * 65, 1, "nested deeper than 64"),
        ("{{ " + "(" * 65, 1, "nested deeper than 64"),
    ],
)
def test_syntax_errors_have_their_line(text: str, line: int, part: str) -> None:
    """A syntax error names its place and what is wrong."""
    found = parse_template(text).faults[0]
    assert (found.line, part in found.message) == (line, True), found


def test_an_error_at_run_has_its_line_and_function() -> None:
    """An error of a call names the function and the line of the call."""
    found = parse_template('a\n{{ range 2 }}\n{{ parseInt "x" }}{{ end }}').render(NoData()).fault
    assert (
        str(found)
        == "line 3: error calling parseInt: a text of 1 characters is not a number of 64 bits"
    )


@pytest.mark.parametrize(
    "text",
    [
        "{{ range loop 1000000000 }}{{ end }}",
        "{{ range 1000000000 }}{{ end }}",
        "{{ range 1000 }}{{ range 1000 }}{{ range 1000 }}{{ end }}{{ end }}{{ end }}",
        '{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}',
        '{{ define "a" }}{{ executeTemplate "a" }}{{ end }}{{ template "a" }}',
        '{{ define "a" }}{{ if true }}{{ with 1 }}{{ template "a" }}{{ end }}{{ end }}{{ end }}{{ template "a" }}',
        '{{ $x := "aaaaaaaaaa" }}{{ range 100 }}{{ $x = print $x $x }}{{ end }}{{ $x }}',
        "{{ range 100000 }}0123456789{{ end }}",
        '{{ printf "%90000d%90000d" 1 2 }}',
        '{{ sprig_repeat 1000000000 "x" }}',
        '{{ indent 1000000000 "x" }}',
        '{{ replaceAll "" "0123456789" (sprig_repeat 90000 "x") }}',
        "{{ len (sprig_until 1000000000) }}",
        "{{ $l := sprig_list 1 }}{{ range 30 }}{{ $l = sprig_list $l $l }}{{ end }}{{ $l }}",
        '{{ $d := sprig_dict "a" 1 }}{{ $d := sprig_set $d "a" $d }}{{ $d }}',
        '{{ scratch.MapSet "m" "a" 1 }}{{ scratch.MapSet "m" "a" (scratch.Get "m") }}{{ scratch.Get "m" | toJSON }}',
        '{{ regexReplaceAll "(x+x+)+y" "" (sprig_repeat 5000 "x") }}',
        '{{ regexMatch "(a?){500}a{500}" (sprig_repeat 500 "a") }}',
        '{{ parseJSON (sprig_repeat 3000 "[") }}',
        '{{ parseJSON (print (sprig_repeat 500 "[") (sprig_repeat 500 "]")) }}',
        '{{ parseYAML (sprig_repeat 500 "- ") }}',
        "{{ parseYAML `" + ALIASES + "` }}",
    ],
)
def test_no_template_does_more_than_its_budget(text: str) -> None:
    """Endless ranges, endless texts, expressions without end and endless calls end in a fault (attack A5)."""
    rendered = parse_template(text).render(NoData(), limits=SMALL)
    assert rendered.fault is not None and rendered.text == "", rendered.text[:100]


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    """The size of a template is bounded."""
    assert "at most" in str(parse_template("x" * (1024 * 1024 + 1)).faults[0])


def test_a_large_config_is_within_the_budget() -> None:
    """A thousand servers with lookups, conditions and formats take less than a fifth of the steps."""
    text = (
        '{{ $m := parseJSON `{"a":1,"b":{"c":[1,2,3]}}` }}{{ range $i, $x := loop 1000 }}{{ if $i }},{{ end }}'
        '{{ printf "server%03d %s:%d" $i (env "A" | toUpper) (add $i (index $m.b.c 1 | printf "%.0f" | parseInt)) }}'
        "{{ end }}"
    )
    limits = RenderLimits(steps=200_000)
    rendered = parse_template(text).render(NoData({"A": "x"}), limits=limits)
    assert rendered.fault is None and rendered.text.endswith(",server999 X:1001")


def test_every_function_says_what_it_does() -> None:
    """Each function has a purpose that the documentation shows."""
    assert [one.name for one in FUNCTIONS.values() if not one.purpose] == []


def test_what_is_not_built_is_told_apart_from_what_cannot_be() -> None:
    """A job may do without a template that needs Consul, Vault or a source that is missing; a slip is a fault."""
    policy = FunctionPolicy(unbuilt={"nomadVar*": "is not built yet"})
    text = '{{ key "a" }}{{ pkiCert "b" }}{{ plugin "c" }}{{ nomadVarList }}{{ nomadService "x" }}{{ nope }}'
    found = parse_template(text, policy=policy).faults
    assert [one.is_unbuilt for one in found] == [True, True, True, True, False]
    assert found[3].message == "function nomadVarList is not built yet"
    assert found[4].message == "unknown function nope; did you mean ne?"


def test_the_number_of_tokens_is_bounded() -> None:
    """A template of very many actions is refused before it costs much."""
    assert "more than 50000 tokens" in str(parse_template("{{.}}" * 20_000).faults)


def test_no_fault_shows_data() -> None:
    """A fault is shown as an event: what a template was given, perhaps a secret, is not in it."""
    shown = []
    # These show a message, the name of a variable and that of a definition, all written in the template.
    for name in sorted(FUNCTIONS.keys() - {"sprig_fail", "mustEnv", "executeTemplate"}):
        for count in range(1, 4):
            call = " ".join([name, *['(env "V")'] * count])
            for text in ("marker7", "{marker7: [", "'marker7", "&marker7 *no7", "[1, marker7"):
                found = parse_template("{{ " + call + " }}").render(NoData({"V": text})).fault
                if found is not None and ("marker7" in found.message or "no7" in found.message):
                    shown.append(str(found))
    assert shown == []


def test_the_page_names_all_functions_and_no_other() -> None:
    """The table of docs/templates.md is the catalogue."""
    page = (Path(__file__).parents[3] / "docs" / "templates.md").read_text(encoding="utf-8")
    table = page.partition("## Functions")[2].partition("Refused with")[0]
    named = re.findall("`([a-zA-Z0-9_]+)`", table)
    assert sorted(named) == sorted(FUNCTIONS)


def test_a_copy_of_a_list_is_paid_for() -> None:
    """Slices that are kept count against the steps by their size."""
    text = "{{$l := sprig_until 10000}}{{range $i := 1000}}{{scratch.Set (print $i) (slice $l 0 10000)}}{{end}}"
    found = parse_template(text).render(NoData(), limits=RenderLimits(steps=50_000))
    assert found.fault is not None
    assert "limit of steps" in found.fault.message


def test_a_range_that_is_left_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `break` in the first element reads one element, whatever the length of the list."""
    read: list[int] = []
    real = execution._Numbered.__iter__

    def counted(self: execution._Numbered) -> Iterator[object]:
        for one in real(self):
            read.append(1)
            yield one

    monkeypatch.setattr(execution._Numbered, "__iter__", counted)
    text = "{{$l := sprig_until 1000}}{{range $l}}{{break}}{{end}}"
    assert parse_template(text).render(NoData()).fault is None
    assert len(read) == 1
