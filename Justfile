# Every chore has one name. `just` alone lists them. Set up first: python3 deploy/bootstrap.py setup

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

default:
    @just --justfile {{ justfile() }} --list

# make .venv from the hashed lock, with the tools of development
setup:
    python3 deploy/bootstrap.py setup

# everything quick: format, lint, types, walls, dependencies, unit tests
check: lint types imports deps unit

# rewrite files in the one format
fmt:
    ruff format .
    ruff check --fix --select I .

# style and format, nothing rewritten
lint:
    ruff check .
    ruff format --check .

# both type checkers
types: mypy basedpyright

# types of everything, strict
mypy:
    mypy

# types of schemas and shared, by a second checker
basedpyright:
    basedpyright

# walls between packages
imports:
    lint-imports --no-logo

# undeclared and unused dependencies
deps:
    deptry services shared schemas bench deploy

# tests without a bus, and the tidy rules
unit *args:
    pytest tests/unit tests/tidy {{ args }}

# rules over generated input
property *args:
    pytest -m property {{ args }}

# the simulated world from one seed, step by step
sim seed="1" *args:
    caravan sim check --seeds 1 --seed {{ seed }} {{ args }}

# the gate: what CI runs
test *args:
    pytest {{ args }}

# agents and commands with real processes, servers and threads
integration *args:
    pytest tests/integration {{ args }}

# tests on a real nats-server, of every folder
bus *args:
    pytest tests -m bus {{ args }}

# ten minutes of every subject, header and field on the real bus; CARAVAN_FUZZ_SEED repeats a run
fuzz seconds="600" *args:
    CARAVAN_FUZZ_S={{ seconds }} pytest -s tests/faults/test_fuzz.py {{ args }}

# the clients in other languages; what cannot be tested here fails instead of being skipped
clients *args:
    CARAVAN_ALL_CLIENTS=1 pytest tests/clients {{ args }}

# the tests in containers, on an engine that runs here or on one of their own (root)
compose *args:
    pytest tests -m 'compose or docker' {{ args }}

# one benchmark, or the list of them
bench *args:
    caravan bench {{ args }}

# every benchmark, one after the other, into bench/results, on a machine that does nothing else; or those named
bench-all *args:
    python -m bench.report.run_all {{ args }}

# docs/benchmarks.md and its pictures from bench/results
bench-report:
    python -m bench.report.build

# pictures of the console in docs/console, of a cluster made for them
screenshots *args:
    python -m tests.gateway.console.screenshots {{ args }}

# rewrite what is generated: schemas/, events.md, queries.md, subjects.md, jobs.md in docs/, the Python client's messages
schemas:
    python -m schemas.generate
    python -m services.gateway.edge.bus.asyncapi
    python -m shared.jobspec.reference_page

# rewrite the golden expectations, then look at the diff; of records and schemas it only takes additions
bless *args:
    CARAVAN_BLESS=1 pytest tests/golden {{ args }}

# rewrite the hashed locks from pyproject.toml; `just lock --upgrade` takes newer versions
lock *args:
    uv pip compile --quiet --universal --generate-hashes --custom-compile-command "just lock" {{ args }} --extra all -o deploy/requirements.txt pyproject.toml
    uv pip compile --quiet --universal --generate-hashes --custom-compile-command "just lock" {{ args }} --extra all --group dev -c deploy/requirements.txt -o deploy/requirements-dev.txt pyproject.toml
    uv pip compile --quiet --universal --generate-hashes --custom-compile-command "just lock" {{ args }} --group pyproject.toml:build -o deploy/requirements-build.txt

# the main job, with real processes
demo *args:
    caravan demo {{ args }}

# a whole cluster on this machine, until Ctrl-C
up *args:
    caravan up {{ args }}

# every test there is, in its long form and from a fresh seed; installs the programs that it needs (root, Debian)
full *args:
    python3 deploy/bootstrap.py test --full {{ args }}

# a flame graph and a table for every process of one benchmark, e.g. `just profile p1 0.2`
profile *args:
    python -m bench.report.profile {{ args }}
