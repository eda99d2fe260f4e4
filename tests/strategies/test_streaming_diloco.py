"""Streaming DiLoCo against its schedule in plain torch, with torch's own Nesterov momentum for each fragment."""

from dataclasses import asdict, dataclass

import pytest
import torch
from oracles import ROUNDING, Case, TwoDtypes, adam, identical, mlp, mlp64, momentum
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.exchange.collectives.ring import Ring
from paceline.exchange.compress import Compressor, EFSignSGD, TopK, WireBFloat16
from paceline.strategies.core.cost import World
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.streaming_diloco import StreamingDiLoCo, first_step, fragments_of

pytestmark = pytest.mark.dist
FLOAT = 4  # bytes
ENTRIES = sum(parameter.numel() for parameter in mlp().parameters())
SIZES = [parameter.numel() for parameter in mlp().parameters()]  # of weight, bias; weight; weight, bias


@dataclass(frozen=True)
class Knobs:
    period: int = 4
    fragments: int = 2
    delay: int = 1
    local_share: float = 0.5
    outer_lr: float = 0.6
    outer_momentum: float = 0.7
    pattern: str = "strided"

    def sync(self, compress: Compressor | None = None) -> StreamingDiLoCo:
        return StreamingDiLoCo(**asdict(self), compress=compress)


ONE = Knobs(3, 1, 0, 0.0, 0.6, 0.7)
LAYERS = [[0, 1], [2], [3, 4]]  # by hand, of the five-layer MLP


class Stream:
    """All replicas in one place."""

    def __init__(self, case: Case, knobs: Knobs, cut: list[list[int]]) -> None:
        self.case, self.knobs = case, knobs
        self.replicas = [Replica(case, 0, rank) for rank in range(len(case.sizes[0]))]
        parts = self.replicas[0].vector.split(SIZES)
        self.entries = [
            torch.cat([torch.arange(ENTRIES).split(SIZES)[i] for layer in layers for i in LAYERS[layer]])
            for layers in cut
        ]
        whole = torch.cat(parts)
        self.common = [nn.Parameter(whole[entries].clone()) for entries in self.entries]
        options = {"lr": knobs.outer_lr, "momentum": knobs.outer_momentum, "nesterov": knobs.outer_momentum > 0}
        self.outer = [torch.optim.SGD([common], **options) for common in self.common]
        self.seen = [[0] * len(self.replicas) for _ in cut]
        self.waiting: dict[int, list[tuple[int, Tensor]]] = {}

    def step(self, t: int) -> Tensor:
        """`t` from 1. [replicas, entries]"""
        for replica in self.replicas:
            replica.gradient(t - 1)
            replica.step()
        k = self.knobs
        for p, entries in enumerate(self.entries):
            self.seen[p] = [n + size for n, size in zip(self.seen[p], self.case.sizes[t - 1], strict=True)]
            at = next(s for s in range(1, k.period + 1) if s * k.fragments >= (p + 1) * k.period)
            if t % k.period == at % k.period:
                ways = [self.common[p].detach() - replica.vector[entries] for replica in self.replicas]
                total = sum(self.seen[p])
                way = sum((way * n / total for way, n in zip(ways, self.seen[p], strict=True)), torch.zeros(()))
                self.waiting.setdefault(t + k.delay, []).append((p, way))
                self.seen[p] = [0] * len(self.replicas)
        for p, way in self.waiting.pop(t, []):
            self.take_over(p, way)
        return torch.stack([replica.vector for replica in self.replicas])

    def take_over(self, p: int, way: Tensor) -> None:
        self.common[p].grad = way
        self.outer[p].step()
        for replica in self.replicas:
            row, own = replica.vector, self.knobs.local_share
            row[self.entries[p]] = own * row[self.entries[p]] + (1 - own) * self.common[p].detach()
            replica.vector = row

    def end(self) -> Tensor:
        """[entries]"""
        for t in sorted(self.waiting):
            for p, way in self.waiting[t]:
                self.take_over(p, way)
        end = torch.empty(ENTRIES, dtype=torch.float64)
        for p, entries in enumerate(self.entries):
            if (total := sum(self.seen[p])) > 0:
                ways = [self.common[p].detach() - replica.vector[entries] for replica in self.replicas]
                self.common[p].grad = sum(
                    (way * n / total for way, n in zip(ways, self.seen[p], strict=True)), torch.zeros(())
                )
                self.outer[p].step()
            end[entries] = self.common[p].detach()
        return end


