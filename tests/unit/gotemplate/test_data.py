"""Data from outside: what is missing is noted, and the pass continues with empty values."""

from collections.abc import Sequence

import pytest

from shared.gotemplate.data import NamedInstance, ServiceName, Variable
from shared.gotemplate.errors import TemplateError
from shared.gotemplate.template import Rendered, parse_template
from tests.unit.gotemplate.no_data import NoData


class World(NoData):
    """Data as a task would have it."""

    def __init__(self) -> None:
        super().__init__({"A": "x"})
        self.files: dict[str, str] = {}
        self.instances: dict[str, list[NamedInstance]] = {}
        self.kept: dict[str, Variable] = {}

    def file(self, path: str) -> str | None:
        if ".." in path:
            raise TemplateError(f"{path} is outside of the task's directory")
        return self.files.get(path)

    def service(self, name: str, *, checked: bool = False) -> Sequence[NamedInstance] | None:
        return self.instances.get(name)

    def services(self) -> Sequence[ServiceName] | None:
        return [ServiceName(name, ("t",)) for name in sorted(self.instances)]

    def variable(self, path: str) -> Variable | None:
        return self.kept.get(path)

    def variable_exists(self, path: str) -> bool | None:
        return path in self.kept

    def variables(self, prefix: str) -> Sequence[Variable] | None:
        return [one for path, one in sorted(self.kept.items()) if path.startswith(prefix)]


def instance(number: int, *tags: str) -> NamedInstance:
    return NamedInstance(
        id=f"i{number}",
        name="db",
        node=f"n{number}",
        address=f"10.0.0.{number}",
        port=5000 + number,
        tags=tags,
        alloc_id=f"a{number}",
    )


@pytest.fixture
def world() -> World:
    made = World()
    made.files["local/a"] = "content"
    made.instances["db"] = [instance(1, "x"), instance(2, "x", "y"), instance(3)]
    made.kept["app/db"] = Variable(path="app/db", items={"user": "u", "pass": "p"}, modify_index=7)
    return made


def render(text: str, data: NoData) -> Rendered:
    return parse_template(text).render(data)


def test_what_is_missing_is_noted_and_the_pass_goes_on() -> None:
    """Each missing key is noted once, in the order met; the text does not count."""
    text = '{{ file "f" }}{{ nomadVar "v" }}{{ range nomadService "s" }}{{ end }}{{ nomadVar "v" }}{{ nomadServices }}'
    found = render(text, NoData())
    expected = ("file(f)", "nomad.var.block(v)", "nomad.service(s)", "nomad.services")
    assert (found.missing, found.used) == (expected, expected)
    assert not found.is_whole and found.fault is None


def test_an_error_beside_missing_data_waits() -> None:
    """`index` of an empty list is no fault as long as data is missing, and one when nothing is."""
    text = '{{ (index (nomadService "db") 0).Address }}'
    world = World()
    assert render(text, world).fault is None and render(text, world).missing
    world.instances["db"] = []
    assert render(text, world).fault is not None
    world.instances["db"] = [instance(1)]
    assert render(text, world).text == "10.0.0.1"


def test_a_limit_beside_missing_data_is_a_fault() -> None:
    """Missing data excuses no template that never ends."""
    assert (
        render('{{ nomadVar "v" }}{{ range loop 100000000 }}{{ end }}', NoData()).fault is not None
    )


def test_passes_need_not_see_all_keys_at_once(world: World) -> None:
    """A key whose name comes from other data is met in a later pass."""
    text = '{{ with nomadVar "app/ref" }}{{ range nomadService .name.Value }}{{ .Port }} {{ end }}{{ end }}'
    assert render(text, world).missing == ("nomad.var.block(app/ref)",)
    world.kept["app/ref"] = Variable(path="app/ref", items={"name": "cache"})
    assert render(text, world).missing == ("nomad.service(cache)",)
    world.instances["cache"] = [instance(4)]
    assert render(text, world).text == "5004 "


