"""Agents without a cluster and machines without power, simulated: tasks run on, no status is reported twice."""

import pytest

from shared.sim.environment.simulated_process import SimulatedProcess
from shared.sim.environment.submitters import SubmittedJob, Submitter
from shared.sim.oracle.invariants import InvariantBroken
from shared.sim.oracle.oracle import Oracle
from shared.sim.virtual_time import SECOND, RandomDraws
from shared.sim.world.world import SimulatedWorld

pytestmark = pytest.mark.sim

HOUR = 3600 * SECOND
HALF_AN_HOUR_MS = 1_800_000


class Story(SimulatedWorld):
    """A world without message faults: a service and a batch job with whole lives; a test says what else happens."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        shapes = (
            SubmittedJob(
                job_id="web", job_type="service", count=4, cpu_mhz=500, has_lifecycle=True
            ),
            SubmittedJob(
                job_id="sum",
                job_type="batch",
                count=5,
                cpu_mhz=500,
                run_ms=HALF_AN_HOUR_MS,
                has_lifecycle=True,
            ),
        )
        self.customers = [
            Submitter(self.context, RandomDraws(seed, 200 + n), shape)
            for n, shape in enumerate(shapes)
        ]
        self.agents = [node.process for node in self.nodes if node.process is not None]
        self.everyone: list[SimulatedProcess] = [*self.processes, *self.agents]

    def begin(self) -> Oracle:
        """Start everything, submit both jobs, and wait until what was asked for runs."""
        oracle = self.oracle = Oracle(self.context, self.cache, self.nodes)
        self.context.observer = self
        self.context.bus.log.watch(oracle.on_log)
        for process in self.everyone:
            process.start()
        for customer in self.customers:
            customer.on_verdict = oracle.on_verdict
            customer.status_of_submission = oracle.status_of_submission
            customer.begin(SECOND)
            customer.close(stop=False)
        self.until(lambda: len(self.mains()) == 9)
        return oracle

    def until(self, check: object, seconds: int = 120) -> None:
        """Let time pass until something is so."""
        assert callable(check)
        for _ in range(seconds * 2):
            if check():
                return
            self.context.loop.run(self.context.loop.now_ns + SECOND // 2)
        raise AssertionError(self.oracle.unsettled(self.customers, self.everyone))

    def rest(self, seconds: int = 120) -> None:
        """Let time pass until all is as it was promised, and check what then can be."""
        self.until(lambda: not self.oracle.unsettled(self.customers, self.everyone), seconds)
        self.oracle.settle(self.everyone)

    def mains(self) -> set[tuple[str, int, int]]:
        """Main tasks that are alive: node, allocation, run."""
        return {
            (node.node_id, key, run)
            for node in self.nodes
            for key, task, run in node.alive()
            if task == "main"
        }

    def cut_bus(self) -> None:
        """The bus goes, with all that it has in memory."""
        self.context.bus.is_up = False
        for process in self.everyone:
            process.disconnect()
        self.context.bus.restart()

    def mend_bus(self) -> None:
        """It comes back."""
        self.context.bus.is_up = True
        for process in self.everyone:
            process.reconnect()


@pytest.mark.parametrize("seed", range(1, 6))
def test_an_hour_without_a_bus(seed: int) -> None:
    """Tasks run on and end; each end is reported once when the bus is back, and no step is skipped or repeated."""
    story = Story(seed)
    oracle = story.begin()
    story.context.loop.run(story.context.loop.now_ns + 5 * SECOND)
    ran = story.mains()
    told = len(story.context.bus.log.records)
    story.cut_bus()
    story.context.loop.run(story.context.loop.now_ns + HOUR)
    assert len(story.context.bus.log.records) == told
    services = story.mains()
    assert services < ran
    assert len(services) == 4
    story.mend_bus()
    story.rest()
    assert services <= story.mains()
    batch = [one for one in oracle.model.allocs.values() if one.client == "complete"]
    assert len(batch) == 5
    # The reference model refuses a second end.
    assert oracle.ledger.checks["one_terminal_fact"]
    runs = [name for node in story.nodes for name in node.runs if name[1] == "main"]
    assert len(runs) == 9


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("seconds", [1, 30])
def test_a_reboot_doubles_nothing(seed: int, seconds: int) -> None:
    """What ran on nodes that lose power is started again or reported lost, never both, each life in its order."""
    story = Story(seed)
    story.begin()
    before = story.mains()
    dark = [node for node in story.nodes if node.alive()][: 2 + seed % 3]
    for node in dark:
        node.crash_agent(power_lost=True)
    story.context.loop.run(story.context.loop.now_ns + seconds * SECOND)
    for node in dark:
        node.start_agent()
    story.until(lambda: len(story.mains()) == 9)
    kept = {one for one in before if one[0] not in {node.node_id for node in dark}}
    assert kept <= story.mains()
    keys = [key for _, key, _ in story.mains()]
    assert len(set(keys)) == len(keys)


def test_a_broken_promise_would_be_found() -> None:
    """The story's oracle is awake: a task that is started behind the agent's back breaks it."""
    story = Story(1)
    story.begin()
    _, key, run = min(story.mains())
    other = next(node for node in story.nodes if (key, "main", run) not in node.runs)
    with pytest.raises(InvariantBroken, match="no_task_twice"):
        story.oracle.started(other, (key, "main", run))
