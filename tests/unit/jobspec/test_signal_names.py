"""Signals in job files: every way that people write them is read, everything else is refused with its line."""

import signal

import pytest

from shared.jobspec.drivers.docker import read_docker
from shared.jobspec.files.load import load_file
from shared.signal_names import signal_error, signal_name, signal_number

_JOB = """job "a" {
  group "g" {
    task "t" {
      driver = "%s"
      kill_signal = "%s"
      config { %s }
    }
  }
}
"""


def test_the_names_are_the_kernels() -> None:
    """Each signal of this machine is known by its name and number, and has one name."""
    for one in signal.Signals:
        assert signal_number(one.name) == one.value
        assert signal_number(one.name.lower().removeprefix("sig")) == one.value
        assert signal_number(str(one.value)) == one.value
        assert signal_number(signal_name(one.name) or "") == one.value


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *(("sigterm", "SIGTERM"), ("TERM", "SIGTERM"), ("15", "SIGTERM"), (" SigInt ", "SIGINT")),
        *(("SIGPOLL", "SIGIO"), ("SIGRTMIN+3", "SIGRTMIN+3"), ("37", "SIGRTMIN+3")),
        *(("rtmax-1", "SIGRTMIN+29"), ("34", "SIGRTMIN"), ("09", "SIGKILL")),
        *((text, None) for text in ("SIGFOO", "", "SIG", "0", "65", "32", "-9", "1e1", "٩", "²")),
        *((text, None) for text in ("SIGRTMIN+31", "SIGRTMIN-1", "SIGRTMAX+1", "SIGSIGTERM")),
    ],
)
def test_a_name_is_read_as_written(written: str, name: str | None) -> None:
    """Case, the prefix and numbers do not matter; other scripts' digits are no numbers."""
    assert signal_name(written) == name
    assert bool(signal_error(written)) == (name is None)


@pytest.mark.parametrize("driver", ["raw_exec", "exec", "docker", "java"])
@pytest.mark.parametrize("written", ["SIGFOO", "SIGTREM", "0", "${meta.signal}", "kill -9"])
def test_an_unknown_kill_signal_is_refused_with_its_line(driver: str, written: str) -> None:
    """A kill signal that can never be sent is an error of the job file, for every driver."""
    options = {"docker": 'image = "a"', "java": 'jar_path = "a.jar"'}.get(driver, 'command = "a"')
    found = load_file((_JOB % (driver, written, options)).encode(), "x.nomad.hcl")
    assert [(one.line, one.path) for one in found.errors] == [
        (5, "Job.TaskGroups[0].Tasks[0].KillSignal")
    ]
    assert "unknown signal" in found.errors[0].message


def test_a_near_name_is_suggested() -> None:
    """A slip gets the name that was probably meant."""
    assert signal_error("sigtrem") == "unknown signal 'sigtrem'; did you mean SIGTERM?"


def test_a_containers_stop_signal_is_checked_too() -> None:
    """The docker option stop_signal takes the same names; a reference is left to the node."""
    for written, is_fine in (
        ("term", True),
        ("SIGRTMIN+3", True),
        ("${meta.x}", True),
        ("x", False),
    ):
        faults = read_docker({"image": "a", "stop_signal": written})[1]
        assert [one.path for one in faults] == ([] if is_fine else ["stop_signal"])
