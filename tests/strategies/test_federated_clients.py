"""Rules of federated clients, and who takes part, against their papers' algorithms, simulated in plain torch."""

import re
import statistics
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from declared import unmet_terms
from oracles import ROUNDING, Weights, adam, identical, mlp, momentum, weights_of
from test_fedavg import Federation, run, sgd

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.exchange.aggregate import Median
from paceline.exchange.aggregation import Aggregation
from paceline.exchange.attack import SignFlip
from paceline.exchange.client import FedNova, FedProx, MimeLite, PlainClient, Scaffold
from paceline.exchange.client_updates import NUMBER
from paceline.exchange.compress import TopK
from paceline.exchange.participation import drawn, leaves_after
from paceline.exchange.server import ServerSGD
from paceline.strategies.core.cost import World
from paceline.strategies.core.errors import NotFiniteError
from paceline.strategies.core.state import to_bytes
from paceline.strategies.core.terms import ADDED_UP, HONEST
from paceline.strategies.sync.fedavg import HEADER, FedAvg

pytestmark = pytest.mark.dist
LR = 0.1  # of `sgd` and `momentum`


def nesterov(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR, momentum=0.6, nesterov=True)


def decayed(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LR, weight_decay=0.05)


# -- the oracle: each paper's algorithm with all vectors flat


@dataclass
class Simulation:
    """Li et al. 2020, Algorithm 2 (FedProx); Karimireddy et al. 2020, Algorithm 1 with option II (SCAFFOLD), and their
    MimeLite with SGD's momentum; Wang et al. 2020, equation 6 (FedNova). Who takes part is looked up; all else is
    written anew.
    """

    federation: Federation
    w: torch.Tensor = field(init=False)  # [n]
    c: torch.Tensor = field(init=False)
    m: torch.Tensor = field(init=False)
    controls: dict[int, torch.Tensor] = field(default_factory=dict)
    optimizers: dict[int, Any] = field(default_factory=dict)
    left: Counter[int] = field(default_factory=Counter)
    history: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.w = flat(weights_of(self.federation.initial()))
        self.c, self.m = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self.history.append(self.w)

    def rounds(self) -> "Simulation":
        for number in range(self.federation.rounds):
            self.round(number)
            self.history.append(self.w)
        return self

    def round(self, number: int) -> None:
        f = self.federation
        ways, weights, lengths, changes, gradients = [], [], [], {}, []
        for client, times in self.chosen(number).items():
            first, end = number * f.round_length, min((number + 1) * f.round_length, f.steps)
            after = leaves_after(f.seed, number, client, f.dropout, f.round_length) if f.dropout else None
            steps = range(first, end if after is None else min(first + after, end))
            y, n_k, c_k, gradient, length = self.train(client, steps)
            if after is not None:
                self.left[client] += 1
                continue
            ways.append(y - self.w)
            weights.append(n_k if f.sampling == "uniform" else times)
            lengths.append(length)
            gradients.append(gradient)
            if c_k is not None:
                changes[client] = c_k - self.controls.get(client, torch.zeros_like(self.c))
                self.controls[client] = c_k
        total = sum(weights)
        if total == 0:
            return
        p = [weight / total for weight in weights]
        if isinstance(f.client, FedNova):
            tau = sum(share * length for share, length in zip(p, lengths, strict=True))
            tau = statistics.median(lengths) if f.aggregate is not None else tau
            ways = [tau * way / length for way, length in zip(ways, lengths, strict=True)]
        joined = sum(share * way for share, way in zip(p, ways, strict=True))
        if f.aggregate is not None:
            joined = torch.stack(ways).quantile(0.5, dim=0)
        self.w = self.w + joined * (f.server.lr if isinstance(f.server, ServerSGD) else 1)
        if isinstance(f.client, MimeLite):
            mean = sum(share * gradient for share, gradient in zip(p, gradients, strict=True))
            self.m = (1 - f.client.beta) * mean + f.client.beta * self.m
        for client, change in changes.items():
            self.c = self.c + change * (f.sizes[client] / sum(f.sizes))

    def chosen(self, number: int) -> dict[int, int]:
        f = self.federation
        if f.sampling == "uniform":
            return dict.fromkeys(f.sampled(number), 1)
        shares = tuple(size / sum(f.sizes) for size in f.sizes)
        return dict(drawn(f.seed, number, shares, max(round(f.fraction * len(f.sizes)), 1)))

    def train(self, client: int, steps: range):
        f, rule = self.federation, self.federation.client
        model = f.initial()
        torch.nn.utils.vector_to_parameters(self.w.clone(), model.parameters())
        optimizer = f.optimizer(model.parameters())
        if f.momentum == "kept" and client in self.optimizers:
            optimizer.load_state_dict(self.optimizers[client])
        own = self.controls.get(client, torch.zeros_like(self.c))
        n_k = count = 0
        first = torch.zeros_like(self.w)
        for step in steps:
            batch = f.batch(step, client)
            if batch.size == 0:
                continue
            loss = F.cross_entropy(model(batch.inputs), lone(batch.targets))
            if isinstance(rule, FedProx):
                y = torch.nn.utils.parameters_to_vector(model.parameters())
                loss = loss + rule.mu / 2 * (y - self.w).square().sum()
            if isinstance(rule, Scaffold):
                y = torch.nn.utils.parameters_to_vector(model.parameters())
                loss = loss + (y * (self.c - own)).sum()
            if isinstance(rule, MimeLite):
                if count == 0:
                    found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
                    first = torch.nn.utils.parameters_to_vector(found)
                y = torch.nn.utils.parameters_to_vector(model.parameters())
                loss = (1 - rule.beta) * loss + rule.beta * (y * self.m).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n_k, count = n_k + batch.size, count + 1
        self.optimizers[client] = optimizer.state_dict()
        y = flat(weights_of(model))
        c_k = own - self.c + (self.w - y) / (count * LR) if isinstance(rule, Scaffold) and count else None
        return y, n_k, c_k, first, norm_of_a(optimizer.param_groups[0], count)


