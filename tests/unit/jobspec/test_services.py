"""Services and checks at submission: what Nomad refuses is refused at its path, what is built runs."""

from typing import Any

import pytest

from schemas.envelope import ENCODER
from shared.jobspec.checks.services import other_providers
from shared.jobspec.nomad.job import JOB_DECODER
from shared.jobspec.service_names import declared_services, service_name
from shared.jobspec.submission import JobInvalid, read_submission
from tests.unit.jobspec.test_job_files import job as read_file

SECOND = 1_000_000_000
CHECK: dict[str, Any] = {"Type": "http", "Path": "/", "Interval": SECOND, "Timeout": SECOND}
SERVICE: dict[str, Any] = {"Name": "web", "PortLabel": "http", "Provider": "nomad"}
TASK: dict[str, Any] = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "x"}}


def body(*services: dict[str, Any], task: dict[str, Any] | None = None) -> dict[str, Any]:
    """A job whose group has these services, and a port `http`."""
    group = {
        "Name": "g",
        "Networks": [{"DynamicPorts": [{"Label": "http"}]}],
        "Services": list(services),
        "Tasks": [{**TASK, **(task or {})}],
    }
    return {"ID": "j", "Name": "j", "TaskGroups": [group]}


def faults(*services: dict[str, Any], task: dict[str, Any] | None = None) -> dict[str, str]:
    """What is wrong with a job, by path below its group."""
    text = ENCODER.encode({"Job": body(*services, task=task)})
    try:
        read_submission(text, "submit")
    except JobInvalid as err:
        return {one.path.removeprefix("Job.TaskGroups[0]."): one.message for one in err.errors}
    return {}


def check(**more: Any) -> dict[str, Any]:
    return {**SERVICE, "Checks": [{**CHECK, **more}]}


@pytest.mark.parametrize(
    "service",
    [
        SERVICE,
        {**SERVICE, "PortLabel": "8080", "Tags": ["a"], "Meta": {"k": "v"}, "Address": "db.local"},
        {**SERVICE, "Name": "${JOB}-web", "CanaryTags": ["new"], "CanaryMeta": {"a": "b"}},
        check(),
        check(Method="POST", Header={"X": ["y"]}, Body="{}", Protocol="https", TLSSkipVerify=True),
        check(Type="tcp", Path="", InitialStatus="warning"),
        check(Type="grpc", Path="", GRPCService="web.v1", GRPCUseTLS=True, TLSSkipVerify=True),
        check(Type="script", Path="", Command="/bin/true", Args=["-x"], TaskName="t"),
        check(CheckRestart={"Limit": 3, "Grace": SECOND, "IgnoreWarnings": True}),
        check(OnUpdate="ignore_warnings", CheckRestart={"Limit": 3, "IgnoreWarnings": True}),
    ],
)
def test_what_is_built_runs(service: dict[str, Any]) -> None:
    """These blocks are accepted, in a group and in a task."""
    assert faults(service) == {}
    assert faults(task={"Services": [service]}) == {}


