"""What Nomad says of job files, and what is said here: verdicts and defaults cannot drift.

Files are written by hand and by a generator. Each names Nomad's verdict (accept, refuse) and ours: `runs`, `unbuilt`
(refused until it is built, accepted by consent), `refused`. Where the two differ docs/fidelity.md gives the reason.
"""

from itertools import product

import pytest

from shared.jobspec.checks.supported_fields import SUPPORTED_FIELDS
from shared.jobspec.files.load import LoadedJobFile, load_file
from shared.jobspec.nomad.defaults import resolve_reschedule, resolve_restart
from shared.jobspec.nomad.job import JobSpec, TaskGroup, TaskSpec

TYPES = ("service", "batch", "system", "sysbatch")
SECOND = 10**9


def text(*, kind: str = "service", job: str = "", group: str = "", task: str = "") -> str:
    """One job of one group and one task, with what is written beside."""
    return (
        f'job "a" {{\n type = "{kind}"\n{job}\n group "g" {{\n{group}\n task "t" {{\n driver = "raw_exec"\n'
        f' config {{ command = "/bin/true" }}\n{task}\n }}\n }}\n}}\n'
    )


def ours(source: str) -> str:
    """Our verdict."""
    plain = load_file(source.encode(), "a.nomad.hcl")
    if not plain.errors:
        return "runs"
    consented = load_file(source.encode(), "a.nomad.hcl", accept=["accept_unbuilt"])
    assert all(one.line for one in plain.errors), plain.errors
    return "refused" if consented.errors else "unbuilt"