def norm_of_a(group: dict[str, Any], steps: int) -> float:
    """|a_k|_1 of a round's `steps` under SGD whose momentum begins anew: Wang et al. 2020, section 4.2."""
    rho = group.get("momentum", 0.0)
    if rho == 0:
        return float(steps)
    if group["nesterov"]:
        return sum(1 + rho * (1 - rho ** (t + 1)) / (1 - rho) for t in range(steps))
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def flat(weights: Weights) -> torch.Tensor:
    return torch.cat([weights[name].flatten() for name in weights])


SIZES = (4, 7, 3, 5)
FEDERATIONS = {
    "fedprox": Federation((4, 6, 4), steps=9, client=FedProx(mu=0.5)),
    "fedprox, some of the clients": Federation(SIZES, steps=24, fraction=0.5, seed=4, client=FedProx(mu=2.0)),
    "fedprox with momentum": Federation(SIZES, steps=12, optimizer=momentum, client=FedProx()),
    "fedprox and a median": Federation(SIZES, steps=12, client=FedProx(), aggregate=Median()),
    "scaffold": Federation((4, 6, 4), steps=12, client=Scaffold()),
    "scaffold, some of the clients": Federation(SIZES, steps=32, fraction=0.5, seed=4, client=Scaffold()),
    "scaffold, two epochs, the last cut short": Federation((7, 2, 5), steps=18, epochs=2, client=Scaffold()),
    "scaffold, half of the way": Federation(SIZES, steps=12, client=Scaffold(), server=ServerSGD(lr=0.5)),
    "fednova": Federation((4, 9, 2), steps=15, client=FedNova()),
    "fednova with momentum": Federation((4, 9, 2), steps=15, optimizer=momentum, momentum="reset", client=FedNova()),
    "fednova with Nesterov's": Federation((4, 9, 2), steps=15, optimizer=nesterov, momentum="reset", client=FedNova()),
    "fednova and a median": Federation((4, 9, 2), steps=15, client=FedNova(), aggregate=Median()),
    "fednova, some of the clients": Federation(SIZES, steps=24, fraction=0.5, seed=4, client=FedNova()),
    "mime": Federation((4, 6, 4), steps=12, client=MimeLite(beta=0.6)),
    "mime, some of the clients": Federation(SIZES, steps=32, fraction=0.5, seed=4, client=MimeLite()),
    "mime, all of a client's samples in each batch": Federation(
        SIZES, steps=12, batch_size=7, epochs=3, optimizer=decayed, client=MimeLite(beta=0.5)
    ),
    "mime, the last round cut short": Federation((7, 2, 5), steps=18, epochs=2, client=MimeLite()),
    "mime, half of the way": Federation(SIZES, steps=12, client=MimeLite(), server=ServerSGD(lr=0.5)),
    "weighted": Federation((1, 9, 3, 5), steps=30, fraction=0.5, sampling="weighted"),
    "weighted mime": Federation((1, 9, 3, 5), steps=30, fraction=0.5, sampling="weighted", client=MimeLite()),
    "weighted scaffold": Federation((1, 9, 3, 5), steps=30, fraction=0.5, sampling="weighted", client=Scaffold()),
    "weighted fednova": Federation((1, 9, 3, 5), steps=30, sampling="weighted", client=FedNova()),
    "dropout": Federation(SIZES, steps=24, dropout=0.4),
    "dropout, momentum": Federation(SIZES, steps=24, dropout=0.4, optimizer=momentum),
    "dropout, the last round cut short": Federation((7, 2, 5), steps=22, epochs=2, dropout=0.5),
    "dropout and a median": Federation(SIZES, steps=24, dropout=0.4, looks=True, aggregate=Median()),
    "dropout, scaffold": Federation(SIZES, steps=24, dropout=0.4, client=Scaffold()),
    "dropout, fednova, weighted": Federation(SIZES, steps=24, dropout=0.4, sampling="weighted", client=FedNova()),
    "dropout, mime": Federation(SIZES, steps=24, dropout=0.4, client=MimeLite()),
    "nobody is left of some rounds": Federation((4, 6), steps=30, dropout=0.8, fraction=0.5),
    "nobody is left of some rounds, mime": Federation((4, 6), steps=30, dropout=0.8, fraction=0.5, client=MimeLite()),
}
FAST = (
    "fedprox",
    "scaffold, some of the clients",
    "fednova with momentum",
    "mime, some of the clients",
    "weighted",
    "dropout, the last round cut short",
    "dropout and a median",
)
every_federation = pytest.mark.parametrize(
    "federation",
    [pytest.param(f, marks=[] if name in FAST else pytest.mark.slow) for name, f in FEDERATIONS.items()],
    ids=list(FEDERATIONS),
)


