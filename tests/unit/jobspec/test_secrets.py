"""What a job says of secrets, and every reference to one, is read at submission, as far as it can be known then."""

import msgspec
import pytest

from services.agent.tasks.resolved_group import resolve_group
from shared.jobspec.files.load import load_file
from shared.jobspec.submission import JobInvalid, SubmissionCache, read_submission

JOB = (
    'job "web" {\n group "g" {\n%s\n  task "t" {\n   driver = "raw_exec"\n'
    '   config {\n command = "/bin/true"\n%s\n}\n%s\n  }\n }\n}\n'
)
SECRET = 'secret "db" {\n provider = "nomad"\n path = "nomad/jobs/web"\n}\n'
TEMPLATE = 'template {\n destination = "local/x"\n data = "{{ nomadVar `nomad/jobs/web` }}"\n}\n'
HERE = "Job.TaskGroups[0].Tasks[0]."


def job(task: str, *, config: str = "", group: str = "") -> bytes:
    return (JOB % (group, config, task)).encode()


def faults(task: str, *, config: str = "", group: str = "") -> list[tuple[str, str]]:
    """Faults of a job: place in its task, message. Each has a line."""
    found = load_file(job(task, config=config, group=group), "a.nomad.hcl").errors
    assert all(one.line for one in found), found
    return [((one.path or "").removeprefix(HERE), one.message) for one in found]


def block(*lines: str, name: str = "db") -> str:
    return f'secret "{name}" {{\n' + "\n".join(lines) + "\n}\n"


SCRIPT = (
    'template {\n data = "x"\n destination = "local/x"\n change_mode = "script"\n'
    ' change_script {\n command = "c"\n args = ["$${secret.no.k}"]\n}\n}'
)
NOMAD, PATH = 'provider = "nomad"', 'path = "nomad/jobs/web"'
PROGRAM = 'provider = "aws-sm"'


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (block(NOMAD, PATH, name="a-b"), "Secrets[0].Name", "letters, digits and _"),
        (block(NOMAD, PATH, name="a" * 129), "Secrets[0].Name", "1 to 128"),
        (block(NOMAD, PATH) * 2, "Secrets[1].Name", "another secret"),
        (block(PATH), "Secrets[0].Provider", "must be set"),
        (block('provider = "a/../b"', PATH), "Secrets[0].Provider", "letters, digits, _ and -"),
        (block(NOMAD), "Secrets[0].Path", "must be set"),
        (block(NOMAD, 'path = "nomad/jobs/other"'), "Secrets[0].Path", "may not read variable"),
        (block(NOMAD, PATH, 'env {\n A = "b"\n}'), "Secrets[0].Env", "not for nomad"),
        (block(NOMAD, PATH, 'config {\n engine = "kv"\n}'), "Secrets[0].Config", "engine"),
        (block(NOMAD, PATH, 'config {\n namespace = "x"\n}'), "Secrets[0].Config", "default"),
        (block(PROGRAM, PATH, 'config {\n a = "b"\n}'), "Secrets[0].Config", "a program has env"),
        (block(PROGRAM, PATH, 'env {\n LD_PRELOAD = "x"\n}'), "Secrets[0].Env", "LD_PRELOAD"),
        (block(PROGRAM, PATH, 'env {\n PATH = "x"\n}'), "Secrets[0].Env", "PATH"),
        (block(PROGRAM, PATH, 'env {\n OPENSSL_CONF = "x"\n}'), "Secrets[0].Env", "OPENSSL_CONF"),
        (block(PROGRAM, PATH, 'env {\n https_proxy = "x"\n}'), "Secrets[0].Env", "https_proxy"),
        (block(PROGRAM, PATH, 'env = {\n "a b" = "x"\n}'), "Secrets[0].Env", "not a valid name"),
        (block('provider = "vault"', PATH), "Secrets[0].Provider", "needs a vault block"),
        (
            SECRET + block(PROGRAM, 'path = "$${secret.db.p}"', name="b"),
            "Secrets[1]",
            "refers to another one is not built yet",
        ),
    ],
)
def test_a_block_that_cannot_be(text: str, field: str, says: str) -> None:
    """Each fault has the path and the line of its field; env beside provider nomad is one (S68)."""
    ((where, message),) = faults(text)
    assert where == field
    assert says in message


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        block(NOMAD, 'path = "nomad/jobs/$${NOMAD_JOB_ID}"'),
        block(NOMAD, PATH, 'config {\n namespace = "default"\n}'),
        block(PROGRAM, 'path = "prod/db"', 'env {\n AWS_REGION = "eu"\n}'),
    ],
)
def test_a_block_that_runs(text: str) -> None:
    """A path with a reference is checked on the node."""
    assert faults(text) == []