def test_services_have_their_fields(world: World) -> None:
    """An instance has ID, Name, Node, Address, Port, Tags, JobID, AllocID and Datacenter."""
    fields = "{{ .ID }} {{ .Node }} {{ .Address }}:{{ .Port }} {{ .AllocID }}{{ .Tags }};"
    text = '{{ range nomadService "db" }}' + fields + "{{ end }}"
    assert render(text, world).text == (
        "i1 n1 10.0.0.1:5001 a1[x];i2 n2 10.0.0.2:5002 a2[x y];i3 n3 10.0.0.3:5003 a3[];"
    )
    assert render("{{ range nomadServices }}{{ .Name }}{{ .Tags }}{{ end }}", world).text == "db[t]"
    assert "can't evaluate field Nope" in str(
        render('{{ range nomadService "db" }}{{ .Nope }}{{ end }}', world).fault
    )


def test_services_are_grouped_by_tag_and_port(world: World) -> None:
    """`byTag` and `byPort` make maps of lists."""
    text = '{{ range $t, $s := nomadService "db" | byTag }}{{ $t }}={{ len $s }} {{ end }}'
    assert render(text, world).text == "x=2 y=1 "
    text = '{{ range $p, $s := nomadService "db" | byPort }}{{ $p }} {{ end }}'
    assert render(text, world).text == "5001 5002 5003 "


def test_a_key_chooses_instances_that_stay(world: World) -> None:
    """`nomadService n key name` chooses n by a key; losing another instance does not change the choice."""
    text = '{{ range nomadService 1 "key-%d" "db" }}{{ .ID }}{{ end }}'
    chosen = {number: render(text % number, world).text for number in range(20)}
    assert len(set(chosen.values())) == 3
    world.instances["db"] = [one for one in world.instances["db"] if one.id != "i3"]
    for number, one in chosen.items():
        if one != "i3":
            assert render(text % number, world).text == one
    assert render('{{ len (nomadService 9 "k" "db") }}', world).text == "2"


def test_one_that_joins_takes_the_place_of_one_at_most(world: World) -> None:
    """Two are chosen of many: those that stay keep their order, and fewer than two are all (S89)."""
    text = '{{ range nomadService 2 "key" "db" }}{{ .ID }} {{ end }}'
    world.instances["db"] = [instance(1)]
    chosen = render(text, world).text.split()
    assert chosen == ["i1"]
    for number in range(2, 40):
        world.instances["db"].insert(number % 3, instance(number))
        found = render(text, world).text.split()
        assert len(found) == 2
        stayed = [one for one in chosen if one in found]
        assert len(stayed) >= len(chosen) - 1
        assert [one for one in found if one in stayed] == stayed
        chosen = found
    assert render('{{ len (nomadService 0 "key" "db") }}', world).text == "0"


def test_variables_are_maps_with_methods(world: World) -> None:
    """Items print their value; keys, values, tuples and metadata are methods."""
    parts = (
        "{{ .user }} {{ .pass.Key }}={{ .pass.Value }} {{ .Keys }}{{ .Values }}",
        " {{ .Metadata.ModifyIndex }}{{ range .Tuples }} {{ .K }}:{{ .V }}{{ end }}",
        "{{ range $k, $v := . }} {{ $k }}={{ $v }}{{ end }} {{ .user.Metadata.Path }}",
    )
    text = '{{ with nomadVar "app/db" }}' + "".join(parts) + "{{ end }}"
    assert (
        render(text, world).text == "u pass=p [pass user][p u] 7 pass:p user:u pass=p user=u app/db"
    )
    assert render('{{ (nomadVar "app/db").nope }}|', world).text == "|"


def test_variables_that_do_not_exist_wait_or_do_not(world: World) -> None:
    """`nomadVar` and an empty `nomadVarListSafe` wait, `nomadVarExists` and `nomadVarList` do not."""
    assert (
        render('{{ nomadVarExists "app/db" }}{{ nomadVarExists "no" }}', world).text == "truefalse"
    )
    assert (
        render('{{ range nomadVarList "app" }}{{ . }} {{ .Path }}{{ end }}', world).text
        == "app/db app/db"
    )
    assert render('{{ len (nomadVarList "no") }}', world).text == "0"
    assert render('{{ nomadVarListSafe "no" }}', world).missing == ("nomad.var.list(no)",)


