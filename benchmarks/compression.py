"""Rules of compression against what one would write with torch, and against the time that they save on a network."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from paceline.comm.process import ProcessComm
from paceline.exchange.channel import Channel
from paceline.exchange.compress import (
    DGC,
    QSGD,
    Atomo,
    Compressor,
    DeMo,
    EFSignSGD,
    OneBit,
    PowerSGD,
    RandomK,
    SignSGD,
    Slot,
    SparseLoCo,
    Summed,
    TernGrad,
    Threshold,
    TopK,
    Vector,
    WireBFloat16,
    WireFloat16,
    vector_of,
)
from paceline.exchange.compress.topk import largest
from paceline.tasks.models.mlp import MLP

from .ddp import IMAGES
from .measure import Outcome, alternate, in_processes

ENTRIES, RATIO = 10_000_000, 0.001
RULES = {
    "fp16": WireFloat16,
    "bf16": WireBFloat16,
    "qsgd": QSGD,
    "terngrad": TernGrad,
    "onebit": OneBit,
    "signsgd": SignSGD,
    "ef_signsgd": EFSignSGD,
    "topk": TopK,
    "randomk": RandomK,
    "threshold": partial(Threshold, tau=2.0),  # of numbers of size 1, so that one in twenty is sent
    "dgc": DGC,
    "powersgd": PowerSGD,
    "atomo": Atomo,
    "demo": DeMo,
    "sparseloco": SparseLoCo,
}
GRADIENT = Vector(((1024, 1024),) * 6 + ((256, 1024),), torch.float32)  # 25 MiB
GIGABIT = 1e9 / 8  # bytes a second


def compression_against_torch(rounds: int) -> list[Outcome]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker that has a core of its own
    try:
        outcomes = [topk_against_torch(rounds), qsgd_against_torch(rounds)]
    finally:
        torch.set_num_threads(threads)
    outcomes += in_processes(2, powersgd_against_torch, rounds)
    return outcomes + in_processes(1, rules_against_a_network, min(rounds, 3))


def topk_against_torch(rounds: int) -> Outcome:
    """The places of the 0.1 % of largest magnitude. Ours gives them in rising order, and of ties the first."""
    x, k = _sample(ENTRIES), int(RATIO * ENTRIES)
    ours = partial(_milliseconds, lambda: largest(x, k))
    peer = partial(_milliseconds, lambda: x.abs().topk(k, sorted=False).indices)
    return alternate("top-k, 0.1 % of 10 M float32", ours, peer, "torch.topk", "<= 0.35", rounds)


def qsgd_against_torch(rounds: int) -> Outcome:
    """Times QSGD to 127 levels of the norm of 512 entries; 10 M float32 to bytes."""
    entries = ENTRIES // 512 * 512
    x, vector, rule = _sample(entries), Vector(((entries,),), torch.float32), QSGD(bits=8)
    slot = Slot("x", vector, 0, 1)
    ours = partial(_milliseconds, lambda: rule.encode(x, slot))
    peer = partial(_milliseconds, lambda: quantized_by_torch(x))
    return alternate("QSGD, 8 bits, of 10 M float32", ours, peer, "torch, as in the paper", "<= 0.12", rounds)


def quantized_by_torch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises as a reader of the paper would write it."""
    buckets = x.view(-1, 512)
    norms = buckets.norm(dim=1, keepdim=True)
    scaled = buckets.abs() / norms * 127
    low = scaled.floor()
    level = low + (torch.rand_like(scaled) < scaled - low)
    return norms, (buckets.sign() * level).to(torch.int8)


class _Bucket:
    """The part of DDP's bucket that torch's hook uses, here one with all gradients: over gloo it fails with a second
    bucket.
    """

    def __init__(self, vector: Vector) -> None:
        self.flat, self.vector = torch.zeros(vector.n), vector

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        return self.vector.pieces(self.flat)

    parameters = gradients


def powersgd_against_torch(comm: ProcessComm, rounds: int) -> list[Outcome]:
    """Gradients of the MLP of the step above, by two workers at rank 4, both with error feedback and warm start."""
    vector = vector_of(MLP(IMAGES, [1024, 1024, 1024]).parameters())
    gradient, x, bucket = _sample(vector.n, comm.rank), torch.empty(vector.n), _Bucket(vector)
    channel = Channel(PowerSGD(rank=4), comm, {"x": vector})
    state = PowerSGDState(comm.group, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1)
    state.iter = 2  # it sums whole gradients before

    def ours() -> float:
        return _after(comm, partial(x.copy_, gradient), lambda: channel.all_reduce("x", x).wait())

    def peer() -> float:
        hook = partial(powerSGD_hook, state, bucket)  # pyright: ignore[reportArgumentType]
        return _after(comm, partial(bucket.flat.copy_, gradient), lambda: hook().wait())

    return [alternate("PowerSGD, rank 4, of 2.9 M float32", ours, peer, "torch's hook, gloo", "<= 0.35", rounds)]


def rules_against_a_network(comm: ProcessComm, rounds: int) -> list[Outcome]:
    """Compares the time to encode 25 MiB and decode two messages, as each of two workers does, with the time for the
    bytes saved.
    """
    outcomes: list[Outcome] = []
    for name, make in RULES.items():
        rule: Compressor = make()
        sent = sum(rule.of_total(GRADIENT)) if isinstance(rule, Summed) else rule.nbytes(GRADIENT)
        if not rule.traits.steady:
            sent = rule.encode(_sample(GRADIENT.n), Slot("x", GRADIENT, 0, 1)).nbytes
        saved = (GRADIENT.nbytes - sent) / GIGABIT * 1e3
        what = f"25 MiB by {name}, encoded and decoded"
        ours, peer = partial(_coding, rule, comm), lambda saved=saved: saved
        outcomes.append(alternate(what, ours, peer, "bytes saved, 1 Gb/s", "<= 1.0", rounds))
    return outcomes


def _coding(rule: Compressor, comm: ProcessComm) -> float:
    """The second of two messages: the first makes what a slot keeps."""
    channel, x = Channel(rule, comm, {"x": GRADIENT}), _sample(GRADIENT.n)
    channel.all_reduce("x", x.clone()).wait()
    other = rule.encode(x, Slot("x", GRADIENT, 0, 1))
    own = x.clone()
    start = time.perf_counter()
    channel.all_reduce("x", own).wait()
    if not isinstance(rule, Summed):
        own += rule.decode(other, GRADIENT)
    return (time.perf_counter() - start) * 1e3


def _sample(entries: int, seed: int = 0) -> Tensor:
    return torch.randn(entries, generator=torch.Generator().manual_seed(seed))


def _milliseconds(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return (time.perf_counter() - start) * 1e3


def _after(comm: ProcessComm, prepare: Callable[[], object], do: Callable[[], object], times: int = 10) -> float:
    """The mean of `do`, each time after `prepare` and once all are there."""
    total = 0.0
    for _ in range(times):
        prepare()
        comm.barrier()
        total += _milliseconds(do)
    return total / times
