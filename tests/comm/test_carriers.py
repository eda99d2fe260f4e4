"""Threads and greenlets as carriers of virtual workers: they give the same, if greenlets keep their rules."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from paceline.comm.carriers import Carrier, Greenlets, Threads
from paceline.comm.errors import FabricError
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster, VirtualComm

NETWORK = Network(NetworkLink(1e-5, 1e9), NetworkLink(1e-6, 1e10))


def run(size: int, function: Callable[[VirtualComm], Any], carrier: type[Carrier] = Greenlets) -> list[Any]:
    return SimulatedCluster(size, NETWORK, carrier=carrier).run(function)


def test_draws_clocks_and_events_are_the_same_on_both() -> None:
    def act(comm: VirtualComm) -> tuple[str, float, list[float]]:
        torch.manual_seed(comm.rank)
        seen = torch.zeros(3)
        for _ in range(4):
            comm.elapse(float(torch.rand(())))
            sent = comm.isend(torch.rand(3), (comm.rank + 1) % comm.size)
            comm.recv(seen, (comm.rank - 1) % comm.size)
            sent.wait()
        comm.all_reduce(seen).wait()
        return comm.digest(), comm.now(), seen.tolist()

    assert run(5, act, Greenlets) == run(5, act, Threads)


def test_many_begin_from_the_middle_of_others_calls() -> None:
    """Each waits for the next one, which begins then: no stack of calls grows with them."""

    def wait_for_the_next(comm: VirtualComm) -> None:
        if comm.rank < comm.size - 1:
            comm.key_values.read(str(comm.rank + 1), comm.rank + 1)
        comm.key_values.post(str(comm.rank), "")

    run(1500, wait_for_the_next)


def test_whether_gradients_are_recorded_travels() -> None:
    def act(comm: VirtualComm) -> list[bool]:
        seen = [torch.is_grad_enabled()]
        with torch.no_grad():
            comm.barrier()
            seen.append(torch.is_grad_enabled())
        comm.barrier()
        return [*seen, torch.is_grad_enabled()]

    assert run(3, act) == [[True, False, True]] * 3


def test_hooks_of_saved_tensors_travel() -> None:
    def act(comm: VirtualComm) -> list[int]:
        packed: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(comm.rank)
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor), saved_tensors_hooks(pack, lambda tensor: tensor):
            comm.elapse(1.0 + comm.rank)
            comm.key_values.post("seen", "")
            torch.ones(2, requires_grad=True).exp()
        comm.elapse(1.0)
        comm.key_values.post("seen", "")
        torch.ones(2, requires_grad=True).exp()
        return packed

    assert run(3, act) == [[0], [1], [2]]


def wait_in_a_backward_pass(comm: VirtualComm) -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda _: comm.barrier())
    (weight * 2).sum().backward()


def wait_under_autocast(comm: VirtualComm) -> None:
    with torch.autocast("cpu"):
        comm.barrier()


def share_memory(comm: VirtualComm) -> None:
    comm.shared(torch.zeros(2))


@pytest.mark.parametrize("wait", [wait_in_a_backward_pass, wait_under_autocast, share_memory])
def test_greenlets_cannot_wait_within_a_pass_and_threads_can(wait: Callable[[VirtualComm], None]) -> None:
    run(2, wait, Threads)
    with pytest.raises(FabricError, match="set waits_in_passes=True in the traits"):
        run(2, wait, Greenlets)


def test_a_message_may_leave_within_a_pass() -> None:
    def act(comm: VirtualComm) -> tuple[float, float]:
        works = []
        weight = torch.full((2,), float(comm.rank), requires_grad=True)

        def send(gradients: Tensor) -> None:
            comm.elapse(1.0 + comm.rank)
            works.append(comm.isend(gradients, 1 - comm.rank))

        weight.register_hook(send)
        (weight * weight).sum().backward()
        seen = torch.empty(2)
        comm.recv(seen, 1 - comm.rank)
        works[0].wait()
        return float(seen[0]), comm.now()

    sent, arrived = run(2, act, Greenlets), run(2, act, Threads)
    assert sent == arrived
    assert [value for value, _ in sent] == [2.0, 0.0]


def test_all_unwind_when_one_fails() -> None:
    ended: list[str] = []

    def act(comm: VirtualComm) -> None:
        if comm.rank == 1:
            comm.elapse(1.0)
            raise ZeroDivisionError
        try:
            comm.barrier()
        finally:
            ended.append("unwound")

    cluster = SimulatedCluster(3, NETWORK, carrier=Greenlets)
    with pytest.raises(ZeroDivisionError):
        cluster.run(act)
    assert ended == ["unwound"] * 2
    assert cluster.failed_rank == 1


def test_ctrl_c_ends_it_and_blames_no_worker() -> None:
    def act(comm: VirtualComm) -> None:
        if comm.rank == 1:
            raise KeyboardInterrupt
        comm.barrier()

    cluster = SimulatedCluster(3, NETWORK, carrier=Greenlets)
    with pytest.raises(KeyboardInterrupt):
        cluster.run(act)
    assert cluster.failed_rank is None
