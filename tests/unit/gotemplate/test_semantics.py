"""What users of templates run into: one test each, beside the recorded results."""

from datetime import UTC, datetime, timedelta

import pytest

from shared.gotemplate.layouts.time_layout import time_text
from shared.gotemplate.template import parse_template
from tests.unit.gotemplate.no_data import NoData


def output(template: str, **env: str) -> str:
    rendered = parse_template(template).render(NoData(env, 1_700_000_000_123_456_789))
    assert rendered.fault is None, rendered.fault
    return rendered.text


def fault(template: str) -> str:
    found = parse_template(template).render(NoData()).fault
    assert found is not None, "it was rendered"
    return found.message


DATA = '{{ $d := parseJSON `{"n": 3, "list": ["b", "a"], "map": {"z": 1, "a": 2}, "none": null}` }}'


def test_a_missing_key_prints_no_value_and_has_no_fields() -> None:
    """`.no` prints `<no value>`; a field of it is an error, so that no config has a hole in silence."""
    assert output(DATA + "{{ $d.no }}") == "<no value>"
    assert "nil pointer" in fault(DATA + "{{ $d.no.x }}")
    assert "can't evaluate field x" in fault(DATA + "{{ $d.n.x }}")


def test_a_missing_key_is_an_error_where_the_job_asks_for_it() -> None:
    """With error_on_missing_key a missing key is a fault with its line."""
    template = parse_template(DATA + "\n{{ $d.no }}")
    found = template.render(NoData(), is_missing_key_error=True).fault
    assert found is not None and found.line == 2 and "'no'" in found.message
    assert parse_template("{{ .no }}").render(NoData(), is_missing_key_error=True).fault is not None


@pytest.mark.parametrize("call", ["lt 1 1.5", 'eq 0 "0"', "eq $d.list $d.list", "lt true false"])
def test_kinds_that_do_not_compare_are_an_error(call: str) -> None:
    """An int and a float, a number and a text, and two lists cannot be compared."""
    assert "compar" in fault(DATA + "{{ " + call + " }}")


def test_maps_are_ranged_over_in_the_order_of_their_keys() -> None:
    """Keys are ordered by their bytes."""
    assert output(DATA + "{{ range $k, $v := $d.map }}{{ $k }}{{ $v }} {{ end }}") == "a2 z1 "


def test_range_counts_over_numbers_and_loops() -> None:
    """`range 3` and `range loop 3` give 0, 1 and 2."""
    assert output("{{ range 3 }}{{ . }}{{ end }}{{ range loop 1 3 }}{{ . }}{{ end }}") == "01212"


def test_trim_markers_take_all_blanks_and_need_one() -> None:
    """`{{- ` trims blanks and lines before it; `{{-3}}` is a number."""
    assert output("a \n\t {{- 1 -}} \n b{{-3}}") == "a1b-3"


def test_break_and_continue_end_the_innermost_range() -> None:
    """`break` and `continue` belong to one `range`, and are syntax errors outside of it."""
    body = "{{ if eq . 1 }}{{ continue }}{{ end }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}"
    assert output("{{ range 2 }}{{ range 5 }}" + body + "{{ end }};{{ end }}") == "02;02;"
    assert parse_template("{{ break }}").faults
    assert parse_template("{{ if true }}{{ continue }}{{ end }}").faults


def test_else_with_and_else_if_are_chains() -> None:
    """`else with` changes the current value, `else if` does not."""
    assert output('{{ with "" }}a{{ else with "b" }}{{ . }}{{ else }}c{{ end }}') == "b"
    assert output("{{ if 0 }}a{{ else if 1 }}b{{ else }}c{{ end }}") == "b"


def test_an_assignment_is_seen_outside_and_a_declaration_is_not() -> None:
    """`=` changes a variable of an outer block, `:=` makes one of the inner block."""
    assert output("{{ $x := 0 }}{{ range 3 }}{{ $x = . }}{{ end }}{{ $x }}") == "2"
    assert output("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}") == "1"


def test_the_root_stays_in_blocks_and_changes_in_templates() -> None:
    """`$` is the value that the text, or a called template, began with."""
    assert (
        output('{{ define "t" }}{{ range 1 }}{{ $ }}{{ end }}{{ end }}{{ template "t" "r" }}')
        == "r"
    )


def test_definitions_are_global_and_see_no_variables() -> None:
    """A `define` holds before and behind its place; `block` defines and calls."""
    assert output('{{ template "a" }}{{ define "a" }}x{{ end }}') == "x"
    assert output('{{ block "a" 3 }}[{{ . }}]{{ end }}{{ template "a" 4 }}') == "[3][4]"
    assert "undefined variable" in str(
        parse_template('{{ $x := 1 }}{{ define "a" }}{{ $x }}{{ end }}').faults
    )


def test_an_unknown_template_is_a_fault_at_run_alone() -> None:
    """A call of a template that is not defined is no fault as long as it is not reached."""
    assert output('{{ if false }}{{ template "no" }}{{ end }}ok') == "ok"
    assert "not defined" in fault('{{ template "no" }}')


