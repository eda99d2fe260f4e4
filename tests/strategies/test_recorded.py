"""What a collective did is read off its own messages."""

import pytest
import torch
from torch import Tensor

from paceline.comm import Comm, Work
from paceline.conf.errors import ConfigError
from paceline.exchange.collectives import (
    Collective,
    Fabric,
    HalvingDoubling,
    Hierarchical,
    RecursiveDoubling,
    Ring,
    Star,
    Tree,
)
from paceline.exchange.collectives.base import Members, OnceWaitedFor, Phase
from paceline.exchange.collectives.recorded import record
from paceline.strategies.core.cost import Traffic, World

OF_MESSAGES = [Ring, RecursiveDoubling, HalvingDoubling, Tree, Star]


@pytest.mark.parametrize("workers", [2, 3, 6, 7, 16])
@pytest.mark.parametrize("algorithm", OF_MESSAGES)
def test_as_many_steps_and_messages_are_recorded_as_are_stated(algorithm, workers):
    recording, world = record(algorithm(), workers), World(workers)
    assert len(recording.steps) == sum(phase.steps for phase in algorithm().phases(1.0, world))
    assert list(dict.fromkeys(step.name for step in recording.steps)) == list(
        dict.fromkeys(phase.name for phase in algorithm().phases(1.0, world))
    )
    messages = sum(len(step.messages) for step in recording.steps)
    assert messages == pytest.approx(workers * algorithm().messages(1.0, world))


@pytest.mark.parametrize("algorithm", [*OF_MESSAGES, Hierarchical])
def test_in_the_end_all_chunks_have_everyones_values(algorithm):
    recording = record(algorithm(), 6, workers_per_host=2)
    assert recording.hosts == (0, 0, 1, 1, 2, 2)
    assert {chunk for row in recording.steps[-1].after for chunk in row} == {frozenset(range(6))}


def test_a_rings_first_step_is_the_papers():
    first = record(Ring(), 4).steps[0]
    assert [(each.source, each.destination, each.chunks, each.adds) for each in first.messages] == [
        (r, (r + 1) % 4, (r,), True) for r in range(4)
    ]
    assert first.after[1] == ({0, 1}, {1}, {1}, {1})


def test_copies_are_told_from_additions():
    gather, broadcast = record(Star(), 3).steps
    assert all(each.adds for each in gather.messages) and not any(each.adds for each in broadcast.messages)


class Forgets(Collective):
    """Adds worker 1's values to worker 0's alone."""

    def all_reduce(self, tensor: Tensor, comm: Comm) -> Work:
        def forget(x: Tensor, members: Members) -> None:
            if members.rank == 1:
                members.send(x, 0)
            elif members.rank == 0:
                members.recv(arrived := torch.empty_like(x), 1)
                x.add_(arrived)

        return OnceWaitedFor(forget, tensor, comm)

    def traffic(self, nbytes: float, world: World) -> Traffic:
        return {}

    def messages(self, nbytes: float, world: World) -> float:
        return 0.0

    def phases(self, nbytes: float, world: World) -> list[Phase]:
        return []


def test_what_makes_no_sum_is_not_drawn_as_one():
    with pytest.raises(
        ConfigError, match="collective: worker 0 has the values of workers 0, 1 in its chunk 0 in the end"
    ):
        record(Forgets(), 3)


@pytest.mark.parametrize(("workers", "says"), [(1, "2 to 16"), (17, "hardware.workers=17: .*2 to 16 workers")])
def test_a_picture_has_few_workers(workers, says):
    with pytest.raises(ConfigError, match=says):
        record(Ring(), workers)


def test_what_the_fabric_does_cannot_be_drawn():
    with pytest.raises(ConfigError, match="collective: is made by the fabric"):
        record(Fabric(), 3)