#: name -> (file, Nomad's verdict, ours)
HAND: dict[str, tuple[str, str, str]] = {
    "plain": (text(), "accept", "runs"),
    "typo in job": (text(job='typ = "batch"'), "refuse", "refused"),
    "typo in group": (text(group="cuont = 3"), "refuse", "refused"),
    "typo of a block": (text(group='contraint { attribute = "x" }'), "refuse", "refused"),
    "typo in update": (text(job="update { max_paralel = 1 }"), "refuse", "refused"),
    "update": (text(job="update { canary = 1 }"), "accept", "runs"),
    "update at its defaults": (text(job="update { max_parallel = 1 }"), "accept", "runs"),
    "update of batch": (text(kind="batch", job="update { canary = 1 }"), "refuse", "refused"),
    "update of sysbatch": (
        text(kind="sysbatch", group="update { canary = 1 }"),
        "refuse",
        "refused",
    ),
    "migrate of batch": (
        text(kind="batch", group="migrate { max_parallel = 2 }"),
        "refuse",
        "refused",
    ),
    "healthy after deadline": (
        text(job='update {\n min_healthy_time = "9m"\n healthy_deadline = "8m"\n}'),
        "refuse",
        "refused",
    ),
    "deadline after progress": (
        text(job='update { healthy_deadline = "10m" }'),
        "refuse",
        "refused",
    ),
    "unknown health check": (text(job='update { health_check = "x" }'), "refuse", "refused"),
    "promote without canary": (text(job="update { auto_promote = true }"), "refuse", "refused"),
    "no pace at all": (text(job="update { max_parallel = 0 }"), "accept", "runs"),
    "negative max_parallel": (text(job="update { max_parallel = -1 }"), "refuse", "refused"),
    "no healthy deadline": (text(job='update { healthy_deadline = "0s" }'), "refuse", "refused"),
    "stagger": (text(job='update { stagger = "0s" }'), "refuse", "refused"),
    "canaries of a system job": (
        text(kind="system", group="update { canary = 101 }"),
        "refuse",
        "refused",
    ),
    "canaries beside per_alloc": (
        text(
            group='update { canary = 1 }\n volume "v" {\n type = "host"\n source = "s"\n'
            " per_alloc = true\n}"
        ),
        "refuse",
        "refused",
    ),
    "migrate": (text(group="migrate { max_parallel = 2 }"), "accept", "runs"),
    "migrate by hand": (text(group='migrate { health_check = "manual" }'), "refuse", "refused"),
    "migrate of the job, made wrong by the group": (
        text(
            job='migrate { min_healthy_time = "1m" }', group='migrate { healthy_deadline = "30s" }'
        ),
        "refuse",
        "refused",
    ),
    "restart does not fit": (
        text(group='restart {\n attempts = 10\n interval = "1m"\n delay = "15s"\n}'),
        "refuse",
        "refused",
    ),
    "restart interval": (
        text(group='restart {\n attempts = 0\n interval = "1s"\n}'),
        "refuse",
        "refused",
    ),
    "restart delay without attempts": (
        text(group='restart {\n attempts = 0\n mode = "delay"\n}'),
        "refuse",
        "refused",
    ),
    "reschedule does not fit": (
        text(group='reschedule {\n attempts = 5\n interval = "1m"\n unlimited = false\n}'),
        "refuse",
        "refused",
    ),
    "constant reschedule does not fit": (
        text(
            kind="batch",
            group='reschedule {\n attempts = 5\n interval = "1m"\n delay = "30s"\n delay_function = "constant"\n}',
        ),
        "refuse",
        "refused",
    ),
    "fibonacci reschedule fits": (
        text(
            group='reschedule {\n attempts = 3\n interval = "2m"\n delay = "30s"\n delay_function = "fibonacci"\n'
            " unlimited = false\n}"
        ),
        "accept",
        "runs",
    ),
    "reschedule of system": (
        text(kind="system", group="reschedule { attempts = 1 }"),
        "refuse",
        "refused",
    ),
    "kill timeout": (text(task='kill_timeout = "5m"'), "accept", "runs"),
    "kill timeout after progress": (text(task='kill_timeout = "11m"'), "refuse", "refused"),
    "kill timeout of batch": (text(kind="batch", task='kill_timeout = "11m"'), "accept", "runs"),
    "logs beyond the disk": (text(task="logs { max_file_size = 30 }"), "refuse", "refused"),
    "logs within the disk": (text(task="logs { max_file_size = 29 }"), "accept", "runs"),
    "logs shipped that are kept nowhere": (
        text(task="logs {\n ship = true\n disabled = true\n}"),
        "refuse",
        "refused",
    ),
    "no log file": (text(task="logs { max_files = 0 }"), "refuse", "refused"),
    "constraint without value": (
        text(job='constraint { attribute = "${attr.x}" }'),
        "refuse",
        "refused",
    ),
    "is_set with value": (
        text(job='constraint {\n attribute = "${attr.x}"\n operator = "is_set"\n value = "1"\n}'),
        "refuse",
        "refused",
    ),
    "affinity without value": (
        text(job='affinity { attribute = "${attr.x}" }'),
        "refuse",
        "refused",
    ),
    "dot in a variable": (text(task='env = { "a.b" = "1" }'), "accept", "runs"),
    "quoted name in a block": (text(task='env { "A" = "1" }'), "refuse", "refused"),
    "quoted name of a block": (text(task='"env" { A = "1" }'), "refuse", "refused"),
    "quoted name in a map": (text(task='env = { "A" = "1" }'), "accept", "runs"),
    "lost and stopped": (
        text(group='disconnect {\n lost_after = "1m"\n stop_on_client_after = "1m"\n}'),
        "refuse",
        "refused",
    ),
    "stopped, of system": (
        text(kind="system", group='disconnect { stop_on_client_after = "1m" }'),
        "refuse",
        "refused",
    ),
    "csi without modes": (
        text(group='volume "v" {\n type = "csi"\n source = "s"\n}'),
        "refuse",
        "refused",
    ),
    "csi": (
        text(
            group='volume "v" {\n type = "csi"\n source = "s"\n access_mode = "single-node-writer"\n'
            ' attachment_mode = "file-system"\n}'
        ),
        "accept",
        "refused",
    ),
    "host volume": (
        text(group='volume "v" {\n type = "host"\n source = "s"\n}'),
        "accept",
        "runs",
    ),
    "sticky volume": (
        text(group='volume "v" {\n type = "host"\n source = "s"\n sticky = true\n}'),
        "accept",
        "runs",
    ),
    "volume of no kind": (
        text(group='volume "v" {\n type = "x"\n source = "s"\n}'),
        "refuse",
        "refused",
    ),
    "count over max": (text(group="count = 9\n scaling { max = 3 }"), "refuse", "refused"),
    "count under min": (
        text(group="count = 1\n scaling {\n min = 2\n max = 3\n}"),
        "refuse",
        "refused",
    ),
    "scaling without max": (text(group="scaling { min = 1 }"), "refuse", "refused"),
    "scaling": (text(group="scaling {\n min = 2\n max = 3\n}"), "accept", "runs"),
    "periodic": (text(kind="batch", job='periodic { crons = ["@daily"] }'), "accept", "runs"),
    "parameterized": (text(kind="batch", job="parameterized {}"), "accept", "runs"),
    "service": (text(group='service {\n name = "x"\n provider = "nomad"\n}'), "accept", "runs"),
    "template": (
        text(task='template {\n data = "x"\n destination = "local/x"\n}'),
        "accept",
        "runs",
    ),
    "template of a variable": (
        text(task='template {\n data = "{{ nomadVar `nomad/jobs` }}"\n destination = "local/x"\n}'),
        "accept",
        "runs",
    ),
    "template of a variable of another job": (
        text(
            task='template {\n data = "{{ nomadVar `nomad/jobs/b` }}"\n destination = "local/x"\n}'
        ),
        "accept",
        "refused",
    ),
    "template of services": (
        text(
            task='template {\n data = "{{ range nomadServices }}{{ len (nomadService .Name) }}{{ end }}"\n'
            ' destination = "local/x"\n change_mode = "signal"\n change_signal = "SIGHUP"\n splay = "1s"\n'
            ' wait {\n min = "1s"\n max = "9s"\n }\n}'
        ),
        "accept",
        "runs",
    ),
    "template of a watched file": (
        text(task='template {\n data = "{{ file `local/y` }}"\n destination = "local/x"\n}'),
        "accept",
        "unbuilt",
    ),
    "template of a file that is read once": (
        text(
            task='template {\n data = "{{ file `local/y` }}"\n destination = "local/x"\n once = true\n}'
        ),
        "accept",
        "runs",
    ),
    "template into another task": (
        text(task='template {\n data = "x"\n destination = "../other/x"\n}'),
        "accept",
        "refused",
    ),
    "script at the first rendering": (
        text(
            task='template {\n data = "x"\n destination = "local/x"\n change_mode = "script"\n'
            ' change_script {\n command = "/bin/true"\n run_on_first_render = true\n }\n}'
        ),
        "accept",
        "runs",
    ),
    "templates at each restart": (
        text(task="restart { render_templates = true }"),
        "accept",
        "runs",
    ),
    "identity": (text(task="identity {\n env = true\n file = true\n}"), "accept", "runs"),
    "identity with a ttl": (
        text(
            task='identity {\n name = "vault"\n aud = ["vault.io"]\n ttl = "1h"\n change_mode = "restart"\n}'
        ),
        "accept",
        "runs",
    ),
    "default identity with a ttl": (text(task='identity {\n ttl = "1h"\n}'), "refuse", "refused"),
    "identity with a label": (text(task='identity "x" {}'), "refuse", "refused"),
    "two default identities": (text(task="identity {}\n identity {}"), "refuse", "refused"),
    "identity with claims of its own": (
        text(
            task='identity {\n name = "x"\n aud = ["x"]\n ttl = "1h"\n'
            ' extra_claims {\n of = "${job.id}/${node.class}"\n }\n}'
        ),
        "accept",
        "runs",
    ),
    "identity with a list of claims": (
        text(task='identity {\n name = "x"\n extra_claims = ["y"]\n}'),
        "refuse",
        "refused",
    ),
    "identity of a service": (
        text(group='service {\n name = "x"\n provider = "nomad"\n identity { aud = ["x"] }\n}'),
        "accept",
        "runs",
    ),
    "artifact": (text(task='artifact { source = "https://example.com/x" }'), "accept", "runs"),
    "artifact from git": (
        text(task='artifact { source = "git::https://example.com/x.git" }'),
        "accept",
        "runs",
    ),
    "artifact from hg": (
        text(task='artifact { source = "hg::https://example.com/x" }'),
        "accept",
        "refused",
    ),
    "vault": (text(task="vault {}"), "accept", "runs"),
    "vault of a job": (text(job='vault { policies = ["a"] }'), "accept", "runs"),
    "vault with a signal": (
        text(task='vault {\n role = "r"\n change_mode = "signal"\n change_signal = "SIGUSR1"\n}'),
        "accept",
        "runs",
    ),
    "vault with an unknown change_mode": (
        text(task='vault { change_mode = "x" }'),
        "refuse",
        "refused",
    ),
    "vault of another cluster": (text(task='vault { cluster = "b" }'), "accept", "refused"),
    "template over the token": (
        text(task='vault {}\n template {\n data = "x"\n destination = "secrets/vault_token"\n}'),
        "accept",
        "refused",
    ),
    "template with secret": (
        text(
            task='vault {}\n template {\n data = "{{ secret `a/b` }}"\n destination = "local/x"\n}'
        ),
        "accept",
        "runs",
    ),
    "template with secret, without vault": (
        text(task='template {\n data = "{{ secret `a/b` }}"\n destination = "local/x"\n}'),
        "accept",
        "unbuilt",
    ),
    "secret": (
        text(task='secret "s" {\n provider = "nomad"\n path = "nomad/jobs/a"\n}'),
        "accept",
        "runs",
    ),
    "secret of a program": (
        text(task='secret "s" {\n provider = "x"\n path = "p"\n env {\n A = "b"\n}\n}'),
        "accept",
        "runs",
    ),
    "secret of vault": (
        text(task='vault {}\n secret "s" {\n provider = "vault"\n path = "p"\n}'),
        "accept",
        "runs",
    ),
    "secret of vault without vault": (
        text(task='secret "s" {\n provider = "vault"\n path = "p"\n}'),
        "refuse",
        "refused",
    ),
    "secret with env of nomad": (
        text(task='secret "s" {\n provider = "nomad"\n path = "p"\n env {\n A = "b"\n}\n}'),
        "refuse",
        "refused",
    ),
    "secret of another job": (
        text(task='secret "s" {\n provider = "nomad"\n path = "nomad/jobs/b"\n}'),
        "accept",
        "refused",
    ),
    "secret without a provider": (
        text(task='secret "s" {\n path = "p"\n}'),
        "refuse",
        "refused",
    ),
    "reference to no secret": (text(task='env {\n A = "$${secret.x.k}"\n}'), "accept", "refused"),
    "namespace": (text(job='namespace = "prod"'), "accept", "unbuilt"),
    "mbits": (text(group="network { mbits = 10 }"), "accept", "runs"),
    # Nomad takes these; docs/fidelity.md says why they are refused here.
    "long name": (text().replace('group "g"', f'group "{"g" * 129}"'), "accept", "refused"),
    "poststop sidecar": (
        text(
            group='task "p" {\n driver = "raw_exec"\n lifecycle {\n hook = "poststop"\n sidecar = true\n }\n}'
        ),
        "accept",
        "refused",
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_the_verdict_on_a_file(name: str) -> None:
    """Each file has the verdict that stands beside it; what Nomad refuses never runs here."""
    source, nomad, wanted = HAND[name]
    assert ours(source) == wanted
    assert nomad == "accept" or wanted == "refused"


#: Blocks of a task group that any job type may have, and the types whose job Nomad refuses with it.
GENERATED = {
    "update { canary = 1 }": ("batch", "sysbatch"),
    "migrate { max_parallel = 2 }": ("batch", "system", "sysbatch"),
    'affinity {\n attribute = "${attr.x}"\n value = "1"\n}': ("system", "sysbatch"),
    'spread { attribute = "${attr.x}" }': ("system", "sysbatch"),
    'max_run_duration = "1h"': ("service", "system"),
    'disconnect { stop_on_client_after = "1m" }': ("system", "sysbatch"),
    "count = 2": ("system",),
    "restart { attempts = 1 }": (),
    'network { port "x" {} }': (),
}


@pytest.mark.parametrize(("block", "kind"), list(product(GENERATED, TYPES)))
def test_a_block_by_job_type(block: str, kind: str) -> None:
    """A block is refused for exactly the types for which Nomad refuses it."""
    assert (ours(text(kind=kind, group=block)) == "refused") is (kind in GENERATED[block])


def loaded(source: str) -> LoadedJobFile:
    found = load_file(source.encode(), "a.nomad.hcl", accept=["accept_unbuilt"])
    assert found.errors == ()
    return found


def of(source: str) -> tuple[JobSpec, TaskGroup, TaskSpec]:
    submission = loaded(source).submission
    assert submission is not None and submission.job is not None
    return submission.job, submission.job.groups[0], submission.job.groups[0].tasks[0]


@pytest.mark.parametrize(
    ("kind", "restart", "reschedule"),
    [
        ("service", (2, 1800, 15, "fail"), (0, 30, "exponential", 3600, True)),
        ("system", (2, 1800, 15, "fail"), (0, 0, "exponential", 0, False)),
        ("batch", (3, 86400, 15, "fail"), (1, 5, "constant", 0, False)),
        ("sysbatch", (3, 86400, 15, "fail"), (0, 0, "exponential", 0, False)),
    ],
)
def test_the_defaults_of_a_type(
    kind: str, restart: tuple[object, ...], reschedule: tuple[object, ...]
) -> None:
    """Restart and reschedule default to Nomad's values, by type."""
    job, group, task = of(text(kind=kind))
    one, two = resolve_restart(kind, group, task), resolve_reschedule(job, group)
    assert (
        *(one.attempts, one.interval_ns // SECOND, one.delay_ns // SECOND, one.mode),
    ) == restart
    assert (
        *(two.attempts, two.delay_ns // SECOND, two.delay_function),
        *(two.max_delay_ns // SECOND, two.unlimited),
    ) == reschedule


def test_the_defaults_of_every_job() -> None:
    """Values that no block sets are Nomad's."""
    job, group, task = of(text())
    assert (job.priority, job.datacenters, job.node_pool) == (50, ("*",), "default")
    assert (job.region, job.namespace, job.all_at_once) == ("global", "default", False)
    assert (group.count, group.ephemeral_disk.size_mib, group.shutdown_delay_ns) == (1, 300, 0)
    assert (task.resources.cpu_mhz, task.resources.memory_mib) == (100, 300)
    assert (task.kill_timeout_ns, task.kill_signal, task.leader) == (5 * SECOND, "", False)
    assert (task.logs.max_files, task.logs.max_file_size_mb, task.logs.disabled) == (10, 10, False)


def test_the_count_defaults_to_the_least_of_scaling() -> None:
    """A group without a count has scaling.min, in HCL and in JSON."""
    assert of(text(group="scaling {\n min = 4\n max = 9\n}"))[1].count == 4
    assert of(text(group="count = 5\n scaling {\n min = 4\n max = 9\n}"))[1].count == 5


def test_what_runs_is_one_table() -> None:
    """Every verdict `unbuilt` comes from the table: with the field in it the same file runs."""
    assert "Multiregion" not in SUPPORTED_FIELDS[JobSpec]
    assert "Consul" not in SUPPORTED_FIELDS[TaskGroup]
    assert "Consul" not in SUPPORTED_FIELDS[TaskSpec]