UNEVEN = [[4, 4, 4], [3, 3, 2], [4, 4, 4], [1, 0, 0], [4, 4, 4], [2, 1, 1], [4, 4, 4], [3, 3, 3], [4, 4, 4]]
RULES = {
    "two fragments": (Knobs(), [[0, 2], [1]], momentum),
    "sequential": (Knobs(3, 2, 2, 0.25, pattern="sequential"), [[0], [1, 2]], momentum),
    "three fragments, all under way at once": (Knobs(3, 3, 2), [[0], [1], [2]], adam),
    "one fragment, late": (Knobs(4, 1, 3, 0.0, 1.0, 0.0), [[0, 1, 2]], momentum),
    "one fragment, at once": (ONE, [[0, 1, 2]], adam),
}


@pytest.mark.parametrize(("knobs", "cut", "optimizer"), RULES.values(), ids=list(RULES))
def test_replicas_follow_the_schedule_of_the_paper(fabric, knobs, cut, optimizer):
    case = Case(UNEVEN, optimizer=optimizer)
    results, stream = fabric(3, live, Life(knobs.sync(), case)), Stream(case, knobs, cut)
    for t in range(len(UNEVEN)):
        assert torch.allclose(stacked(results, t), stream.step(t + 1), rtol=0, atol=ROUNDING)
    end = stream.end()
    for result in results:
        assert torch.allclose(flat(result["weights"]), end, rtol=0, atol=ROUNDING)
        assert identical(result["result"], results[0]["weights"])


def test_other_knobs_train_something_else():
    case = Case(UNEVEN)
    cuts = [(knobs, cut) for knobs, cut, optimizer in RULES.values() if optimizer is momentum]
    ends = []
    for knobs, cut in [*cuts, (Knobs(local_share=0.0), cuts[0][1]), (Knobs(delay=0), cuts[0][1])]:
        stream = Stream(case, knobs, cut)
        ends.append([stream.step(t + 1) for t in range(len(UNEVEN))][-1])
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(ends) for b in ends[:i])


# -- one fragment and no delay


@pytest.mark.parametrize("compress", [TopK(0.3), EFSignSGD()], ids=["topk", "ef_signsgd"])
def test_one_fragment_at_once_is_compressed_diloco_bit_for_bit(virtual_workers, compress):
    case = Case(UNEVEN[:7], model=mlp)
    diloco = virtual_workers(3, live, Life(LocalSGD(3, outer_lr=0.6, outer_momentum=0.7, compress=compress), case))
    stream = virtual_workers(3, live, Life(ONE.sync(compress), case))
    for t in range(7):
        assert torch.equal(stacked(stream, t), stacked(diloco, t))


def test_one_fragment_at_once_is_diloco_but_for_rounding(virtual_workers):
    case = Case(UNEVEN[:7], optimizer=adam)
    diloco = virtual_workers(3, live, Life(LocalSGD(3, outer_lr=0.6, outer_momentum=0.7), case, looks=True))
    stream = virtual_workers(3, live, Life(ONE.sync(), case, looks=True))
    for t in range(7):
        assert torch.allclose(stacked(stream, t), stacked(diloco, t), rtol=0, atol=ROUNDING)
        assert torch.allclose(flat(stream[0]["seen"][t]), flat(diloco[0]["seen"][t]), rtol=0, atol=ROUNDING)


def test_looking_at_the_consensus_changes_nothing(virtual_workers):
    case = Case(UNEVEN, model=mlp)
    looked, apart = (
        virtual_workers(3, live, Life(Knobs().sync(TopK(0.3)), case, looks=looks)) for looks in (True, False)
    )
    for t in range(len(UNEVEN)):
        assert torch.equal(stacked(looked, t), stacked(apart, t))
    assert looked[0]["ledger"] == apart[0]["ledger"]
    assert identical(looked[0]["weights"], apart[0]["weights"])


# -- fragments