@pytest.mark.parametrize(
    ("task", "config", "field"),
    [
        ('env {\n A = "x$${secret.no.k}"\n}', "", "Env.A"),
        ("", 'args = ["$${ secret.no.k }"]', "Config.args"),
        ('artifact {\n source = "https://h/$${secret.no.k}"\n}', "", "Artifacts[0].GetterSource"),
        (
            'artifact {\n source = "https://h/x"\n headers {\n X = "$${secret.no.k}"\n}\n}',
            "",
            "Artifacts[0].GetterHeaders",
        ),
        (
            'template {\n data = "x"\n destination = "local/$${secret.no.k}"\n}',
            "",
            "Templates[0].DestPath",
        ),
        (
            SCRIPT,
            "",
            "Templates[0].ChangeScript",
        ),
    ],
)
def test_a_reference_to_no_secret_of_the_task(task: str, config: str, field: str) -> None:
    """In each place in which references are filled in; one to a secret of the task is right, and needs a key."""
    ((where, message),) = faults(task, config=config)
    assert (where, message) == (field, "${secret.no.k}: the task has no secret 'no'")
    assert (
        faults(SECRET + task.replace(".no.", ".db."), config=config.replace(".no.", ".db.")) == []
    )
    ((_, message),) = faults(
        SECRET + task.replace("secret.no.k", "secret.db"),
        config=config.replace("secret.no.k", "secret.db"),
    )
    assert "names no key" in message


def test_secrets_of_group_and_job_are_those_of_each_task() -> None:
    """As in Nomad."""
    assert faults('env {\n A = "$${secret.db.k}"\n}', group=SECRET) == []


def test_checks_get_no_secrets() -> None:
    """They are made by a later life of the agent, too, which has no values: refused, with what is missing."""
    service = (
        'service {\n name = "s"\n provider = "nomad"\n check {\n type = "script"\n command = "c"\n'
        ' args = ["$${secret.db.k}"]\n interval = "9s"\n timeout = "1s"\n}\n}\n'
    )
    ((where, message),) = faults(SECRET + service)
    assert (where, "not built yet" in message) == ("Services[0]", True)


def test_what_others_can_see_is_a_warning() -> None:
    """Arguments are seen by all users of a node; labels and the data of templates keep the reference."""
    text = SECRET + 'template {\n destination = "local/x"\n data = "$${secret.db.k}"\n}\n'
    found = load_file(job(text, config='args = ["$${secret.db.k}"]'), "a.nomad.hcl")
    assert found.submission is not None, found.errors
    (warning,) = found.submission.warnings
    assert "args holds a secret" in warning
    assert "data of a template keeps" in warning
    hidden = SECRET + 'env {\n A = "$${secret.db.k}"\n}\n'
    quiet = load_file(job(hidden), "a.nomad.hcl").submission
    assert quiet is not None
    assert quiet.warnings == ()


def test_a_job_is_placed_where_its_program_is() -> None:
    """By a constraint on the node's attribute, which names the setting; provider nomad needs none."""
    found = load_file(job(block(PROGRAM, PATH)), "a.nomad.hcl").submission
    assert found is not None
    (one,) = found.groups[0].constraints
    assert (one.left, one.operator) == ("${attr.plugins.secrets.aws-sm}", "is_set")
    plain = load_file(job(SECRET), "a.nomad.hcl").submission
    assert plain is not None
    assert plain.groups[0].constraints == ()


@pytest.mark.parametrize(
    ("accepted", "left"),
    [
        ((), ["secret.a", "secret.b"]),
        (("Secrets",), []),
        (("Secrets[0]",), ["secret.b"]),
        (("Templates",), ["secret.a", "secret.b"]),
    ],
)
def test_a_job_does_without_the_secrets_that_it_was_accepted_without(
    accepted: tuple[str, ...], left: list[str]
) -> None:
    """All of them, as an earlier release accepted it, or one that is not built."""
    found = load_file(
        job(block(NOMAD, PATH, name="a") + block(NOMAD, PATH, name="b")), "a.nomad.hcl"
    ).submission
    assert found is not None
    paths = ",".join(f'"{HERE}{one}"' for one in accepted)
    spec = found.spec[:-1] + f',"AcceptedUnbuilt":[{paths}]}}'.encode()
    (task,) = resolve_group(spec, "g").tasks
    assert [one.name for one in task.inputs] == left
    assert all(one.in_memory and not one.each_start for one in task.inputs)


def test_consent_submits_a_job_without_a_secret() -> None:
    """The others are fetched all the same."""
    text = block(PROGRAM, 'path = "$${secret.db.p}"', name="v") + SECRET
    found = load_file(job(text), "a.nomad.hcl", accept=["accept_unbuilt"]).submission
    assert found is not None
    assert found.unbuilt == (f"{HERE}Secrets[0]",)
    (task,) = resolve_group(found.spec, "g").tasks
    assert [one.name for one in task.inputs] == ["secret.db"]


@pytest.mark.parametrize("text", [SECRET, TEMPLATE])
def test_a_job_is_checked_under_its_own_name(text: str) -> None:
    """A body that differs in its id alone is another one: the variables that its tasks may read have other names."""
    memo = SubmissionCache()
    first = msgspec.json.decode(load_file(job(text), "a.nomad.hcl").body)
    read_submission(msgspec.json.encode(first), "submit", memo=memo)
    first["Job"] |= {"ID": "other", "Name": "other"}
    with pytest.raises(JobInvalid, match="may not read variable nomad/jobs/web"):
        read_submission(msgspec.json.encode(first), "submit", memo=memo)
