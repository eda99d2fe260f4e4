"""Sums by each collective: the sum itself, the same bits on all, the bytes it states; alone and under whole runs."""

import os
import re
import signal
from collections.abc import Callable
from math import prod
from typing import Any, cast

import pytest
import torch
from choices import CHOSEN, SYNCS, USUAL
from declared import unmet_terms
from oracles import mlp
from torch import Tensor

from paceline.comm import Comm, HangError, MessageError, PeerLostError
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster
from paceline.engine import prepare, run
from paceline.engine.base.failures import exit_code_of
from paceline.engine.config.targets import build
from paceline.engine.features import injected
from paceline.exchange.collectives import (
    Auto,
    Collective,
    Fabric,
    HalvingDoubling,
    Hierarchical,
    RecursiveDoubling,
    Ring,
    SharedMemory,
    Star,
    Tree,
)
from paceline.exchange.compress import WireBFloat16
from paceline.strategies.core.cost import World
from paceline.strategies.core.sync import Sync

pytestmark = pytest.mark.dist
COLLECTIVES: dict[str, type[Collective]] = {
    "fabric": Fabric,
    "ring": Ring,
    "recursive_doubling": RecursiveDoubling,
    "halving_doubling": HalvingDoubling,
    "tree": Tree,
    "star": Star,
    "hierarchical": Hierarchical,
    "auto": Auto,
}
SHAPES: list[tuple[tuple[int, ...], torch.dtype]] = [
    ((12,), torch.float32),
    ((1,), torch.float64),
    ((7, 3), torch.float32),
    ((1001,), torch.bfloat16),
    ((5,), torch.int32),
    ((0,), torch.float32),
]


def own(shape: tuple[int, ...], dtype: torch.dtype, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(17 + rank)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 50).to(dtype)


def sums(comm: Comm, collective: Collective) -> dict[str, Any]:
    tensors = [own(shape, dtype, comm.rank) for shape, dtype in SHAPES]
    lying = own((2, 3, 4, 4), torch.float32, comm.rank).to(memory_format=torch.channels_last)
    works = [collective.all_reduce(tensor, comm) for tensor in [*tensors, lying]]
    for work in works:
        work.wait()
    works[0].wait()  # a second time: nothing more happens
    sent = {key: float(count) for key, count in comm.ledger.bytes.items()}
    return {"tensors": [*tensors, lying], "sent": sent, "messages": dict(comm.ledger.messages)}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_all_get_the_sum_and_the_same_bits(fabric, name, size):
    results = fabric(size, sums, COLLECTIVES[name]())
    shapes = [*SHAPES, ((2, 3, 4, 4), torch.float32)]
    for i, (shape, dtype) in enumerate(shapes):
        exact = cast(torch.Tensor, sum(own(shape, dtype, rank).double() for rank in range(size)))
        first = results[0]["tensors"][i]
        rounding = 0.0 if dtype == torch.int32 else size * torch.finfo(dtype).eps
        assert torch.allclose(first.double(), exact, rtol=rounding, atol=200 * rounding)
        assert all(torch.equal(result["tensors"][i], first) for result in results)