def test_files_come_from_the_caller(world: World) -> None:
    """`file` reads what the caller allows; a refusal is a fault."""
    assert render('{{ file "local/a" | toUpper }}', world).text == "CONTENT"
    assert "outside of the task's directory" in str(render('{{ file "../b" }}', world).fault)


@pytest.fixture
def checked(world: World) -> World:
    """Instances with each status, on nodes that are not in the order of their list."""
    rows = [
        ("n3", "passing"),
        ("n1", "warning"),
        ("n2", "passing"),
        ("n4", "pending"),
        ("n5", "unknown"),
    ]
    world.instances["db"] = [
        NamedInstance(
            id=f"i-{node}",
            name="db",
            node=node,
            address=f"10.0.0.{node[1:]}",
            port=80,
            datacenter="dc2" if node == "n2" else "dc1",
            tags=("main",) if node == "n3" else ("other", "a"),
            status=status,
            meta={"zone": node},
        )
        for node, status in rows
    ]
    return world


@pytest.mark.parametrize(
    ("call", "ids"),
    [
        ('service "db"', "i-n2 i-n3 "),
        ('service "db" "passing,warning"', "i-n1 i-n2 i-n3 "),
        ('service "db" "critical"', "i-n4 i-n5 "),
        ('service "db" "any"', "i-n1 i-n2 i-n3 i-n4 i-n5 "),
        ('service "db|any"', "i-n1 i-n2 i-n3 i-n4 i-n5 "),
        ('service "main.db"', "i-n3 "),
        ('service "db@dc2"', "i-n2 "),
        ('service "main.db@dc2" "any"', ""),
    ],
)
def test_service_lists_those_whose_checks_pass(checked: World, call: str, ids: str) -> None:
    """`service` selects by tag, datacenter and status, by node, as consul-template does with Consul's catalogue."""
    assert render("{{ range " + call + " }}{{ .ID }} {{ end }}", checked).text == ids


def test_an_instance_of_service_has_the_fields_of_consul(checked: World) -> None:
    """All fields but Checks; the list can be grouped by tag."""
    fields = "{{ .Node }} {{ .NodeAddress }} {{ .NodeDatacenter }} {{ .Address }}:{{ .Port }} "
    fields += "{{ .ServiceMeta.zone }} {{ .Status }}"
    text = '{{ range service "main.db" }}' + fields + "{{ .Tags }}{{ .Name }}{{ end }}"
    assert render(text, checked).text == "n3 10.0.0.3 dc1 10.0.0.3:80 n3 passing[main]db"
    text = '{{ range $tag, $ones := service "db" | byTag }}{{ $tag }}={{ len $ones }} {{ end }}'
    assert render(text, checked).text == "a=1 main=1 other=1 "
    assert render('{{ (index (service "db" "critical") 0).Status }}', checked).text == "critical"
    assert render("{{ range services }}{{ .Name }}{{ .Tags }}{{ end }}", checked).text == "db[t]"


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ('service "db~_agent"', "instances are not ordered by distance"),
        ('service "a b"', "invalid query of a service"),
        ('service ""', "invalid query of a service"),
        (
            'service "db" "healthy"',
            "unknown status, expected any, passing, warning, critical",
        ),
    ],
)
def test_a_query_that_cannot_be_answered_is_a_fault(checked: World, call: str, part: str) -> None:
    """A query that is not understood lists nothing by mistake."""
    assert part in str(render("{{ " + call + " }}", checked).fault)


def test_a_service_that_is_not_known_yet_is_missing() -> None:
    """The key names it as consul-template does."""
    assert render('{{ range service "a.web" }}{{ end }}', NoData()).missing == (
        "health.service(a.web)",
    )