@every_federation
def test_rounds_are_those_of_the_papers_algorithm(virtual_workers, federation):
    *clients, server = run(virtual_workers, federation)
    simulated = Simulation(federation).rounds()
    assert (flat(server["weights"]) - simulated.w).abs().max() < ROUNDING
    assert all(identical(client["weights"], server["weights"]) for client in clients)
    assert [client["report"].get("left", 0) for client in clients] == [simulated.left[k] for k in range(len(clients))]


@pytest.mark.slow
def test_each_rule_goes_another_way():
    one = Federation((4, 9, 2), steps=30)
    rules = [FedProx(mu=0.5), Scaffold(), FedNova(), MimeLite(), None]
    ends = [Simulation(replace(one, client=rule)).rounds().w for rule in rules]
    ends += [Simulation(replace(one, **{"sampling": "weighted"})).rounds().w]
    ends += [Simulation(replace(one, dropout=0.5)).rounds().w]
    assert not any((a - b).abs().max() < 1e-4 for i, a in enumerate(ends) for b in ends[:i])


# -- what must hold


@pytest.mark.parametrize(
    ("sizes", "optimizer", "rule"),
    [
        ((4, 7, 3), momentum, FedProx(mu=0.0)),
        ((4, 7, 3), momentum, PlainClient()),
        ((4, 7, 3), decayed, MimeLite(beta=0.0)),
        ((4, 4, 4), sgd, FedNova()),
        ((4, 3, 4), momentum, FedNova()),  # as many steps, of different size
    ],
)
def test_at_its_neutral_knob_or_where_it_has_nothing_to_do_it_is_fedavg_bit_for_bit(
    virtual_workers, sizes, optimizer, rule
):
    plain = Federation(sizes, steps=12, optimizer=optimizer)
    one, other = (run(virtual_workers, replace(plain, client=client)) for client in (None, rule))
    assert identical(one[-1]["weights"], other[-1]["weights"])


@pytest.mark.parametrize("rule", [FedProx(mu=0.3), Scaffold(), FedNova()])
def test_the_first_step_of_a_round_is_corrected_by_nothing_where_all_begins(virtual_workers, rule):
    """One client whose round is one step: y = w, c = c_k = 0, and one length."""
    plain = Federation((2, 2, 2), steps=1, optimizer=momentum)
    one, other = (run(virtual_workers, replace(plain, client=client)) for client in (None, rule))
    assert identical(one[-1]["weights"], other[-1]["weights"])


@pytest.mark.parametrize("rule", [Scaffold(), FedNova()])
def test_one_client_alone_is_fedavg_bit_for_bit(virtual_workers, rule):
    alone = Federation((9,), steps=15, optimizer=momentum, model=mlp)
    one, other = (run(virtual_workers, replace(alone, client=client)) for client in (None, rule))
    assert identical(one[-1]["weights"], other[-1]["weights"])


def test_scaffolds_c_is_the_mean_of_all_c_k_by_their_samples():
    simulated = Simulation(Federation(SIZES, steps=32, fraction=0.5, seed=4, client=Scaffold())).rounds()
    share = [size / sum(SIZES) for size in SIZES]
    total = sum(share[k] * c_k for k, c_k in simulated.controls.items())
    assert len(simulated.controls) == 4 and (total - simulated.c).abs().max() < 1e-12

    rule = Scaffold()
    rule.prepare(torch.zeros(3), [], (0.25, 0.75))
    rule.take({1: torch.ones(3), 0: torch.ones(3)}, {0: 0.5, 1: 0.5})
    rule.take({1: torch.ones(3)}, {1: 1.0})
    kept = rule.server_state()["kept"]
    assert torch.equal(rule.c, 0.25 * kept[0] + 0.75 * kept[1]) and torch.equal(kept[1], torch.full((3,), 2.0))


