"""What a job says of artifacts is read at submission, as far as it can be known then."""

import pytest

from shared.jobspec.artifact_source import checksum_error, read_source
from shared.jobspec.checks.artifacts import destination_error
from shared.jobspec.files.load import load_file

JOB = (
    'job "a" {\n group "g" {\n  task "t" {\n   driver = "raw_exec"\n   config { command = "/bin/true" }\n'
    "   artifact {\n    %s\n   }\n  }\n }\n}\n"
)
URL = 'source = "https://h/x.tgz"'


def faults(text: str) -> list[tuple[str, int | None, str]]:
    """Faults of a job with one artifact: field, line, message."""
    found = load_file((JOB % text).encode(), "a.nomad.hcl").errors
    return [((one.path or "").rpartition(".")[2], one.line, one.message) for one in found]


def test_source_mode_and_destination_each_have_their_fault() -> None:
    """S1: three faults at once, each with its line."""
    found = faults('source = ""\n mode = "x"\n destination = "../../x"')
    assert {field for field, _, _ in found} == {"GetterSource", "GetterMode", "RelativeDest"}
    assert all(line for _, line, _ in found)


@pytest.mark.parametrize("sum_text", [":abc", "sha256:abz", "crc:00", "md5:00", "sha1"])
def test_a_checksum_that_cannot_be_is_a_fault(sum_text: str) -> None:
    """S3: unknown type, odd or wrong digits; in the options and in the query alike."""
    (by_option,) = faults(f'{URL}\n options {{ checksum = "{sum_text}" }}')
    (by_query,) = faults(f'source = "https://h/x?checksum={sum_text}"')
    assert "checksum" in by_option[2]
    assert "checksum" in by_query[2]
    assert checksum_error("md5:" + "0" * 32) == ""


def test_references_wait_for_the_node() -> None:
    """S2: a source or checksum with a reference is accepted, and checked when it is filled in."""
    assert not faults(f'{URL}\n options {{ checksum = "sha256:$${{meta.s}}" }}')
    assert not faults('source = "$${meta.url}"')
    assert not faults(f'{URL}\n destination = "$${{meta.d}}/../../x"')


UNBUILT = ("hg::https://h/r", "git@github.com:o/r", "git::ssh://h/r", "git::git@h:o/r")


@pytest.mark.parametrize("source", UNBUILT)
def test_getters_that_are_not_built_are_refused(source: str) -> None:
    """By name, with what to use instead; S8: an sshkey has no use without ssh."""
    (found,) = faults(f'source = "{source}"')
    assert "not built yet" in found[2]
    assert found[1] is not None


@pytest.mark.parametrize(
    "source", ["x", "::h", "x::h", "ftp://h/x", "https:///x", "https://h/x//../y"]
)
def test_sources_that_no_getter_takes(source: str) -> None:
    """A relative path, an empty or unknown getter, no host, a directory that leads out."""
    assert faults(f'source = "{source}"')


def test_archives_of_an_unbuilt_compression_are_refused() -> None:
    """Unless the file is taken as it is."""
    assert "zst" in faults('source = "https://h/x.tar.zst"')[0][2]
    assert not faults('source = "https://h/x.tar.zst"\n options { archive = "false" }')
    assert "rar" in faults(f'{URL}\n options {{ archive = "rar" }}')[0][2]


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        ("local/x", True),
        ("../alloc/x", True),
        ("/local/x", True),
        ("..", True),
        ("../..", False),
        ("local/../../../x", False),
        ("${NOMAD_ALLOC_DIR}/x", True),
        ("${NOMAD_ALLOC_DIR}/../..", False),
        ("${NOMAD_SECRETS_DIR}/../../x", True),
        ("${NOMAD_TASK_DIR}/../../..", False),
        ("a\0b", False),
    ],
)
def test_a_destination_stays_in_the_allocation(text: str, *, is_fine: bool) -> None:
    """By its text alone; what a reference hides is checked on the node."""
    assert (destination_error(text) == "") is is_fine


def test_a_source_is_split_as_nomad_does() -> None:
    """Own options leave the query, the others join it; the block wins; login and query are not shown."""
    found = read_source(
        "https://u:p@h:8080/d/x.tar.gz//in/ner?checksum=a&q=1&archive=zip",
        {"checksum": "b", "v": "2"},
    )
    assert (found.url, found.inner) == ("https://u:p@h:8080/d/x.tar.gz?q=1&v=2", "in/ner")
    assert (found.options["checksum"], found.archive, found.name) == ("b", "zip", "x.tar.gz")
    assert found.shown() == "https://h:8080/d/x.tar.gz"
    assert read_source("file::/srv/x", {}).url == "/srv/x"


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ('options { sshkey = "x" }', "ssh is not built"),
        ('options { checksum = "md5:00000000000000000000000000000000" }', "no checksum"),
        ('options { depth = "x" }', "depth"),
        ('mode = "file"', "directory"),
    ],
)
def test_what_a_repository_cannot_have(more: str, word: str) -> None:
    """Each with its line."""
    (found,) = faults(f'source = "git::https://h/r"\n {more}')
    assert word in found[2]
    assert found[1] is not None


def test_sources_of_stores_and_repositories() -> None:
    """Their options are not sent; a well-known host needs no scheme; the API of one store means its objects."""
    found = read_source("github.com/o/r//d?ref=v1", {"depth": "1"})
    assert (found.getter, found.url, found.inner) == ("git", "https://github.com/o/r", "d")
    assert dict(found.options) == {"ref": "v1", "depth": "1"}
    assert read_source("https://h/r.git", {}).getter == "git"
    found = read_source("gcs::https://www.googleapis.com/storage/v1/b/k", {})
    assert found.url == "https://storage.googleapis.com/b/k"
    with pytest.raises(ValueError, match="aws_profile"):
        read_source("s3::https://h/b/k", {"aws_profile": "p"})
