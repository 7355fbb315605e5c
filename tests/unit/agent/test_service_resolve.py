"""What DNS asks of a node's directory of services: names in any case, and only listed ones are followed."""

import asyncio
from typing import Any

import msgspec
import pytest

from schemas.projections import ServiceProjection
from services.agent.inputs.templates.followed_values import LINGER_S, DataUnusable
from shared.protocol import subjects
from tests.unit.agent.test_service_directory import NAMES, World, listed, play, value


def resolving(world: World, label: str) -> asyncio.Task[Any]:
    return asyncio.ensure_future(world.directory.resolve(label))


def test_a_name_in_dns_is_followed_where_the_list_has_it() -> None:
    """Names that no service has are answered from the list alone: a million of them subscribe to nothing."""

    async def story(world: World) -> None:
        world.stands[NAMES] = listed("Web", "web", "db")
        world.stands[subjects.view_service("web")] = value("web", 80)
        world.stands[subjects.view_service("Web")] = value("Web", 81)
        first = resolving(world, "WEB")
        await world.look()
        found = await first
        assert sorted(one.port for each in found for one in each.instances) == [80, 81]
        for number in range(1_000):
            assert await world.directory.resolve(f"no-{number}") == ()
        await world.look()
        subscribed = [one for one, _ in world.listeners.values()]
        assert subscribed == [NAMES, "view.service.Web", "view.service.web"]
        world.now_s += LINGER_S
        await world.look()
        assert sorted(world.forgotten) == sorted(subscribed)

    play(story)


def test_a_check_that_flips_is_seen_by_dns_and_by_no_template() -> None:
    """The status stands beside the instances, and its change is no other version."""

    async def story(world: World) -> None:
        subject = subjects.view_service("web")
        world.stands[NAMES] = listed("web")
        world.stands[subject] = value("web", 80)
        task = resolving(world, "web")
        await world.look()
        (before,) = await task
        assert before.statuses == ("passing",)
        one = msgspec.json.decode(value("web", 80, seq=2), type=ServiceProjection)
        failing = msgspec.structs.replace(one.instances[0], status="critical")
        flipped = msgspec.structs.replace(one, instances=(failing,))
        world.push(subject, msgspec.json.encode(flipped))
        (after,) = await world.directory.resolve("web")
        assert (after.statuses, after.version) == (("critical",), before.version)

    play(story)


def test_dns_takes_a_part_of_a_service_and_no_part_of_the_list_as_all() -> None:
    """A thousand instances of more are enough for an answer; a name that may be behind the list's end is not denied."""

    async def story(world: World) -> None:
        world.stands[NAMES] = listed("web", total=10_001)
        world.stands[subjects.view_service("web")] = value("web", 80, total=1_001)
        task = resolving(world, "web")
        await world.look()
        (found,) = await task
        assert [one.port for one in found.instances] == [80]
        with pytest.raises(DataUnusable, match="10001 services"):
            await world.directory.resolve("zoo")

    play(story)
