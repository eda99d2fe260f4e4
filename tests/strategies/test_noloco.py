"""NoLoCo against its outer step with the two means that the paper has, in plain torch."""

from dataclasses import astuple, dataclass

import numpy as np
import pytest
import torch
from oracles import ROUNDING, Case, TwoDtypes, adam, identical, mlp, momentum
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.strategies.core.cost import World
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.noloco import NoLoCo

pytestmark = pytest.mark.dist
FLOAT = 4  # bytes
ENTRIES = sum(parameter.numel() for parameter in mlp().parameters())


@dataclass(frozen=True)
class Knobs:
    period: int = 2
    beta: float = 0.7
    alpha: float = 0.5
    gamma: float = 0.9
    seed: int = 7

    def sync(self) -> NoLoCo:
        return NoLoCo(*astuple(self))


def groups(n: int, r: int, seed: int) -> list[list[int]]:
    order = np.random.default_rng((seed, r)).permutation(n).tolist()
    return [order[i : i + 2] for i in range(0, n, 2)]


class Pairs:
    def __init__(self, case: Case, knobs: Knobs) -> None:
        self.knobs, self.n = knobs, len(case.sizes[0])
        self.replicas = [Replica(case, 0, rank) for rank in range(self.n)]
        self.phi = [replica.vector for replica in self.replicas]
        self.d = [torch.zeros_like(phi) for phi in self.phi]

    def step(self, t: int, dead: int | None = None) -> Tensor:
        """[replicas, entries]"""
        for replica in self.replicas:
            replica.gradient(t)
            replica.step()
        k = self.knobs
        if (t + 1) % k.period == 0:
            theta, phi, d = [replica.vector for replica in self.replicas], list(self.phi), list(self.d)
            for group in groups(self.n, (t + 1) // k.period - 1, k.seed):
                parts = [group] if dead not in group else [[i] for i in group]
                for part in parts:
                    way = sum((theta[j] - phi[j] for j in part), torch.zeros(())) / len(part)
                    mean = sum((phi[j] for j in part), torch.zeros(())) / len(part)
                    for i in part:
                        self.d[i] = k.alpha * d[i] + k.beta * way - k.gamma * (phi[i] - mean)
                        self.phi[i] = phi[i] + self.d[i]
                        self.replicas[i].vector = self.phi[i]
        return torch.stack([replica.vector for replica in self.replicas])


@pytest.mark.parametrize(
    ("n", "knobs", "optimizer"),
    [
        (2, Knobs(), momentum),
        (3, Knobs(1, 0.7, 0.3, 0.7), adam),
        (4, Knobs(2, 1.0, 0.9, 1.2, seed=1), momentum),
        (5, Knobs(), adam),
        (1, Knobs(), momentum),
    ],
)
def test_replicas_follow_the_outer_step_of_the_paper(fabric, n, knobs, optimizer):
    case = Case([[3] * n, [2] * n, [1] * n, [3] * n, [2] * n, [1] + [0] * (n - 1), [2] * n], optimizer=optimizer)
    results, pairs = fabric(n, live, Life(knobs.sync(), case)), Pairs(case, knobs)
    for t in range(len(case.sizes)):
        expected = pairs.step(t)
        assert torch.allclose(stacked(results, t), expected, rtol=0, atol=ROUNDING)
    for result in results:
        assert torch.allclose(flat(result["weights"]), expected.mean(0), rtol=0, atol=ROUNDING)
        assert identical(result["result"], results[0]["weights"])


def test_without_momentum_and_with_full_steps_it_is_gossip_in_pairs_bit_for_bit(virtual_workers):
    case = Case([[3] * 5] * 6, model=mlp)
    pairs = virtual_workers(5, live, Life(NoLoCo(2, 1.0, 0.0, 1.0, seed=3), case))
    gossip = virtual_workers(5, live, Life(Gossip("matching", 2, seed=3), case, seeds=[0]))
    for t in range(6):
        assert torch.equal(stacked(pairs, t), stacked(gossip, t))


def test_two_workers_without_momentum_are_diloco_without_momentum(virtual_workers):
    case = Case([[3, 3]] * 6)
    pair = virtual_workers(2, live, Life(NoLoCo(3, 0.6, 0.0, 0.9), case))
    diloco = virtual_workers(2, live, Life(LocalSGD(3, outer_lr=0.6), case))
    for t in range(6):
        assert torch.allclose(stacked(pair, t), stacked(diloco, t), rtol=0, atol=ROUNDING)


def test_the_momentum_of_two_workers_is_heavy_ball_and_not_nesterovs(virtual_workers):
    case = Case([[3, 3]] * 6)
    results = virtual_workers(2, live, Life(NoLoCo(2, 0.6, 0.5, 0.9), case))
    ends = {}
    for nesterov in (False, True):
        replicas = [Replica(case, 0, rank) for rank in (0, 1)]
        slow = nn.Parameter(replicas[0].vector)
        outer = torch.optim.SGD([slow], lr=0.6, momentum=0.5, nesterov=nesterov)
        for t in range(6):
            for replica in replicas:
                replica.gradient(t)
                replica.step()
            if t % 2:
                slow.grad = slow.detach() - (replicas[0].vector + replicas[1].vector) / 2
                outer.step()
                for replica in replicas:
                    replica.vector = slow.detach()
        ends[nesterov] = slow.detach()
    trained = flat(results[0]["weights"])
    assert torch.allclose(trained, ends[False], rtol=0, atol=ROUNDING)
    assert not torch.allclose(trained, ends[True], rtol=0, atol=1e-6)


@pytest.mark.parametrize("n", [4, 5])
def test_the_sum_over_the_workers_does_not_depend_on_the_pull(virtual_workers, n):
    """Nor on who meets whom: of one outer step, after which gradients differ."""
    case = Case([[3] * n] * 2)
    ways = [Knobs(gamma=0.6), Knobs(gamma=1.3), Knobs(gamma=0.0)]
    ends = [stacked(virtual_workers(n, live, Life(knobs.sync(), case)), 1).mean(0) for knobs in ways]
    assert all(torch.allclose(end, ends[0], rtol=0, atol=1e-15) for end in ends[1:])


def test_pairs_come_together_where_there_is_no_gradient_and_conserve_the_mean(virtual_workers):
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    case = Case([[3] * 4] * 2 + [[0] * 4] * 30, optimizer=sgd)
    results = virtual_workers(4, live, Life(Knobs(1, alpha=0.0, gamma=0.9).sync(), case))
    first, last = stacked(results, 1), stacked(results, 31)
    assert torch.allclose(last.mean(0), first.mean(0), rtol=0, atol=1e-14)
    assert float((last - last.mean(0)).norm()) < 1e-6 * float((first - first.mean(0)).norm())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_stated_cost_and_buffers_are_those_of_a_step(virtual_workers, n):
    sync, steps = Knobs().sync(), 6
    cost = sync.cost(list(mlp().parameters()), World(n))
    results = virtual_workers(n, live, Life(sync, Case([[2] * n] * steps, model=mlp)))
    assert sum(result["ledger"].get("send", 0) for result in results) == pytest.approx(n * steps * cost.worker["send"])
    assert sum(sum(result["ledger"].values()) for result in results) == (n - n % 2) * 3 * FLOAT * ENTRIES
    assert all(result["buffers"] == cost.buffers for result in results)


def test_replicas_go_on_where_they_were_saved_inside_a_period(fabric):
    case = Case([[3] * 3] * 7, model=mlp)
    straight = fabric(3, live, Life(Knobs().sync(), case))
    resumed = fabric(3, live, Life(Knobs().sync(), case, saved=saved_after(straight, 3), start=3))
    for one, other in zip(straight, resumed, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"][3:], other["trajectory"], strict=True))
        assert identical(one["weights"], other["weights"])


@pytest.mark.fault
def test_the_living_go_on_alone_where_their_partner_is_dead(workers):
    n, knobs = 4, Knobs(1)
    case = Case([[2] * n] * 6)
    results = workers(n, live, Life(knobs.sync(), case, dies={1: 2}), lost=[1])
    pairs = Pairs(case, knobs)
    living = [rank for rank in range(n) if rank != 1]
    for t in range(6):
        expected = pairs.step(t, dead=1 if t > 2 else None)
        for rank in living:
            assert torch.allclose(flat(results[rank]["trajectory"][t]), expected[rank], rtol=0, atol=ROUNDING)
    assert results[0]["report"]["lost"] == [1]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("sync.outer_lr=0", "sync.outer_lr=0: must be greater than 0"),
        ("sync.outer_momentum=1", "sync.outer_momentum=1: must be less than 1"),
        ("sync.pull=-1", "sync.pull=-1: must be greater than or equal to 0"),
        ("compress=topk", "compress=topk: sync=noloco takes no compress"),
    ],
)
def test_what_it_cannot_do_is_refused(override, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare(["sync=noloco", "hardware.workers=2", override]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def test_a_pull_with_which_replicas_may_drift_apart_is_noted():
    weights = list(mlp().parameters())
    assert NoLoCo().notes(weights, World(2)) == []
    assert NoLoCo(pull=0.1).notes(weights, World(1)) == []
    [note] = NoLoCo(pull=0.1).notes(weights, World(2))
    assert note.startswith("sync.pull=0.1: for replicas to stay together")


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match=r"sync: .*sync=bsp"):
        NoLoCo().cost(list(TwoDtypes().parameters()), World(2))