@pytest.mark.parametrize(
    ("dimensions", "count", "pattern", "cut"),
    [
        ([2, 1, 2, 2, 1], 2, "strided", [[0, 1, 3, 4], [2]]),
        ([2, 1, 2, 2, 1], 2, "sequential", [[0, 1], [2, 3, 4]]),
        ([1, 1, 2, 1, 4, 1, 1], 2, "strided", [[0, 1, 2, 3], [4, 5, 6]]),
        ([2], 3, "strided", [[0], [], []]),
        ([1], 2, "sequential", [[], [0]]),
        ([0, 1], 1, "strided", [[0, 1]]),
    ],
)
def test_fragments_are_made_of_layers(dimensions, count, pattern, cut):
    assert fragments_of(dimensions, count, pattern) == cut


@pytest.mark.parametrize(("period", "count"), [(4, 1), (4, 2), (5, 3), (3, 3)])
def test_one_fragment_is_sent_in_a_step_and_the_last_at_the_end_of_a_round(period, count):
    steps = [first_step(p, count, period) for p in range(count)]
    assert len(set(steps)) == count and steps == sorted(steps)
    assert steps[0] >= 1 and steps[-1] == period


# -- cost, state, refusals


@pytest.mark.parametrize("compress", [None, WireBFloat16(), TopK(0.1)], ids=["none", "bf16", "topk"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_stated_cost_and_buffers_are_those_of_a_round(virtual_workers, replicas, compress):
    steps, sync = 8, Knobs(delay=1).sync(compress)
    cost = sync.cost(list(mlp().parameters()), World(replicas))
    for result in virtual_workers(replicas, live, Life(sync, Case([[2] * replicas] * steps, model=mlp))):
        assert sum(result["ledger"].values()) == pytest.approx(sum(cost.worker.values()) * steps, abs=0.5)
        assert result["buffers"] == cost.buffers
    if compress is None:
        assert cost.worker == {"all_reduce": pytest.approx(2 * (replicas - 1) / replicas * FLOAT * ENTRIES / 4)}


@pytest.mark.parametrize("compress", [None, TopK(0.3)], ids=["none", "topk"])
@pytest.mark.parametrize("halt", [3, 4, 5])
def test_replicas_go_on_where_they_were_saved_with_a_fragment_under_way(virtual_workers, halt, compress):
    case = Case(UNEVEN, model=mlp)
    straight = virtual_workers(3, live, Life(Knobs(delay=2).sync(compress), case))
    saved = saved_after(straight, halt)
    resumed = virtual_workers(3, live, Life(Knobs(delay=2).sync(compress), case, saved=saved, start=halt))
    for one, other in zip(straight, resumed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"][halt:], other["trajectory"], strict=True))
        assert identical(one["weights"], other["weights"])


def test_another_collective_makes_the_same_sums(virtual_workers):
    case = Case(UNEVEN, model=mlp64)
    ring = StreamingDiLoCo(collective=Ring())
    a, b = (virtual_workers(3, live, Life(sync, case)) for sync in (StreamingDiLoCo(), ring))
    assert torch.allclose(stacked(a, 8), stacked(b, 8), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["sync.fragments=5"], "sync.fragments=5: one is sent in a step.*sync.period=4.*Choose 4 fragments at most"),
        (["sync.delay=4"], "sync.delay=4: a fragment must have arrived.*Choose 3 at most"),
        (["sync.local_share=1"], "sync.local_share=1: must be less than 1"),
        (["sync.pattern=zigzag"], "sync.pattern='zigzag': must be .*strided.*sequential"),
        (["compress=signsgd"], "sync=streaming_diloco: sends changes of weights, and compress=signsgd"),
    ],
)
def test_what_it_cannot_do_is_refused(overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare(["sync=streaming_diloco", "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def test_fragments_without_a_layer_are_noted():
    weights = list(mlp().parameters())
    assert Knobs(fragments=3).sync().notes(weights, World(2)) == []
    [note] = Knobs(fragments=4).sync().notes(weights, World(2))
    assert note == "sync.fragments=4: with 3 layers 1 of them are empty"


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync: .*sync=bsp"):
        StreamingDiLoCo().cost(list(TwoDtypes().parameters()), World(2))