def in_ring_order(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Chunk c added up in the order c, c + 1, ..., c - 1 of the workers."""
    rows = [own(shape, dtype, rank).flatten().tensor_split(size) for rank in range(size)]
    chunks = []
    for c in range(size):
        total = rows[c][c].clone()
        for step in range(1, size):
            total = total + rows[(c + step) % size][c]
        chunks.append(total)
    return torch.cat(chunks).view(shape)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_ring_adds_each_chunk_up_once_in_its_order(virtual_workers, size):
    results = virtual_workers(size, sums, Ring())
    for i, (shape, dtype) in enumerate(SHAPES):
        assert torch.equal(results[0]["tensors"][i], in_ring_order(size, shape, dtype))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "hierarchical"])  # see the tests on hosts
def test_as_many_bytes_leave_as_are_stated(virtual_workers, name, size):
    results = virtual_workers(size, sums, COLLECTIVES[name]())
    nbytes = sum(tensor.nbytes for tensor in results[0]["tensors"])
    stated = COLLECTIVES[name]().traffic(nbytes, World(size))
    for primitive, wanted in stated.items():
        mean = sum(result["sent"].get(primitive, 0) for result in results) / size
        assert mean == pytest.approx(wanted)
    assert all(result["sent"].keys() <= stated.keys() for result in results)


# -- oracles of the order in which each entry is added up, by the numbers of workers in mixed radix

FACTORS = {1: [], 2: [2], 3: [3], 5: [5], 6: [2, 3], 8: [2, 2, 2], 12: [2, 2, 3]}


def group_of(rank: int, step: int, factors: list[int]) -> list[int]:
    """The workers whose numbers differ from this one's in one digit alone."""
    stride, factor = prod(factors[:step]), factors[step]
    return [rank + (digit - rank // stride % factor) * stride for digit in range(factor)]


def in_doubling_order(rows: list[Tensor], rank: int, steps: int) -> Tensor:
    """Each step adds the sums of a group in the order of ranks."""
    if steps == 0:
        return rows[rank]
    group = group_of(rank, steps - 1, FACTORS[len(rows)])
    return added_up([in_doubling_order(rows, other, steps - 1) for other in group])


def in_halving_order(rows: list[Tensor], rank: int, steps: int) -> Tensor:
    """Each step adds the others' parts to a worker's own."""
    if steps == 0:
        return rows[rank]
    others = [other for other in group_of(rank, steps - 1, FACTORS[len(rows)]) if other != rank]
    return added_up([in_halving_order(rows, each, steps - 1) for each in [rank, *others]])


def owner(chunk: int, factors: list[int]) -> int:
    """Its first digit, of most weight in the number of the chunk, is of least weight in that of the worker."""
    rank, stride, rest = 0, 1, prod(factors)
    for factor in factors:
        rest //= factor
        rank, stride, chunk = rank + chunk // rest * stride, stride * factor, chunk % rest
    return rank


def by_halving(rows: list[Tensor]) -> Tensor:
    factors = FACTORS[len(rows)]
    cut = [row.tensor_split(len(rows)) for row in rows]
    return torch.cat(
        [in_halving_order([row[c] for row in cut], owner(c, factors), len(factors)) for c in range(len(rows))]
    )


def by_tree(rows: list[Tensor]) -> Tensor:
    """Worker 0 adds what full binomial trees bring, one for each binary digit of the others' number."""
    total, rest = rows[0], rows[1:]
    for digit, bit in enumerate(reversed(f"{len(rest):b}")):
        if bit == "1":
            total, rest = total + binomial(rest[: 2**digit]), rest[2**digit :]
    return total


def binomial(rows: list[Tensor]) -> Tensor:
    """The second half is the last child."""
    half = len(rows) // 2
    return rows[0] if half == 0 else binomial(rows[:half]) + binomial(rows[half:])


def added_up(rows: list[Tensor]) -> Tensor:
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


ORDERS: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "recursive_doubling": lambda rows: in_doubling_order(rows, 0, len(FACTORS[len(rows)])),
    "halving_doubling": by_halving,
    "tree": by_tree,
    "star": added_up,
}


@pytest.mark.parametrize("size", FACTORS)
@pytest.mark.parametrize("name", ORDERS)
def test_each_entry_is_added_up_in_the_stated_order(virtual_workers, name, size):
    results = virtual_workers(size, sums, COLLECTIVES[name]())
    for i, (shape, dtype) in enumerate(SHAPES):
        rows = [own(shape, dtype, rank).flatten() for rank in range(size)]
        assert torch.equal(results[0]["tensors"][i], ORDERS[name](rows).view(shape))


def one_sum(comm: Comm, entries: int) -> dict[str, Any]:
    tensor = torch.ones(entries)
    Ring().all_reduce(tensor, comm).wait()
    return {"ends": comm.now(), "sent": float(comm.ledger.bytes["send"]), "messages": comm.ledger.messages["send"]}


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
def test_a_ring_takes_2_n_minus_1_messages_and_its_alpha_beta_time(size):
    link, entries = NetworkLink(latency=1e-3, bandwidth=1e6), 240 * size
    for result in SimulatedCluster(size, Network(between=link, inside=link)).run(lambda comm: one_sum(comm, entries)):
        steps = 2 * (size - 1)
        assert result["messages"] == steps
        assert result["sent"] == steps * 4 * entries / size
        assert result["ends"] == pytest.approx(steps * (1e-3 + 4 * entries / size / 1e6))


def test_of_uneven_chunks_a_worker_sends_all_but_those_it_ends_with(virtual_workers):
    chunks = [len(chunk) for chunk in torch.empty(11).tensor_split(4)]
    for rank, result in enumerate(virtual_workers(4, one_sum, 11)):
        assert result["sent"] == 4 * (2 * 11 - chunks[(rank + 1) % 4] - chunks[(rank + 2) % 4])


# -- a peer that dies, or sends something else


LIES: dict[str, Callable[[Tensor], Tensor]] = {  # in place of the tensor that all should sum
    "shorter": lambda right: right[:-1].clone(),
    "longer": lambda right: torch.cat([right, right]),
    "another dtype": lambda right: right.view(torch.int32).clone(),
}
# it, or who was sent something by it, found what did not fit
NAMES_2 = re.compile(r"worker 2 (sent|sums|in \w+ of world: it calls|in recv from worker \d: worker \d sent) ")


def sum_without_worker_2(comm: Comm, collective: Collective, does: str) -> str:
    comm.barrier()
    if comm.rank == 2 and does == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return said_of(collective, torch.ones(96) if comm.rank != 2 else LIES[does](torch.ones(96)), comm)


def said_of(collective: Collective, tensor: Tensor, comm: Comm) -> str:
    before = tensor.clone()
    try:
        collective.all_reduce(tensor, comm).wait()
    except (PeerLostError, HangError, MessageError) as error:
        return f"{type(error).__name__}: {error}"
    return "no sum" if torch.equal(tensor, before) else "a sum"


@pytest.mark.fault
@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name not in ("fabric", "auto")])
def test_a_peer_that_dies_in_a_sum_is_named(workers, name):
    told = workers(3, sum_without_worker_2, COLLECTIVES[name](), "dies", lost=[2])[:2]
    assert any("PeerLostError" in each and "worker 2 has died" in each for each in told)
    assert not all(each == "a sum" for each in told)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("name", "does"),
    [*((name, "shorter") for name in COLLECTIVES), ("fabric", "another dtype"), ("ring", "another dtype")],
)
def test_a_peer_that_sums_another_tensor_is_named_and_nobody_has_a_sum(workers, name, does):
    told = workers(3, sum_without_worker_2, COLLECTIVES[name](), does, timeout=5.0)
    assert any(each.startswith("MessageError: ") and NAMES_2.search(each) for each in told), told
    assert not any(each.endswith("sum") for each in told[:2]), told