def test_constants_are_those_of_go() -> None:
    """Characters are numbers; hexadecimal, octal and exponents are known; nil is an argument alone."""
    assert (
        output("{{ 'a' }} {{ 0x1F }} {{ 0o17 }} {{ 1e3 }} {{ `raw\\n` }}") == "97 31 15 1000 raw\\n"
    )
    assert output("{{ print nil }}") == "<nil>"
    assert "nil is not a command" in fault("{{ nil }}")
    assert "overflows int" in str(parse_template("{{ 9223372036854775808 }}").faults)


def test_comments_touch_their_delimiters() -> None:
    """`{{/* … */}}` and `{{- /* … */ -}}` are comments, `{{ /* … */ }}` is none."""
    assert output("a{{/* x */}}b {{- /* y */ -}} c") == "abc"
    assert parse_template("{{ /* x */ }}").faults


def test_printf_shows_misuse_in_its_output() -> None:
    """A wrong verb is no error, and is seen in the text."""
    assert output('{{ printf "%d %s" "a" }}') == "%!d(string=a) %!s(MISSING)"
    assert output('{{ printf "%d" 1 2 }}') == "1%!(EXTRA int=2)"
    assert "not supported" in fault('{{ printf "%x" 1.5 }}')


def test_print_puts_blanks_between_values_that_are_no_text() -> None:
    """Blanks stand between two numbers, and not beside a text."""
    assert output('{{ print 1 2 "a" 3 4 }}') == "1 2a3 4"


def test_numbers_of_json_are_floats() -> None:
    """`parseJSON` makes every number a float: a million prints with an exponent."""
    assert output("{{ parseJSON `1000000` }} {{ parseJSON `100` }}") == "1e+06 100"
    assert output("{{ parseJSON `1000000` | toJSON }}") == "1000000"


def test_text_is_counted_in_bytes() -> None:
    """`len`, `index` and `slice` count bytes; half a character stays a byte of the output."""
    assert output('{{ len "é" }} {{ index "é" 0 }} {{ slice "éa" 2 }}') == "2 195 a"
    assert output('{{ slice "é" 0 1 }}').encode("utf-8", "surrogateescape") == b"\xc3"


def test_eq_takes_many_and_early_functions_stop() -> None:
    """`eq a b c` asks whether a is b or c; `and` and `or` evaluate no argument behind the one that decides."""
    assert output("{{ eq 1 2 1 }} {{ or 1 (index nil 1) }} {{ and 0 (index nil 1) }}") == "true 1 0"


def test_arithmetic_takes_the_second_operand_first() -> None:
    """`5 | subtract 2` is 3, ints stay ints, and division by zero is an error."""
    assert output("{{ 5 | subtract 2 }} {{ 7 | divide 2 }} {{ divide 2.0 7 }}") == "3 3 3.5"
    assert "division by zero" in fault("{{ divide 0 1 }}")


def test_replacements_know_groups() -> None:
    """`$1` and `${name}` stand for groups; `$1x` is a group of that name."""
    assert output('{{ regexReplaceAll "(a)(?P<n>b)" "${n}$1$1x" "ab" }}') == "ba"


def test_scratch_prints_nothing_when_it_is_set() -> None:
    """The scratch pad lasts for one pass."""
    template = parse_template(
        '{{ if scratch.Key "a" }}old{{ end }}{{ scratch.Set "a" 1 }}{{ scratch.Get "a" }}'
    )
    assert [template.render(NoData()).text for _ in range(2)] == ["1", "1"]


def test_the_environment_is_the_one_of_the_task() -> None:
    """`env` reads what the caller gives and nothing of this process."""
    assert output('{{ env "PATH" }}|{{ env "A" }}|{{ envOrDefault "B" "d" }}', A="x") == "|x|d"


def test_timestamp_is_the_callers_time() -> None:
    """The time is printed in RFC 3339, in seconds, or by a layout of Go, always in UTC."""
    assert output("{{ timestamp }}") == "2023-11-14T22:13:20Z"
    assert output('{{ timestamp "unix" }}') == "1700000000"
    layout = "Mon Jan _2 15:04:05.000 MST 2006, Monday 02 January 06 3:4:5PM 002 -07:00"
    expected = "Tue Nov 14 22:13:20.123 UTC 2023, Tuesday 14 November 23 10:13:20PM 318 +00:00"
    assert output('{{ timestamp "' + layout + '" }}') == expected


def test_other_delimiters_can_be_chosen() -> None:
    """left_delimiter and right_delimiter replace the braces."""
    template = parse_template("[[ print 1 -]]  {{ x }}", delimiters=("[[", "]]"))
    assert template.render(NoData()).text == "1{{ x }}"


def test_known_differences_from_go() -> None:
    """Where Caravan differs on purpose: two kinds of ints have one name, and a binary text is no YAML."""
    assert output('{{ printf "%T" (add 1 2) }}') == "int"
    assert "not UTF-8" in fault('{{ toYAML "\\xff" }}')
    assert output("{{ parseYAML `a: {b: 1}` | toJSON }}") == '{"a":{"b":1}}'


def test_dates_are_those_of_the_calendar() -> None:
    """Every day of 400 years, leap days too, has the date that the standard library gives it."""
    for days in range(-1000, 146_097, 7):
        expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=days, seconds=days % 86_400)
        made = time_text(int(expected.timestamp()) * 1_000_000_000, "2006-01-02 002 Mon 15:04:05")
        assert made == expected.strftime("%Y-%m-%d %j %a %H:%M:%S")