def test_scaffold_comes_to_the_optimum_that_fedavg_passes_by():
    """Two clients with f_k = (x - t_k)^2 a_k / 2: the optimum of their sum is not the mean of their own, and FedAvg
    with several steps a round ends between; SCAFFOLD ends at it.
    """

    def end(scaffold: bool) -> float:
        a, t, x = (1.0, 10.0), (0.0, 1.0), 0.0
        c, own = 0.0, [0.0, 0.0]
        for _ in range(400):
            ys, new = [], []
            for k in (0, 1):
                y, total = x, 0.0
                for _ in range(10):
                    g = a[k] * (y - t[k])
                    total += g
                    y -= 0.05 * (g + (c - own[k] if scaffold else 0.0))
                ys.append(y)
                new.append(total / 10)
            c += sum(n - o for n, o in zip(new, own, strict=True)) / 2
            own, x = new, sum(ys) / 2
        return x

    assert abs(end(True) - 10 / 11) < 1e-6 < 0.1 < abs(end(False) - 10 / 11)


def test_where_a_round_is_one_step_with_all_samples_mime_is_central_sgd_with_momentum(virtual_workers):
    """With torch's own, whose buffer begins at 0 here; torch would begin it with the whole first gradient."""
    federation = Federation((4, 9, 2), steps=7, batch_size=9, client=MimeLite(beta=0.8))
    assert federation.round_length == 1
    model = federation.initial()
    central = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.8, dampening=0.8)
    for parameter in model.parameters():
        central.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    batches = [federation.batch(0, client) for client in range(3)]
    inputs, targets = (torch.cat([getattr(batch, of) for batch in batches]) for of in ("inputs", "targets"))
    for _ in range(federation.steps):
        central.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        central.step()
    server = run(virtual_workers, federation)[-1]
    assert (flat(server["weights"]) - flat(weights_of(model))).abs().max() < ROUNDING


def test_mimes_momentum_is_of_the_clients_that_delivered_and_a_client_leaves_it_as_it_is():
    y = torch.nn.Parameter(torch.zeros(2))
    client, server = MimeLite(beta=0.75), MimeLite(beta=0.75)
    server.prepare(torch.zeros(2), [y], (0.1, 0.1, 0.8))
    server.take({0: torch.tensor([4.0, 8.0]), 1: torch.tensor([0.0, 4.0])}, {0: 0.5, 1: 0.5})
    assert server.c.tolist() == [0.5, 1.5]  # a quarter of the mean

    client.prepare(torch.zeros(2), [y], (0.1, 0.1, 0.8))
    client.c.copy_(server.c)
    client.begin()
    for gradient, way in (([4.0, 0.0], [1.375, 1.125]), ([8.0, 8.0], [2.375, 3.125])):
        before, y.grad = y.detach().clone(), torch.tensor(gradient)
        client.step(torch.optim.SGD([y], lr=1.0))
        assert (before - y.detach()).tolist() == way  # gradient / 4 + 3 m / 4
    assert client.change().tolist() == [4.0, 0.0] and client.c.tolist() == [0.5, 1.5]
    client.begin()
    y.grad = None
    client.step(torch.optim.SGD([y], lr=1.0))  # no gradient is one of 0
    assert client.change().tolist() == [0.0, 0.0]


def test_fednova_makes_each_way_as_long_as_if_all_had_taken_as_many_steps():
    factors = FedNova().factors({0: 1, 1: 3, 2: 0}, {0: 2.0, 1: 4.0, 2: 0.0}, robust=False)
    assert factors == {0: pytest.approx(3.5 / 2), 1: pytest.approx(3.5 / 4), 2: 1.0}
    assert FedNova().factors({0: 5, 1: 3}, {0: 0.1 * 3, 1: 0.1 * 3}, robust=False) == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize("lie", [1e300, 5e-324])
def test_the_length_that_one_client_states_moves_no_other_clients_change_under_a_robust_rule(lie):
    found = FedNova().factors({0: 1, 1: 1, 2: 1, 3: 1}, {0: lie, 1: 3.0, 2: 3.0, 3: 3.0}, robust=True)
    assert (found[1], found[2], found[3]) == (1.0, 1.0, 1.0)


# -- who takes part


def test_a_client_is_drawn_as_often_as_it_has_samples_and_its_mean_is_by_how_often():
    shares, rounds, count = (0.1, 0.2, 0.7), 1000, 2
    times = Counter[int]()
    for number in range(rounds):
        draws = drawn(3, number, shares, count)
        assert sum(draws.values()) == count and draws == drawn.__wrapped__(3, number, shares, count)
        times.update(draws)
    for k, share in enumerate(shares):
        draws = rounds * count
        assert abs(times[k] - draws * share) < 4.5 * (draws * share * (1 - share)) ** 0.5