@pytest.mark.parametrize("does", LIES)
@pytest.mark.parametrize("name", [*COLLECTIVES, "shared_memory"])
def test_a_peer_that_sums_another_tensor_is_named_on_the_virtual_cluster(name, does):
    collective = SharedMemory() if name == "shared_memory" else COLLECTIVES[name]()
    link = NetworkLink(latency=1e-3, bandwidth=1e6)
    cluster = SimulatedCluster(3, Network(link, link, workers_per_host=2 if name == "hierarchical" else 3))

    def sum_up(comm: Comm) -> None:
        collective.all_reduce(torch.ones(96) if comm.rank != 2 else LIES[does](torch.ones(96)), comm).wait()

    with pytest.raises(MessageError, match=NAMES_2) as caught:
        cluster.run(sum_up)
    assert exit_code_of(caught.value) == 4


# -- whole runs

TINY = ("tracking=none", "model.hidden=[16]", "batch_size=8", "checkpoint.every=0", "data.limit=96", "steps=12")
MODES = {
    "bsp": (),
    "bsp_naive": (),
    "bsp with find_unused": ("sync=bsp", "sync.find_unused=true"),
    "bsp in bfloat16": ("sync=bsp", "compress=bf16"),
    "local_sgd": ("sync.average_state=[momentum_buffer]",),
    "diloco": (),
    "easgd": (),
    "streaming_diloco": (),
    "sparta": (),
    "dion": (),
}
FAST = ("bsp", "bsp_naive", "bsp with find_unused", "bsp in bfloat16", "local_sgd", "diloco", "streaming_diloco")


def asked(mode: str) -> tuple[str, ...]:
    chosen = () if any(word.startswith("sync=") for word in MODES[mode]) else (f"sync={mode}",)
    return (*TINY, *chosen, *MODES[mode])


