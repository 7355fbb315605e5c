"""Variables, locals and dynamic blocks of a job file."""

from typing import Any

import pytest

from tests.unit.jobspec.hcl_text import blocks, document

DECLARED = """
variable "plain" { default = "p" }
variable "count" {
  type    = number
  default = 1
}
variable "names" { type = list(string) }
variable "where" {
  type = object({ dc = string, rack = optional(number, 7) })
  default = { dc = "dc1" }
}
job "a" {
  plain = var.plain
  count = var.count
  names = var.names
  where = var.where
}
"""


def test_each_source_of_a_variable_wins_over_the_one_before() -> None:
    """Default, environment, files in order, command line: the later wins; text of a typed variable is read as HCL."""
    found, faults = document(
        DECLARED,
        env={
            "NOMAD_VAR_plain": "nomad",
            "CARAVAN_VAR_plain": "caravan",
            "CARAVAN_VAR_stray": "ignored",
            "NOMAD_VAR_names": '["env"]',
        },
        var_files=[("one.hcl", "count = 2"), ("two.hcl", 'count = "3"\nnames = ["file"]')],
        variables={"names": '["a", 1]'},
    )
    assert faults == []
    assert found == {
        "plain": "caravan",
        "count": 3,
        "names": ["a", "1"],
        "where": {"dc": "dc1", "rack": 7},
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"variables": {"names": "[", "count": "x"}}, "-var names: expected a value"),
        ({"variables": {"names": "[]", "count": "x"}}, "'count': must be a number, was 'x'"),
        ({"variables": {"names": "{a = 1}"}}, "'names': must be a list, was an object"),
        ({"variables": {"names": "[]", "where": "{rack = 1}"}}, "element 'dc' is missing"),
        (
            {"variables": {"names": "[]", "conut": "1"}},
            "'conut' is not declared in the job file; did you mean count?",
        ),
        ({"var_files": [("v.hcl", "names = []\nnope = 1")]}, "'nope' is not declared"),
        ({"var_files": [("v.hcl", "names = [")]}, "expected a value"),
        ({"var_files": [("v.hcl", "names = []\nb {}")]}, "must not contain blocks"),
        ({}, "variable 'names' has no value: set it with -var names=…"),
    ],
)
def test_wrong_variables_are_told(given: dict[str, Any], told: str) -> None:
    """A value of a wrong type, an undeclared name and a variable without value are reported, each once."""
    _, faults = document(DECLARED, **given)
    assert [message for _, message in faults if told in message], faults
    assert len({message for _, message in faults}) == len(faults)


def test_a_validation_rule_is_asked() -> None:
    """A variable's own validation refuses a value in its own words."""
    text = """
variable "n" {
  default = 3
  validation {
    condition     = var.n < 3
    error_message = "Too many."
  }
}
job "a" {}
"""
    assert document(text)[1] == [(2, "variable 'n', was 3: Too many.")]
    assert document(text, variables={"n": "2"})[1] == []


def test_locals_need_no_order() -> None:
    """A local may use one that stands below it, variables, and functions."""
    found, faults = document(
        'locals {\n a = "${local.b}!"\n b = upper(var.x)\n}\nvariable "x" { default = "y" }\njob "j" { v = local.a }'
    )
    assert (found, faults) == ({"v": "Y!"}, [])


def test_a_ring_of_locals_is_named() -> None:
    """A cycle of locals is reported once, with its line; errors that follow from it are not."""
    text = (
        'locals {\n  a = local.b\n  b = [local.c]\n  c = local.a\n}\njob "j" {\n  x = local.b\n}\n'
    )
    (fault,) = document(text)[1]
    assert fault == (
        2,
        "locals depend on each other in a cycle: local.a → local.b → local.c → local.a",
    )


def test_all_faults_are_told_at_once() -> None:
    """Each fault of a file comes with its line, and none hides another."""
    text = """locals {
  a = uppr("x")
  b = local.a
}
job "j" {
  c = var.nope
  d = local.a
  group "g" {
    e = 1 + "x"
    f = [1][2]
  }
}
wrong = 1
"""
    lines = [line for line, _ in document(text)[1]]
    assert sorted(lines) == [2, 6, 9, 10, 13]


def test_a_flood_of_faults_ends() -> None:
    """A file with thousands of faults tells the first hundred, and takes no longer for the rest."""
    text = "locals {\n" + "\n".join(f"  x{n} = local.y{n}" for n in range(5000)) + '\n}\njob "a" {}'
    assert len(document(text)[1]) == 100


def test_dynamic_blocks_become_as_many_as_they_have_elements() -> None:
    """A dynamic block is its content once for each element, with iterator, labels, and dynamic blocks inside."""
    (job,) = blocks("""
variable "ports" { default = { http = 80, admin = 81 } }
job "a" {
  dynamic "group" {
    for_each = ["x", "y"]
    iterator = g
    labels   = ["${g.value}-${g.key}"]
    content {
      name = g.value
      dynamic "port" {
        for_each = var.ports
        labels   = [port.key]
        content { static = port.value + g.key }
      }
    }
  }
}
""")
    assert [(one.name, one.labels) for one in job.blocks] == [
        ("group", ("x-0",)),
        ("group", ("y-1",)),
    ]
    ports = [(one.labels[0], one.attributes["static"][0]) for one in job.blocks[1].blocks]
    assert ports == [("admin", 82), ("http", 81)]


@pytest.mark.parametrize(
    "inner",
    [
        'dynamic "x" { content {} }',
        'dynamic "x" { for_each = [] }',
        "dynamic { for_each = []\n content {} }",
        'dynamic "x" { for_each = 3\n content {} }',
        'dynamic "x" { for_each = []\n iterator = "i"\n content {} }',
    ],
)
def test_a_dynamic_block_without_its_parts_is_told(inner: str) -> None:
    """for_each, content, a name and a plain iterator are what a dynamic block needs."""
    assert len(document(f'job "a" {{\n{inner}\n}}')[1]) == 1