def test_a_client_leaves_with_its_probability_after_any_step_of_the_round():
    rounds, length, p = 1500, 5, 0.3
    left = [leaves_after(0, number, 2, p, length) for number in range(rounds)]
    counts = Counter(left)
    assert set(counts) == {None, 1, 2, 3, 4, 5}
    assert abs(rounds - counts[None] - rounds * p) < 4.5 * (rounds * p * (1 - p)) ** 0.5
    each = rounds * p / length
    assert all(abs(counts[step] - each) < 4.5 * each**0.5 for step in range(1, length + 1))
    assert left[:50] == [leaves_after.__wrapped__(0, number, 2, p, length) for number in range(50)]
    few = range(50)
    assert left[:50] != [leaves_after(0, number, 1, p, length) for number in few]
    assert left[:50] != [leaves_after(1, number, 2, p, length) for number in few]


def test_a_client_trains_until_it_leaves_and_then_not_before_its_next_round(virtual_workers):
    federation = Federation(SIZES, steps=40, dropout=0.5, seed=2)
    *clients, server = run(virtual_workers, federation)
    length, expected = federation.round_length, [list[int]() for _ in SIZES]
    delivered = 0
    for number in range(federation.rounds):
        stays = 0
        for k in federation.sampled(number):
            after = leaves_after(2, number, k, 0.5, length)
            stays += after is None
            expected[k] += range(number * length, number * length + (after or length))
        delivered += stays > 0
    assert [client["trained"] for client in clients] == expected
    assert server["report"]["rounds"] == delivered


def test_where_all_leave_a_round_its_weights_stay():
    federation = FEDERATIONS["nobody is left of some rounds"]
    history = Simulation(federation).rounds().history
    same = [bool((a == b).all()) for a, b in pairwise(history)]
    assert any(same) and not all(same)


# -- looking at it, saving it


RESUMED = {
    "fedprox": Federation(SIZES, steps=16, looks=True, client=FedProx(mu=0.5)),
    "scaffold": Federation(SIZES, steps=16, looks=True, client=Scaffold()),
    "fednova": Federation((4, 9, 2), steps=15, looks=True, client=FedNova()),
    "mime": Federation(SIZES, steps=16, looks=True, client=MimeLite()),
    "weighted": Federation((9, 1, 3, 5), steps=30, fraction=0.5, looks=True, sampling="weighted"),
    "dropout": Federation(SIZES, steps=24, dropout=0.4, looks=True),
    "dropout and a median": Federation(SIZES, steps=24, dropout=0.4, looks=True, aggregate=Median()),
    "dropout, scaffold": Federation(SIZES, steps=24, dropout=0.4, seed=1, looks=True, client=Scaffold()),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "dropout, scaffold" else pytest.mark.slow) for name in RESUMED]
)
def test_resumed_between_rounds_it_is_the_uninterrupted_run_bit_for_bit(virtual_workers, name):
    federation = RESUMED[name]
    straight = run(virtual_workers, federation)
    at = {step + 1: state for step, state in zip(straight[0]["trained"], straight[0]["states"], strict=True)}
    between = {step: state for step, state in at.items() if state["sync"]["local"] is None}
    for step, state in list(between.items())[::2]:
        resumed = run(virtual_workers, replace(federation, start=step, state=to_bytes(state)))
        assert identical(resumed[-1]["weights"], straight[-1]["weights"]), step
    assert len(between) > 2


@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [(FedProx(mu=0.5), momentum), (Scaffold(), momentum), (FedNova(), momentum), (MimeLite(), sgd)],
)
def test_one_client_resumed_inside_a_round_is_the_uninterrupted_run_bit_for_bit(virtual_workers, rule, optimizer):
    federation = Federation((9,), steps=25, epochs=2, optimizer=optimizer, client=rule, model=mlp, looks=True)
    straight, _ = run(virtual_workers, federation)
    for at in (3, 10, 12, 17):
        saved = to_bytes(straight["states"][at - 1])
        resumed, _ = run(virtual_workers, replace(federation, start=at, state=saved, looks=False))
        assert identical(resumed["weights"], straight["weights"])


@pytest.mark.slow
def test_resumed_inside_a_round_that_some_have_left_nobody_is_waited_for_in_vain(virtual_workers):
    federation = Federation((8, 8, 5), steps=24, dropout=0.5, looks=True)
    straight = run(virtual_workers, federation)
    for step, state in zip(straight[0]["trained"], straight[0]["states"], strict=True):
        if state["sync"]["local"] is not None:
            resumed = run(virtual_workers, replace(federation, start=step + 1, state=to_bytes(state), looks=False))
            assert all(bool(each.isfinite().all()) for each in resumed[-1]["weights"].values())


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Scaffold(), MimeLite()])
def test_real_processes_and_the_virtual_cluster_train_the_same_bits(workers, virtual_workers, rule):
    federation = Federation(SIZES, steps=24, dropout=0.3, client=rule, looks=True)
    real, virtual = run(workers, federation), run(virtual_workers, federation)
    for one, other in zip(real, virtual, strict=True):
        assert identical(one["weights"], other["weights"]) and one["ledger"] == other["ledger"]


# -- cost


