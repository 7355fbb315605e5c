"""One engine and one set of images for all tests of this folder; loud where there can be none."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests import not_tested
from tests.compose.cluster import ContainerCluster
from tests.compose.engine import ROOT, Engine, NoEngineError, find_compose, find_engine
from tests.compose.images import write_base
from tests.compose.page import Reader

BASE, IMAGE = "caravan-test-base", "caravan-test"
_began = time.monotonic()
_capture: list[Any] = []


def pytest_configure(config: pytest.Config) -> None:
    """Remember who captures what is printed."""
    _capture.append(config.pluginmanager.getplugin("capturemanager"))


def say(text: str) -> None:
    """Print past pytest's capture: a transcript, and never a silent skip."""
    with contextlib.ExitStack() as stack:
        if _capture and _capture[0] is not None:
            stack.enter_context(_capture[0].global_and_fixture_disabled())
        print(f"\ncompose {time.monotonic() - _began:6.1f} s: {text}", flush=True)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """An engine that answers."""
    try:
        find_compose()
        found = find_engine()
    except NoEngineError as err:
        say(f"SKIPPED, nothing below was tested: {err}")
        not_tested.missing_tool(str(err))
    say(f"engine {found.client.version()['Version']}, {'our own' if found.is_ours else 'found'}")
    yield found
    found.stop()
    say("engine stopped")


@pytest.fixture(scope="session")
def images(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables of compose.yaml that name images made here; the second is deploy/Dockerfile's."""
    tar = tmp_path_factory.mktemp("base") / "base.tar"
    write_base(tar)
    tag = uuid4().hex[:8]
    base, image = f"{BASE}:{tag}", f"{IMAGE}:{tag}"
    engine.client.api.import_image_from_file(str(tar), repository=BASE, tag=tag)
    tar.unlink()
    say(f"base image {engine.client.images.get(base).attrs['Size'] >> 20} MiB")
    arguments = {"BASE_IMAGE": base}
    engine.client.images.build(
        path=str(ROOT),
        dockerfile="deploy/Dockerfile",
        tag=image,
        buildargs=arguments,
        network_mode="none",
    )
    say("image built from deploy/Dockerfile")
    env = {"CARAVAN_IMAGE": image, "CARAVAN_NATS_IMAGE": base, "CARAVAN_BASE_IMAGE": base}
    yield env
    for name in (image, base):
        if not engine.is_ours:
            engine.client.images.remove(name, force=True)


@pytest.fixture
def cluster_of(
    engine: Engine, images: dict[str, str], tmp_path: Path
) -> Iterator[Callable[..., ContainerCluster]]:
    """Make a cluster of so many servers; it is taken down, volumes and networks with it, by its project's name."""
    made: list[ContainerCluster] = []

    def make(servers: int, *profiles: str) -> ContainerCluster:
        one = ContainerCluster(
            engine, tmp_path / "secrets", images, servers=servers, profiles=profiles
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.end()


@pytest.fixture
def reader(engine: Engine, images: dict[str, str], tmp_path: Path) -> Iterator[Reader]:
    """A user who follows docs/operations.md; everything is taken down afterwards."""
    found = Reader(engine, tmp_path, images)
    yield found
    found.end()
