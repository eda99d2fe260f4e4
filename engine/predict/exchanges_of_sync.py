"""What a worker exchanges with those of other replicas in a step, by its sync mode: which operations, how often, and
what it computes for them.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...cost.kernels import Kernel
from ...cost.predicted import NotPredicted
from ...cost.worker import Exchange, Kernels
from ...exchange.buckets import grouped
from ...exchange.clip import Clip
from ...exchange.collectives import Collective
from ...exchange.collectives.fabric import Fabric
from ...exchange.collectives.shared_memory import SharedMemory
from ...exchange.compress import Compressor, Dense, Summed
from ...exchange.compress.base import Slot, Vector, vector_of
from ...exchange.exchange import SHARE
from ...strategies.core.clip import NORM
from ...strategies.core.cost import World, payload
from ...strategies.single import LocalUpdate
from ...strategies.sync.backup_workers import BackupWorkers
from ...strategies.sync.bsp import BSP
from ...strategies.sync.bsp_naive import NaiveBSP
from ...strategies.sync.downpour import Downpour
from ...strategies.sync.easgd import EASGD
from ...strategies.sync.fedavg import FedAvg
from ...strategies.sync.gossip import Gossip
from ...strategies.sync.hogwild import Hogwild
from ...strategies.sync.independent import Independent
from ...strategies.sync.local_sgd import LocalSGD
from ...strategies.sync.parameter_server import ParameterServer
from ...strategies.sync.push_sum import PushSum
from ...strategies.sync.routed import Routed
from ...strategies.sync.ssp import SSP
from ..base.operators import Recorder
from ..config.experiment import Experiment
from ..features.feature import Parts

LARGEST_ROWS = 2**30  # bytes of made-up gradients on which a rule that joins is traced


@dataclass(frozen=True)
class Between:
    """`moved`: operators on what is exchanged, each `every` steps; `hooked`: parameters that are handed on one by one.

    `served`: whether servers step at each push (each), or once all have pushed (all); None without servers.
    """

    exchanges: tuple[Exchange, ...] = ()
    moved: Kernels = ()
    every: int = 1
    hooked: int = 0
    served: str | None = None


def between(experiment: Experiment, parts: Parts, trained: Sequence[Tensor], replicas: int) -> Between:
    """Of a worker with these parameters among so many replicas. Raises `NotPredicted`."""
    sync, name = parts.sync, experiment.sync.name
    if (chosen := experiment.choice("privacy").name) != "none":
        raise NotPredicted(f"privacy={chosen}: what gradients of single samples, or noise, take has no formula here")
    if isinstance(sync, BSP) and not sync.joining.plain:  # refused with sync.shard
        return _joined(sync, trained, replicas)
    for group, usual in (("aggregate", "mean"), ("attack", "none")):
        if (chosen := experiment.choice(group).name) != usual:
            raise NotPredicted(
                f"{group}={chosen}: what joining takes of a server, or of a round, has no formula here; that under "
                "sync=bsp has one"
            )
    entries, size = sum(each.numel() for each in trained), float(payload(trained))
    match sync:
        case LocalUpdate() | Independent() | Routed():
            return Between()
        case Hogwild() if experiment.sync.knobs["lock"] == "none":
            return Between()
        case BSP() if sync.shard != "none":
            raise NotPredicted(f"sync.shard={sync.shard}: what its optimizer's shards take beside was not measured")
        case BSP() if replicas > 1:
            buckets = [
                vector_of(trained[i] for i in members) for members in grouped(trained, sync.capacity, sync.first)
            ]
            return _summed(sync.compress, sync.collective, buckets, replicas, hooked=len(trained))
        case NaiveBSP() if replicas > 1:
            return _summed(Dense(), sync.collective, [vector_of([each]) for each in trained], replicas)
        case BSP() | NaiveBSP():
            return Between()
        case LocalSGD() if replicas == 1:
            return Between()
        case LocalSGD() if sync.switch_step:
            raise NotPredicted(f"sync.switch_step={sync.switch_step}: steps before and after it take different times")
        case LocalSGD() | EASGD():
            found = _summed(sync.compress, sync.collective, [vector_of(trained)], replicas)
            passes = 3 if isinstance(sync, EASGD) or sync.outer_lr is not None else 0
            return _each(found, sync.period, _passes(passes, entries))
        case Gossip() if not isinstance(sync.compress, Dense):
            raise NotPredicted("sync=gossip with compress: what neighbours keep of each other has no formula here")
        case Gossip() | PushSum():
            cost = sync.cost(trained, World(replicas, hosts=(0,) * replicas))
            sent = sum(cost.worker.values()) * sync.period
            times = max(1, round(sent / size))
            exchanges = (Exchange("send", replicas, sent / times, times / sync.period),) if replicas > 1 else ()
            return Between(exchanges, _passes(1 + 2 * times, entries), sync.period)
        case FedAvg():
            return _rounds(experiment, parts, sync, size, entries)
        case ParameterServer() | Downpour() | SSP() | BackupWorkers() if isinstance(sync.compress, Dense):
            if sync.servers > 1:
                raise NotPredicted(
                    "sync.servers: how several servers share the cores was not tried against measurements"
                )
            if isinstance(sync, Downpour) and (sync.n_push, sync.n_fetch) != (1, 1):
                raise NotPredicted(f"sync={name}: steps with and without a push take different times")
            return Between(
                (Exchange("send", 2, size, 2.0),),
                _passes(1, entries),
                served="all" if isinstance(sync, ParameterServer | BackupWorkers) else "each",
            )
        case _:
            raise NotPredicted(f"sync={name}: with these knobs, what its messages take has no formula here")


def _rounds(experiment: Experiment, parts: Parts, sync: FedAvg, size: float, entries: int) -> Between:
    """Of a client: w comes and w_k goes, once a round. The server adds up those of all, one after another."""
    if (fraction := sync.participation.fraction) < 1:
        raise NotPredicted(f"sync.fraction={fraction:g}: who sits a round out takes no steps in it, others do")
    for group, usual in (("compress", "none"), ("server", "plain"), ("client", "plain"), ("secure", "none")):
        if (chosen := experiment.choice(group).name) != usual:
            raise NotPredicted(f"{group}={chosen} under sync=fedavg: what it takes of a round has no formula here")
    clients, train, steps = parts.layout.replicas, parts.data.spec.train_size, None
    if train is not None:
        steps = parts.partitioner.steps_per_epoch(train, clients, experiment.batch_size)
    if steps is None:
        raise NotPredicted("sync=fedavg: how many steps a round has is known once the data are there")
    period = sync.epochs * steps
    return Between((Exchange("send", 2, size, 2.0 / period),), _passes(clients + 1, entries), period)


def clipped(clip: Clip | None, trained: Sequence[Tensor]) -> Kernels:
    """What a clip computes of a gradient: it goes through it for the norm, where it takes one, and to change it."""
    if clip is None or not clip.clips:
        return ()
    tables = ("sum", "mul_") if clip.measures else ("mul_",)
    return tuple(Kernel(table, (float(max(each.numel(), 1)),)) for each in trained for table in tables)


def of_norm(clip: Clip | None, parts: int) -> list[Exchange]:
    """The squares of a norm, summed among the workers of a replica."""
    if clip is None or not clip.measures or parts == 1:
        return []
    return [Exchange("all_reduce", parts, 2 * (parts - 1) / parts * NORM)]


def _each(found: Between, period: int, moved: Kernels) -> Between:
    exchanges = tuple(Exchange(e.operation, e.workers, e.nbytes, e.times / period) for e in found.exchanges)
    return Between(exchanges, (*found.moved, *moved), period)


def _passes(times: int, entries: int) -> Kernels:
    return (Kernel("add_", (float(max(entries, 1)),)),) * times


def _summed(
    compress: Compressor, collective: Collective, vectors: Sequence[Vector], replicas: int, hooked: int = 0
) -> Between:
    """Each vector is summed over the replicas, as its message where it is compressed."""
    exchanges: list[Exchange] = []
    moved: list[Kernel] = []
    for vector in vectors:
        moved.append(Kernel("mul_", (float(vector.n),)))
        if isinstance(compress, Summed | Dense):
            sizes = [vector.nbytes] if isinstance(compress, Dense) else compress.of_total(vector)
            for nbytes in sizes:
                exchanges += _sum(collective, nbytes, replicas)
        else:
            nbytes = (replicas - 1) * compress.nbytes(vector)
            exchanges.append(Exchange("all_gather", replicas, nbytes))
        if not isinstance(compress, Dense):
            moved += _compressing(compress, vector, replicas)
    return Between(tuple(exchanges), tuple(moved), hooked=hooked)


def _joined(sync: BSP, trained: Sequence[Tensor], replicas: int) -> Between:
    """One bucket, once backward is over. A worker that lies forges its own; where rows are not added up on their way,
    each worker gathers those of all, and all compute what the rule makes of them.
    """
    if replicas == 1:
        return Between()
    if not isinstance(sync.compress, Dense):
        raise NotPredicted("aggregate or attack with compress: what it takes to decode all rows has no formula here")
    joining, vector = copy.deepcopy(sync.joining), vector_of(trained)  # a rule may remember what it is given
    if (size := replicas * vector.nbytes) > LARGEST_ROWS:
        raise NotPredicted(
            f"aggregate or attack: the rule is traced on the gradients of all {replicas} replicas, which are "
            f"{size / 2**30:.1f} GiB here, and at most {LARGEST_ROWS / 2**30:g} GiB are made for that"
        )
    with torch.random.fork_rng(devices=[]):
        rows = torch.randn(replicas, vector.n, generator=torch.Generator().manual_seed(0)).to(vector.dtype)
    last = replicas - 1
    with torch.no_grad(), Recorder() as recorder:
        for liar in sorted(joining.attack.liars(replicas))[:1]:  # the slowest replica is one that lies
            joining.sent(rows[liar], liar, replicas, joining.attack.from_step)
        if joining.streaming:
            rows[last].copy_(rows[0]).mul_(0.5)
        else:
            alike = dict.fromkeys(range(replicas), 1.0)
            joined = joining.join_in_place(rows, range(replicas), alike, replicas, joining.attack.from_step)
            rows[last].copy_(joined)
    moved = (Kernel("mul_", (float(vector.n),)), *recorder.kernels)  # the first: into the bucket
    if joining.streaming:
        exchanges = _sum(sync.collective, vector.nbytes, replicas)
    else:
        exchanges = [Exchange("all_gather", replicas, last * nbytes) for nbytes in (vector.nbytes, SHARE)]
    return Between(tuple(exchanges), moved, hooked=len(trained))


def _sum(collective: Collective, nbytes: float, replicas: int) -> list[Exchange]:
    world = World(replicas, hosts=(0,) * replicas)
    traffic = sum(collective.traffic(nbytes, world).values())
    if isinstance(collective, Fabric | SharedMemory):
        return [Exchange("all_reduce", replicas, traffic)]
    return [
        Exchange("send", replicas, phase.sharing * phase.nbytes, phase.steps)
        for phase in collective.phases(nbytes, world)
    ]


def _compressing(compress: Compressor, vector: Vector, replicas: int) -> Kernels:
    """The operators of one message and of what is read of the others', found by making one of noise."""
    with torch.random.fork_rng(devices=[]):
        x = torch.randn(vector.n, generator=torch.Generator().manual_seed(0)).to(vector.dtype)
    slot = Slot("predicted", vector, 0, replicas)
    with torch.no_grad(), Recorder() as recorder:
        if isinstance(compress, Summed):
            feedback = compress.feedback
            p = x if feedback is None else feedback.add(x, slot)
            for _ in compress.total(p.clone(), torch.empty_like(p), slot):
                pass
        else:
            p = x if compress.feedback is None else compress.feedback.add(x, slot)
            message = compress.encode(p, slot)
            if compress.feedback is not None:
                compress.feedback.keep(p, compress.decode(message, vector), slot)
            for _ in range(replicas):
                x.add_(compress.decode(message, vector))
    return tuple(recorder.kernels)