@pytest.mark.parametrize(
    ("rule", "vectors", "numbers"),
    [(None, 0, 0), (FedProx(), 0, 0), (Scaffold(), 1, 0), (FedNova(), 0, 1), (MimeLite(), 1, 0)],
)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_stated_cost_is_what_a_trained_step_sends(virtual_workers, rule, vectors, numbers, dropout):
    federation = Federation(SIZES, steps=24, fraction=0.5, client=rule, dropout=dropout, model=mlp)
    parameters = list(mlp().parameters())
    size = 4 * sum(parameter.numel() for parameter in parameters)
    *clients, server = run(virtual_workers, federation)
    joins = delivers = 0
    for number in range(federation.rounds):
        for k in federation.sampled(number):
            joins += 1
            delivers += dropout == 0 or leaves_after(0, number, k, dropout, federation.round_length) is None
    sent = sum(client["ledger"].get("send", 0) for client in clients)
    assert sent == joins * HEADER + delivers * (size * (1 + vectors) + HEADER + NUMBER * numbers)
    assert server["ledger"] == {"send": joins * size * (1 + vectors)}

    world = World(len(clients), federation.partition.steps_per_epoch, steps=federation.steps)
    cost = FedAvg(0.5, client=rule, dropout=dropout).cost(parameters, world)
    trained = sum(len(client["trained"]) for client in clients)
    assert cost.worker["send"] * trained == pytest.approx(sent)
    assert cost.server["send"] * trained / len(clients) == pytest.approx(server["ledger"]["send"])
    assert cost.buffers == size * (1 + {FedProx: 1, Scaffold: 3, MimeLite: 2}.get(type(rule), 0))


def test_the_cost_of_dropout_is_that_of_long_runs_where_the_steps_are_not_known():
    parameters = list(mlp().parameters())
    sync = FedAvg(dropout=0.4)
    unknown, long = (sync.cost(parameters, World(4, 6, steps=steps)) for steps in (None, 6 * 600))
    assert unknown.worker["send"] == pytest.approx(long.worker["send"], rel=0.02)
    assert unknown.server["send"] == pytest.approx(long.server["send"], rel=0.02)
    varies = FedAvg(dropout=0.4, sampling="weighted").cost(parameters, World(4, 6)).varies
    assert str(varies).startswith("sync.sampling")


# -- what goes with it, and what is refused