@pytest.mark.parametrize(
    ("service", "path", "text"),
    [
        ({**SERVICE, "Name": "a_b"}, "Name", "63 letters, digits and hyphens"),
        ({**SERVICE, "Name": "x" * 64}, "Name", "63 letters, digits and hyphens"),
        ({**SERVICE, "PortLabel": "other"}, "PortLabel", "has a port 'other'"),
        ({**SERVICE, "PortLabel": "70000"}, "PortLabel", "must be 1 to 65535"),
        ({**SERVICE, "PortLabel": "000000001999999"}, "PortLabel", "must be 1 to 65535"),
        ({**SERVICE, "PortLabel": "000000001" + "9" * 5_000}, "PortLabel", "must be 1 to 65535"),
        ({**SERVICE, "Provider": "zookeeper"}, "Provider", "must be nomad or consul"),
        ({**SERVICE, "OnUpdate": "never"}, "OnUpdate", "must be one of"),
        ({**SERVICE, "AddressMode": "driver"}, "AddressMode", "not built yet"),
        ({**SERVICE, "AddressMode": "host", "Address": "x"}, "Address", "address_mode auto"),
        ({**SERVICE, "TaskName": "gone"}, "TaskName", "has no task 'gone'"),
        ({**SERVICE, "Connect": {"Native": True}}, "Connect", "not built yet"),
        (check(Type="ttl"), "Checks[0].Type", "must be one of http, tcp, grpc, script"),
        (check(GRPCService="x"), "Checks[0].GRPCService", "only for a check of type grpc"),
        (check(Type="tcp", GRPCUseTLS=True), "Checks[0].GRPCUseTLS", "only for a check of type"),
        (check(Type="grpc", GRPCService="a\nb"), "Checks[0].GRPCService", "no control"),
        (check(Type="grpc", TLSServerName="x"), "Checks[0].TLSServerName", "not built yet"),
        (check(Interval=SECOND // 2), "Checks[0].Interval", "from 1s to 24h"),
        (check(Timeout=0), "Checks[0].Timeout", "from 1s to 24h"),
        (check(Path=""), "Checks[0].Path", "must be set"),
        (check(Path="http://x/y"), "Checks[0].Path", "without scheme and host"),
        (check(Path="/a\r\nHost: b"), "Checks[0].Path", "control characters"),
        (check(Header={"X": ["a\nb"]}), "Checks[0].Header", "is not an HTTP header"),
        (check(Method="G T"), "Checks[0].Method", "is not an HTTP method"),
        (check(Protocol="ftp"), "Checks[0].Protocol", "must be one of http, https"),
        (check(InitialStatus="good"), "Checks[0].InitialStatus", "must be one of"),
        (check(Type="script", TaskName="t"), "Checks[0].Command", "must be set"),
        (check(Type="script", Command="x"), "Checks[0].TaskName", "must name the task"),
        (check(TaskName="gone"), "Checks[0].TaskName", "has no task 'gone'"),
        ({**check(), "PortLabel": ""}, "Checks[0].PortLabel", "must be set"),
        (check(AddressMode="alloc"), "Checks[0].AddressMode", "not built yet"),
        (check(SuccessBeforePassing=3), "Checks[0].SuccessBeforePassing", "not built yet"),
        (
            check(OnUpdate="ignore", CheckRestart={"Limit": 1}),
            "Checks[0].OnUpdate",
            "excludes check_restart",
        ),
        (
            check(OnUpdate="ignore_warnings", CheckRestart={"Limit": 1}),
            "Checks[0].CheckRestart.IgnoreWarnings",
            "must be true",
        ),
        (check(CheckRestart={"Limit": -1}), "Checks[0].CheckRestart.Limit", "must be 0 to"),
    ],
)
def test_what_is_impossible_is_refused(service: dict[str, Any], path: str, text: str) -> None:
    """Each fault is named at its path (S82, S86)."""
    found = faults(service)
    assert list(found) == [f"Services[0].{path}"]
    assert text in found[f"Services[0].{path}"]


def test_services_of_a_group_are_unique_and_of_one_provider() -> None:
    """Name, task and port together are one service; a group has one provider."""
    assert list(faults(SERVICE, SERVICE)) == ["Services[1].Name"]
    assert faults(SERVICE, {**SERVICE, "PortLabel": "8080"}) == {}
    assert list(faults(SERVICE, {**SERVICE, "Name": "b", "Provider": ""})) == [
        "Services[1].Provider"
    ]


def test_another_provider_is_served_here_with_a_warning() -> None:
    """A service of Consul, or without a provider, is listed by the cluster itself."""
    text = ENCODER.encode({"Job": body({**SERVICE, "Provider": "consul"})})
    (warning,) = read_submission(text, "submit").warnings
    assert "provider consul are served by Caravan" in warning
    assert other_providers(JOB_DECODER.decode(ENCODER.encode(body(SERVICE)))) == ()


def test_names() -> None:
    """Without a name a service is called by job, group and task; references are replaced."""
    services = [{"PortLabel": "http"}, {"Name": "${JOB}-x-${TASKGROUP}"}]
    found = JOB_DECODER.decode(ENCODER.encode(body(*services, task={"Services": [{}]})))
    (group,) = found.groups
    names = [service_name("j", "g", one.service, one.task) for one in declared_services(group)]
    assert names == ["j-g-group", "j-x-g", "j-g-t"]


def test_a_fault_names_its_line() -> None:
    """In a file the error stands at the line of the field."""
    text = """job "a" {
  group "g" {
    service {
      name = "web"
      port = "nope"
    }
    task "t" {
      driver = "any"
    }
  }
}"""
    with pytest.raises(AssertionError, match="line=5"):
        read_file(text)
