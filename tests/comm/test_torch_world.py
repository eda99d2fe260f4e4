"""torch's default process group over our fabric: right results, counted bytes, named deaths."""

import time

import pytest
import torch
import torch.distributed as dist

from paceline.comm.torch_world import torch_world

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def collectives(comm):
    torch_world(comm)
    mine = float(comm.rank + 1)
    summed = torch.full((10,), mine)
    dist.all_reduce(summed)
    gathered = torch.empty(comm.size * 4)
    dist.all_gather_into_tensor(gathered, torch.full((4,), mine))
    listed = [torch.empty(3) for _ in range(comm.size)]
    dist.all_gather(listed, torch.full((3,), mine))
    scattered = torch.empty(2)
    dist.reduce_scatter_tensor(scattered, torch.arange(2.0 * comm.size))
    said = torch.full((6,), mine)
    dist.broadcast(said, src=0)
    work = dist.all_reduce(later := torch.full((2,), mine), async_op=True)
    work.wait()
    dist.barrier()
    return {
        "summed": summed,
        "gathered": gathered,
        "listed": torch.cat(listed),
        "scattered": scattered,
        "said": said,
        "later": later,
        "bytes": comm.ledger.snapshot(),
    }


@pytest.mark.parametrize("size", [2, 3])
def test_results_and_bytes(workers, size):
    results = workers(size, collectives)
    everyone = torch.arange(1.0, size + 1)
    total = float(everyone.sum())
    for rank, result in enumerate(results):
        assert torch.equal(result["summed"], torch.full((10,), total))
        assert torch.equal(result["gathered"], everyone.repeat_interleave(4))
        assert torch.equal(result["listed"], everyone.repeat_interleave(3))
        assert torch.equal(result["scattered"], size * torch.tensor([2.0 * rank, 2.0 * rank + 1]))
        assert torch.equal(result["said"], torch.ones(6))
        assert torch.equal(result["later"], torch.full((2,), total))
        ring = 2 * (size - 1) / size
        assert result["bytes"]["all_reduce"] == round(ring * 4 * 10 + ring * 4 * 2)
        assert result["bytes"]["all_gather"] == (size - 1) * 4 * (4 + 3)
        assert result["bytes"]["reduce_scatter"] == round(ring * 4 * 2 * size)  # gloo's is an all-reduce inside
    assert sum(result["bytes"].get("broadcast", 0) for result in results) == (size - 1) * 24


class InStream:
    """A process group that returns no work for a synchronous operation, as NCCL's does."""

    def __init__(self, group):
        self._group = group

    def broadcast(self, tensors, opts):
        self._group.broadcast(tensors, opts).wait()

    def __getattr__(self, name):
        return getattr(self._group, name)


def synchronous_in_stream(comm):
    make_group = comm.make_group
    comm.make_group = lambda *args: InStream(make_group(*args))
    torch_world(comm)
    said = torch.full((6,), float(comm.rank + 1))
    dist.broadcast(said, src=0)
    return said


def test_a_group_without_work_for_synchronous_operations(workers):
    assert all(torch.equal(said, torch.ones(6)) for said in workers(2, synchronous_in_stream))


def waits_alone(comm):
    torch_world(comm)
    if comm.rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(3)


def test_a_wait_ends_and_names_who_is_missing(workers):
    with pytest.raises(Exception, match="worker 1") as raised:
        workers(2, waits_alone, timeout=1.0)
    assert "torch's all_reduce" in str(raised.value)