@pytest.mark.parametrize("rule", [Scaffold(), MimeLite()])
def test_what_goes_beside_the_ways_is_compressed_as_they_are(virtual_workers, rule):
    federation = Federation((4, 6, 4), steps=9, client=rule, compress=TopK(0.5), model=mlp)
    plain, packed = run(virtual_workers, replace(federation, compress=None)), run(virtual_workers, federation)
    sent = [results[0]["ledger"]["send"] for results in (plain, packed)]
    size = 4 * sum(parameter.numel() for parameter in mlp().parameters())
    assert sent[0] == 3 * (2 * size + 2 * HEADER)
    vector = [parameter.numel() for parameter in mlp().parameters()]
    assert sent[1] == 3 * (2 * (2 * 4 * (sum(vector) // 2)) + 2 * HEADER)


@pytest.mark.parametrize("client", [Scaffold(), MimeLite()])
@pytest.mark.parametrize(("given", "term"), [({"aggregate": Median()}, ADDED_UP), ({"attack": SignFlip(1)}, HONEST)])
def test_what_a_rule_whose_vectors_are_added_up_cannot_defend_is_refused(client, given, term):
    assert unmet_terms(FedAvg(client=client, **given), client=client, **given) == {term}
    assert not unmet_terms(FedAvg(client=client), client=client)


def test_fednova_refuses_an_optimizer_that_divides_gradients():
    with pytest.raises(ConfigError, match=r"client: counts how often .*Adam divides gradients. Choose optimizer=sgd"):
        FedAvg(client=FedNova()).check_optimizer(adam(mlp().parameters()))
    FedAvg(client=FedNova()).check_optimizer(momentum(mlp().parameters()))


def test_mime_refuses_an_optimizer_that_has_a_momentum_of_its_own():
    check = FedAvg(client=MimeLite()).check_optimizer
    with pytest.raises(ConfigError, match=r"client: clients step .* optimizer.momentum=0.9 is a second one"):
        check(momentum(mlp().parameters()))
    with pytest.raises(ConfigError, match=r"client: the server's momentum .*Adam would .*Choose optimizer=sgd"):
        check(adam(mlp().parameters()))
    check(decayed(mlp().parameters()))


# -- whole runs

TINY = ["tracking=none", "model.hidden=[16]", "data.limit=96", "batch_size=8", "sync=fedavg"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ["client=scaffold", "aggregate=median", "hardware.workers=3"],
            "client=scaffold: delivers a vector beside the weights",
        ),
        (["client=fednova", "optimizer=adam"], "client=fednova: counts how often each gradient"),
        (["client=mime_lite"], "client=mime_lite: clients step with the server's momentum"),
        (["client=mime_lite", "optimizer=adam"], "client=mime_lite: the server's momentum takes the place"),
        (["client=mime_lite", "optimizer.momentum=0", "client.beta=1"], "client.beta=1"),
        (
            ["client=mime_lite", "optimizer.momentum=0", "sync.clients=8", "sync.momentum=reset"],
            "sync.clients=8: has a worker send what its clients make together, and client=mime_lite",
        ),
        (["client=fedprox", "client.mu=-1"], "client.mu=-1"),
        (["sync=bsp", "client=fedprox"], "client=fedprox: sync=bsp takes no client. Choose sync=fedavg"),
        (["sync.dropout=1"], "sync.dropout=1"),
        (["sync.sampling=fair"], "sync.sampling='fair'"),
    ],
)
def test_bad_input_is_refused_by_name(asked, said):
    with pytest.raises(ConfigError, match=None) as caught:
        engine.prepare([*TINY, *asked]).plan()
    assert str(caught.value).startswith(said) and caught.value.exit_code == 2


WHOLE = [[f"client={name}"] for name in ("fedprox", "scaffold", "fednova", "mime_lite")] + [
    ["sync.dropout=0.3"],
    ["client=scaffold", "sync.dropout=0.3", "server=adam", "server.lr=0.01"],
    ["sync.sampling=weighted", "sync.fraction=0.5", "partition=dirichlet", "hardware.workers=4"],
    ["client=scaffold", "compress=bf16"],
    ["client=fednova", "aggregate=median", "hardware.workers=3"],
    ["client=fedprox", "clip=norm", "clip.max=0.5"],
    ["client=scaffold", "strategy=pipeline", "strategy.stages=2", "hardware.workers=4"],
    ["client=fednova", "strategy=offload"],
    ["client=scaffold", "precision=bf16"],
    ["client=scaffold", "adapt=lora"],
    ["client=fednova", "schedule=cosine"],
    ["client=mime_lite", "sync.dropout=0.3", "server=adam", "server.lr=0.01"],
    ["client=mime_lite", "compress=topk"],
    ["client=mime_lite", "strategy=pipeline", "strategy.stages=2", "hardware.workers=4"],
    ["client=mime_lite", "clip=norm", "clip.max=0.5", "optimizer.weight_decay=0.01", "schedule=cosine"],
    ["client=mime_lite", "sync.sampling=weighted", "sync.fraction=0.5", "partition=dirichlet", "hardware.workers=4"],
    ["client=mime_lite", "precision=bf16"],
    ["client=mime_lite", "adapt=lora"],
]


@pytest.mark.slow
@pytest.mark.parametrize("asked", WHOLE, ids=" ".join)
def test_it_goes_with_the_rest_on_processes_and_on_the_virtual_cluster_bit_for_bit(monkeypatch, tmp_path, asked):
    monkeypatch.chdir(tmp_path)
    one, other = (
        engine.run([*TINY, "optimizer.momentum=0", "epochs=4", *asked, *more], quiet=True)
        for more in (["hardware.threads=1"], ["hardware=virtual"])
    )
    assert one is not None and other is not None
    assert one.loss == other.loss and one.accuracy == other.accuracy
    for result in (one, other):
        stated, sent = result.summary["predicted"]["bytes_per_step"], result.summary["wire"]["bytes_per_step"]
        assert stated is None or stated == pytest.approx(sent, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [*WHOLE[:6], WHOLE[10], WHOLE[15]], ids=" ".join)
def test_a_run_is_resumed_bit_for_bit(monkeypatch, tmp_path, asked):
    monkeypatch.chdir(tmp_path)
    asked = [*TINY, "optimizer.momentum=0", "hardware.threads=1", *asked]
    whole = engine.run([*asked, "epochs=4"], quiet=True)
    engine.run([*asked, "epochs=2"], name="half", quiet=True)
    rest = engine.run(["epochs=4"], resume="half", quiet=True)
    assert whole is not None and rest is not None
    assert whole.summary["model_sha256"] == rest.summary["model_sha256"]


@pytest.mark.parametrize("by", ["privacy=dp_fedavg", "secure=bonawitz"])
@pytest.mark.parametrize(
    ("override", "lacking"),
    [
        ("client=scaffold", "client=scaffold delivers more than weights"),
        ("client=fednova", "client=fednova delivers more than weights"),
        ("client=mime_lite", "client=mime_lite delivers more than weights"),
        ("sync.sampling=weighted", "sync=fedavg draws clients with different chances"),
        ("sync.dropout=0.1", "sync=fedavg draws clients with different chances, or lets some leave a round"),
    ],
)
def test_what_tells_more_of_a_client_is_refused_where_it_is_hidden(by: str, override: str, lacking: str) -> None:
    with pytest.raises(ConfigError, match=f"{by}: .*, and {lacking}"):
        asked = ["sync=fedavg", "optimizer.momentum=0", "hardware=virtual", "hardware.workers=8", by, override]
        engine.prepare(asked).plan()


@pytest.mark.parametrize(
    "client",
    [
        "scaffold",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "fedprox", "fednova", "mime_lite")),
    ],
)
def test_what_a_client_holds_and_sends_is_as_predicted(tmp_path, client):
    asked = [*TINY, "optimizer.momentum=0", "hardware=virtual", "steps=6", "checkpoint.every=0", f"client={client}"]
    result = engine.run(asked, root=tmp_path, quiet=True)
    assert result is not None
    assert result.memory["buffers"] == result.predicted.memory["buffers"]
    assert result.wire.bytes_per_step == result.predicted.bytes_per_step