def summary_of(*overrides: str) -> dict[str, Any]:
    result = run(overrides, quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    return result.summary


def check(name: str, *overrides: str) -> None:
    ring, fabric = summary_of(*overrides, f"collective={name}"), summary_of(*overrides)
    assert ring["wire"]["bytes_per_step"] == pytest.approx(ring["predicted"]["bytes_per_step"])
    if name == "ring":
        assert ring["wire"]["bytes_per_step"] == pytest.approx(fabric["wire"]["bytes_per_step"])
    assert ring["loss"] == pytest.approx(fabric["loss"], rel=0.05 if "compress=bf16" in overrides else 1e-4)


def pairs(fast: list[tuple[str, str]]) -> list[Any]:
    """A ring under every mode, the others under bsp; those that are not `fast` are slow."""
    all_ = [("ring", mode) for mode in MODES] + [
        (name, "bsp") for name in COLLECTIVES if name not in ("ring", "fabric")
    ]
    return [pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow) for pair in all_]


@pytest.mark.parametrize(
    ("name", "mode"), pairs([("ring", mode) for mode in FAST] + [("hierarchical", "bsp"), ("auto", "bsp")])
)
def test_on_the_virtual_cluster_a_collective_sends_what_its_plan_states(here, mode, name):
    check(name, *asked(mode), "hardware=virtual", "hardware.workers=4", "hardware.workers_per_host=2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"), [pair for pair in pairs([("ring", "bsp")]) if pair.values[0] != "hierarchical"]
)
def test_on_processes_a_collective_sends_what_its_plan_states(here, mode, name):
    check(name, *asked(mode), "hardware.workers=4", "hardware.threads=1")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sync=asp",), r"collective=ring: sync=asp takes no collective. Choose sync=bsp"),
        (("strategy=torch_ddp",), "collective=ring: strategy=torch_ddp owns its update, and takes no collective"),
        (("sync.shard=gradients",), "sync.shard=gradients: gives a replica the sum of its own shard alone,"),
        (
            ("compress=topk",),
            "collective=ring: adds vectors up .* Choose compress=none, bf16, fp16, powersgd or",
        ),
        (
            ("sync=local_sgd", "compress=topk"),
            "collective=ring: adds vectors up .* Choose compress=none, bf16, fp16, powersgd or",
        ),
        (("collective=rign",), "collective=rign: .*did you mean ring"),
        (("collective=star", "compress=topk"), "collective=star: adds vectors up on their way, and compress=topk"),
        (
            ("collective=hierarchical", "hardware=l4", "hardware.hosts=3", "hardware.workers=3"),
            "collective=hierarchical: .*each of the 3 that make this sum is alone on its host; must be several workers",
        ),
        (("collective=hierarchical",), "collective=hierarchical: .*all 2 that make this sum are on one host; must be"),
        (
            ("collective=hierarchical", "hardware=virtual", "hardware.workers=4"),
            "collective=hierarchical: .*each of the 4 that make this sum is alone on its host; must be several workers",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_where_nothing_is_summed_a_collective_is_refused_by_name(here, overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, "collective=ring", "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def mode_with(name: str, **given: Any) -> Sync | None:
    """The sync mode with another choice of a group; None where it takes no such thing."""
    if not given.keys() <= {*injected.accepted(SYNCS[name])}:
        return None
    mode = build("sync", CHOSEN["sync", name], Sync, (), USUAL | given)
    return None if unmet_terms(mode, **given) else mode


@pytest.mark.parametrize("name", SYNCS)
def test_who_takes_a_collective_makes_its_sums_by_it(name):
    if (mode := mode_with(name, collective=Ring())) is None:
        return
    stated = mode.cost(list(mlp().parameters()), World(3, 10, steps=30))
    assert not stated.varies and "all_reduce" not in stated.worker and sum(stated.worker.values()) > 0


@pytest.mark.parametrize("name", SYNCS)
def test_who_takes_a_compressor_sends_less(name):
    plain, packed = (mode_with(name, **how) for how in ({}, {"compress": WireBFloat16()}))
    if plain is None or packed is None:
        return
    stated = [mode.cost(list(mlp().parameters()), World(3, 10, steps=30)) for mode in (plain, packed)]
    assert sum(stated[1].worker.values()) < 0.6 * sum(stated[0].worker.values())