def notes_of(*overrides: str) -> str:
    plan = engine.prepare(["sync=fedavg", "hardware=virtual", "hardware.workers=10", *overrides]).plan()
    return "\n".join(plan.notes)


def test_it_is_said_where_the_rows_of_a_round_may_hold_more_liars_than_a_rule_withstands() -> None:
    lies = ("aggregate=median", "attack=sign_flip", "attack.workers=3")
    assert "made for" not in notes_of(*lies)
    assert "1 of the 1 replicas of a round may lie, and this aggregate is made for 0 of 1" in notes_of(
        *lies, "sync.fraction=0.1"
    )
    assert "a round that replicas leave, or are drawn for twice, has fewer rows" in notes_of(*lies, "sync.dropout=0.5")
    assert "or are drawn for twice, has fewer rows" in notes_of(*lies, "sync.sampling=weighted")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["aggregate=krum", "aggregate.f=2"], r"aggregate.f=2: the rule needs n > 2 f \+ 2, and there are n=5 rows"),
        (
            ["aggregate=bulyan", "sync.fraction=0.2"],
            "aggregate=bulyan: the rule needs .*, and there are n=2 rows.*: too few",
        ),
        (["aggregate=fltrust"], "aggregate.trusted=0: not all of the 10 replicas are in each round"),
        (["aggregate=fltrust", "sync.fraction=1", "sync.dropout=0.1"], "aggregate.trusted=0: not all of the 10"),
    ],
)
def test_the_bound_of_a_rule_is_that_of_the_rows_of_a_round(asked, said) -> None:
    """All ten replicas would be enough, and a round has five."""
    with pytest.raises(ConfigError, match=said):
        notes_of("sync.fraction=0.5", *asked)


@pytest.mark.parametrize("f", [None, 4], ids=["as many as it may", "more than it may"])
def test_of_the_rows_of_a_round_no_more_may_be_left_out_than_the_rule_withstands_of_these(f: int | None) -> None:
    aggregation, rows = Aggregation(Median(f), None), {k: torch.full((3,), float(k)) for k in range(5)}
    lies = {k: torch.full((3,), float("nan")) if k < 3 else row for k, row in rows.items()}
    alike = dict.fromkeys(rows, 1)
    assert aggregation.join({**rows, 0: lies[0], 1: lies[1]}, alike, 10, 0, 5).tolist() == [3.0] * 3
    with pytest.raises(NotFiniteError, match="of 5 withstands 2"):
        aggregation.join(lies, alike, 10, 0, 5)


# -- a run that diverges


@pytest.mark.parametrize(
    ("mu", "rho", "nesterov", "says"),
    [
        (0.0, 0.0, False, "a smaller optimizer.lr may help"),
        (10.0, 0.0, False, "a smaller optimizer.lr, or a smaller client.mu, may help"),
        (21.0, 0.0, False, "client.mu=21 times the rate 0.1 is 2.1, and above 2 .* Choose client.mu below 20,"),
        (21.0, 0.5, False, "a smaller optimizer.lr, or a smaller client.mu, may help"),
        (31.0, 0.5, False, "above 3 .* below 30,"),
        (21.0, 0.5, True, "above 1.5 .* below 15,"),
    ],
)
def test_it_is_said_where_the_pull_to_the_fetched_weights_grows_by_itself(mu, rho, nesterov, says) -> None:
    """And it does: y - w, where nothing else pulls."""
    y = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([y], lr=LR, momentum=rho, nesterov=nesterov)
    assert re.search(says, FedProx(mu=mu).may_help(optimizer))
    for _ in range(200):
        y.grad = mu * y.detach()
        optimizer.step()
    assert bool(y.detach().abs() > 1e3) == ("times the rate" in FedProx(mu=mu).may_help(optimizer))


def test_a_run_that_diverges_by_mu_says_so(tmp_path) -> None:
    asked = [*TINY, "hardware=virtual", "client=fedprox", "client.mu=1e4", "optimizer.momentum=0", "sync.epochs=8"]
    with pytest.raises(RuntimeError, match=r"client\.mu=10000 times the rate 0\.02 is 200") as ended:
        engine.run(asked, root=tmp_path, quiet=True)
    assert getattr(ended.value, "exit_code", None) == 6
