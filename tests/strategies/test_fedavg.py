"""Federated averaging against Algorithm 1 of McMahan et al. 2017, simulated in plain torch."""

import copy
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    ROUNDING,
    Case,
    Plan,
    TwoDtypes,
    Weights,
    adam,
    distance,
    identical,
    mlp,
    mlp64,
    momentum,
    samples,
    serial,
    train,
    weights_of,
)
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine import run as train_with
from paceline.exchange.aggregate import Aggregator, Median
from paceline.exchange.attack import SignFlip
from paceline.exchange.client import ClientRule
from paceline.exchange.compress import Compressor, TopK
from paceline.exchange.participation import OneClient, Rounds, sampled
from paceline.exchange.server import FedAdagrad, FedAdam, FedYogi, PlainServer, ServerRule, ServerSGD
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.core.setting import Setting
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.core.sync import StoppedBefore
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync import fedavg
from paceline.strategies.sync.fedavg import HEADER, FedAvg
from paceline.tasks.partition import OwnedPartition
from paceline.testing.messages import flat_vector, slot_of

pytestmark = pytest.mark.dist


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True)
class Federation:
    """Clients with `sizes[k]` samples each, that train from `start` to before step `steps`."""

    sizes: tuple[int, ...]
    steps: int
    batch_size: int = 2
    fraction: float = 1.0
    epochs: int = 1
    momentum: Literal["kept", "reset"] = "kept"
    seed: int = 0
    optimizer: Callable[..., torch.optim.Optimizer] = sgd
    model: Callable[[], nn.Module] = mlp64
    start: int = 0
    looks: bool = False  # client 0 asks for the consensus after each step
    drains: bool = False  # clients drain before any of them finishes, and client 0 asks for the consensus in between
    compress: Compressor | None = None
    aggregate: Aggregator | None = None
    attack: SignFlip | None = None
    server: ServerRule | None = None
    client: ClientRule | None = None
    sampling: str = "uniform"
    dropout: float = 0.0
    state: bytes | None = None  # {"weights", "sync"} of client 0, to go on from
    deaths: Mapping[int, int] = field(default_factory=dict)  # client -> the step in which it dies
    stops: int | None = None  # the round that is not to open any more

    @property
    def partition(self) -> OwnedPartition:
        bounds = np.cumsum([0, *self.sizes])
        return OwnedPartition([np.arange(a, b) for a, b in pairwise(bounds)], self.batch_size, 0)

    @property
    def round_length(self) -> int:
        return self.epochs * self.partition.steps_per_epoch

    @property
    def rounds(self) -> int:
        return -(-self.steps // self.round_length)

    def sampled(self, number: int) -> list[int]:
        clients = len(self.sizes)
        return sorted(sampled(self.seed, number, clients, max(round(self.fraction * clients), 1)))

    def batch(self, step: int, client: int) -> Batch:
        partition = self.partition
        inputs, targets = samples(0, partition.samples)
        chosen = partition.indices(step, client)
        dtype = next(self.model().parameters()).dtype
        return Batch(inputs[chosen].to(dtype), targets[chosen], partition.total(step))

    def initial(self, client: int = 0) -> nn.Module:
        torch.manual_seed(client)
        return self.model()


# -- the real thing


def take_part(comm, federation: Federation) -> dict[str, Any]:
    """A client's or the server's whole life, as the engine has it. Clients start from other weights than the server."""
    serves = comm.rank == len(federation.sizes)
    model = federation.initial(0 if serves else comm.rank + 5)
    compress = copy.deepcopy(federation.compress)
    aggregation = federation.aggregate, federation.attack, copy.deepcopy(federation.server)
    own = {"client": copy.deepcopy(federation.client), "sampling": federation.sampling, "dropout": federation.dropout}
    knobs = federation.fraction, federation.epochs, federation.momentum, federation.seed, compress, *aggregation
    sync = FedAvg(*knobs, **own)
    partition = federation.partition
    sync.configure(
        Setting(
            steps_per_epoch=partition.steps_per_epoch,
            shares_of_samples=partition.shares,
            stops_before=None if federation.stops is None else lambda number: number == federation.stops,
        )
    )
    state = from_bytes(federation.state) if federation.state is not None else None
    if state is not None:
        model.load_state_dict(state["weights"])
    sync.prepare(dict(model.named_parameters()), federation.optimizer(model.parameters()), comm)
    if state is not None:
        sync.load_state_dict(state["sync"])
    if serves:
        sync.serve()
        return {"weights": weights_of(model), "report": sync.report(), "ledger": comm.ledger.snapshot()}
    trained, looks, states, stopped = [], [], [], None
    done = federation.start
    while (step := sync.next_step(done)) < federation.steps:
        batch = federation.batch(step, comm.rank)
        try:
            sync.begin(batch)
        except StoppedBefore as word:
            stopped = word.step
            break
        if federation.deaths.get(comm.rank) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if batch.size:
            F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        sync.update()
        trained.append(step)
        done = step + 1
        if federation.looks and comm.rank == 0:
            with comm.ledger.aside():
                looks.append({name: tensor.clone() for name, tensor in sync.consensus().items()})
                states.append({"weights": looks[-1], "sync": from_bytes(to_bytes(sync.state_dict()))})
    if stopped is None:
        try:
            sync.is_through(federation.steps)
        except StoppedBefore as word:
            stopped = word.step
    if stopped is not None and comm.rank == 0:
        with comm.ledger.aside():
            looks.append({name: tensor.clone() for name, tensor in sync.consensus().items()})
            states.append({"weights": looks[-1], "sync": from_bytes(to_bytes(sync.state_dict()))})
    sent = comm.ledger.snapshot()
    drained = drain_before_all_finish(comm, sync, len(federation.sizes)) if federation.drains else None
    sync.finish()
    return {
        "drained": drained,
        "weights": weights_of(model),
        "consensus": dict(sync.consensus()),
        "trained": trained,
        "stopped": stopped,
        "looks": looks,
        "states": states,
        "report": sync.report(),
        "ledger": sent,
    }


def drain_before_all_finish(comm, sync: FedAvg, clients: int) -> Weights | None:
    """On client 0 the consensus once it has drained; until it has that, no other client goes on to its end."""
    word = torch.zeros(1)
    with comm.ledger.aside():
        sync.drain()
        sync.drain()  # there is nothing left
        if comm.rank != 0:
            comm.recv(word, 0)
            return None
        drained = {name: tensor.clone() for name, tensor in sync.consensus().items()}
        for other in range(1, clients):
            comm.send(word, other)
    return drained


def run(fabric, federation: Federation) -> list[dict[str, Any]]:
    """Clients' results, then the server's."""
    lost = {"lost": tuple(federation.deaths)} if federation.deaths else {}
    return fabric(len(federation.sizes) + 1, take_part, federation, **lost)


# -- the oracle


def local_training(federation: Federation, w: Weights, client: int, steps: range, optimizer_state=None):
    """w_k, n_k and the optimizer's state after `steps`."""
    model = federation.initial()
    model.load_state_dict(w)
    optimizer = federation.optimizer(model.parameters())
    if optimizer_state is not None:
        optimizer.load_state_dict(optimizer_state)
    n_k = 0
    for step in steps:
        batch = federation.batch(step, client)
        if batch.size == 0:
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        optimizer.step()
        n_k += batch.size
    return weights_of(model), n_k, optimizer.state_dict()


def mean(models: list[tuple[Weights, int]]) -> Weights:
    n = sum(n_k for _, n_k in models)
    return {name: cast(torch.Tensor, sum(w_k[name] * (n_k / n) for w_k, n_k in models)) for name in models[0][0]}


def median(models: list[tuple[Weights, int]]) -> Weights:
    return {
        name: torch.from_numpy(np.median(np.stack([w_k[name].numpy() for w_k, _ in models]), axis=0))
        for name in models[0][0]
    }


def delivered(
    compress: Compressor, w: Weights, w_k: Weights, left_out: torch.Tensor | None
) -> tuple[Weights, torch.Tensor]:
    """What the server makes of w_k's message, and what the client keeps of it."""
    way = torch.cat([(w_k[name] - w[name]).flatten() for name in w])
    way = way if left_out is None else left_out + way
    sent = compress.decode(compress.encode(way, slot_of(way)), flat_vector(way))
    pieces = sent.split([tensor.numel() for tensor in w.values()])
    read = {name: w[name] + piece.view_as(w[name]) for name, piece in zip(w, pieces, strict=True)}
    return read, way - sent


def algorithm_1(federation: Federation, w: Weights | None = None) -> list[Weights]:
    """w before each round and at the end."""
    length = federation.round_length
    kept: dict[int, Any] = {}
    left_out: dict[int, torch.Tensor] = {}
    moments: dict[str, Weights] = {}
    history = [weights_of(federation.initial()) if w is None else w]
    for number in range(federation.start // length, federation.rounds):
        steps = range(number * length, min((number + 1) * length, federation.steps))
        returned = []
        for client in federation.sampled(number):
            if federation.deaths.get(client, federation.steps) < steps.stop:
                continue
            state = kept.get(client) if federation.momentum == "kept" else None
            w_k, n_k, kept[client] = local_training(federation, history[-1], client, steps, state)
            if federation.compress is not None:
                w_k, left_out[client] = delivered(federation.compress, history[-1], w_k, left_out.get(client))
            if federation.attack is not None and client in federation.attack.byzantine(len(federation.sizes)):
                w_k = {name: w - federation.attack.scale * (w_k[name] - w) for name, w in history[-1].items()}
            returned.append((w_k, n_k))
        joined = median if federation.aggregate is not None else mean
        target = joined(returned) if returned else history[-1]
        history.append(rule(federation.server, history[-1], target, moments) if returned else target)
    return history


def rule(server: ServerRule | None, w: Weights, mean: Weights, moments: dict[str, Weights]) -> Weights:
    """Hsu et al. 2019, and Reddi et al. 2021, Algorithm 2, a second time; `moments`: m and v, from round to round."""
    if server is None:
        return mean
    way = {name: mean[name] - w[name] for name in w}
    if isinstance(server, ServerSGD):
        before = moments.get("v", {name: torch.zeros_like(x) for name, x in w.items()})
        v = moments["v"] = {name: server.momentum * before[name] + way[name] for name in w}
        return {name: w[name] + server.lr * v[name] for name in w}
    assert isinstance(server, FedAdagrad | FedAdam | FedYogi)
    m = moments.get("m", {name: torch.zeros_like(x) for name, x in w.items()})
    v = moments.get("v", {name: torch.full_like(x, server.tau**2) for name, x in w.items()})
    moments["m"] = m = {name: 0.9 * m[name] + 0.1 * way[name] for name in w}
    second = {
        FedAdagrad: lambda v, d: v + d * d,
        FedAdam: lambda v, d: 0.99 * v + 0.01 * d * d,
        FedYogi: lambda v, d: v - 0.01 * d * d * torch.sign(v - d * d),
    }[type(server)]
    moments["v"] = v = {name: second(v[name], way[name]) for name in w}
    return {name: w[name] + server.lr * m[name] / (v[name].sqrt() + server.tau) for name in w}


FEDERATIONS = {
    "compressed": Federation((4, 6, 4), steps=9, compress=TopK(0.2)),
    "one lies": Federation((4, 6, 4), steps=9, attack=SignFlip([1], scale=2.0)),
    "median": Federation((4, 7, 3, 5), steps=24, aggregate=Median()),
    "median and one lies": Federation((5, 1, 8, 2, 3), steps=12, aggregate=Median(), attack=SignFlip(1)),
    "server momentum": Federation((4, 6, 4), steps=12, server=ServerSGD(lr=0.5, momentum=0.9)),
    "adagrad": Federation((4, 6, 4), steps=12, server=FedAdagrad()),
    "server adam": Federation((4, 7, 3, 5), steps=24, fraction=0.5, seed=4, server=FedAdam(lr=0.05)),
    "yogi": Federation((4, 6, 4), steps=12, server=FedYogi(lr=0.01, tau=1e-4)),  # v grows and falls
    "yogi and median": Federation((4, 7, 3, 5), steps=24, server=FedYogi(tau=1e-2), aggregate=Median()),
    "all clients": Federation((4, 4, 4), steps=8),
    "uneven clients": Federation((5, 1, 8, 2), steps=12),
    "two epochs": Federation((3, 6, 2), steps=18, epochs=2),
    "half of the clients": Federation((4, 7, 3, 5), steps=24, fraction=0.5, seed=4),
    "one client of five": Federation((2, 4, 3, 1, 5), steps=21, fraction=0.2, epochs=2, seed=6),
    "momentum kept": Federation((4, 7, 3, 5), steps=24, fraction=0.5, seed=4, optimizer=momentum),
    "momentum reset": Federation((4, 7, 3, 5), 24, fraction=0.5, seed=4, optimizer=momentum, momentum="reset"),
    "adam": Federation((6, 3), steps=9, optimizer=adam),
    "the last round cut short": Federation((7, 2, 5), steps=10, epochs=2),
    "training ends before the first round does": Federation((7, 2, 5), steps=2),
}
every_federation = pytest.mark.parametrize("federation", FEDERATIONS.values(), ids=list(FEDERATIONS))


@every_federation
def test_rounds_are_those_of_algorithm_1(fabric, federation):
    *clients, server = run(fabric, federation)
    assert distance(server["weights"], algorithm_1(federation)[-1]) < ROUNDING
    assert all(identical(client["weights"], server["weights"]) for client in clients)
    assert all(identical(client["consensus"], server["weights"]) for client in clients)
    assert server["report"] == {"lost": [], "rounds": federation.rounds}


@pytest.mark.parametrize("server", [PlainServer(), ServerSGD(lr=0.5)], ids=["plain", "server"])
def test_a_loop_over_the_functions_of_the_algorithm_is_a_run(virtual_workers, server: ServerRule) -> None:
    federation = Federation((4, 7, 3, 5), steps=16, epochs=2, fraction=0.5, seed=4, server=server)
    model = federation.initial()

    def step(w: torch.Tensor, batch: Batch) -> torch.Tensor:
        vector_to_parameters(w, model.parameters())
        model.zero_grad()
        if batch.size:
            F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        sgd(model.parameters()).step()
        return parameters_to_vector(model.parameters()).detach()

    def join(w: torch.Tensor, delivered: Mapping[int, tuple[torch.Tensor, int]]) -> torch.Tensor:
        n = sum(n_k for _, n_k in delivered.values())
        return torch.stack([(w_k - w) * (n_k / n) for w_k, n_k in delivered.values()]).sum(0)

    w = parameters_to_vector(model.parameters()).detach()
    for number in range(federation.rounds):
        steps = range(number * federation.round_length, (number + 1) * federation.round_length)
        batches = {k: [federation.batch(step, k) for step in steps] for k in federation.sampled(number)}
        delivered = {k: fedavg.client_update(w.clone(), 0, own, step) for k, own in batches.items()}
        w = fedavg.round(w, delivered, None if server.plain else partial(join, w), server)
    *_, last = run(virtual_workers, federation)
    assert federation.rounds == 2
    trained = torch.cat([each.flatten() for each in last["weights"].values()])
    assert torch.equal(trained, w) if server.plain else distance({"w": trained}, {"w": w}) < ROUNDING


class NewStorages(TorchDispatchMode):
    """Records the sizes of the tensors that operators make in memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {each.data_ptr() for each in args if isinstance(each, torch.Tensor)}
        if isinstance(found, torch.Tensor) and found.data_ptr() not in given:
            self.sizes.append(found.numel())
        return found


@pytest.mark.parametrize("server", [PlainServer(), ServerSGD(lr=0.5), ServerSGD(lr=0.5, momentum=0.9)])
def test_the_end_of_a_round_makes_no_vector_beside_those_of_its_memory_account(server: ServerRule) -> None:
    w, delivered = torch.ones(9), {k: (torch.full((9,), 2.0 * k), 1) for k in range(3)}
    join = None if server.plain else lambda delivered: delivered[1][0].sub_(w)
    with NewStorages() as made:
        new = fedavg.round(w, delivered, join, server)
    assert new is w and w.eq(2.0 if server.plain else 1.5).all()
    assert 4 * sum(made.sizes) == server.holds(4 * len(w))


def test_its_knobs_change_what_is_trained():
    one = Federation((4, 7, 3, 5), steps=24, optimizer=momentum)
    others = [replace(one, fraction=0.5), replace(one, fraction=0.5, seed=1), replace(one, epochs=2)]
    ends = [algorithm_1(f)[-1] for f in (one, *others, replace(one, momentum="reset"))]
    assert not any(distance(a, b) < 1e-4 for i, a in enumerate(ends) for b in ends[:i])


@every_federation
def test_a_client_trains_in_the_rounds_that_it_is_sampled_for_and_in_no_other_step(virtual_workers, federation):
    *clients, _ = run(virtual_workers, federation)
    length = federation.round_length
    for k, client in enumerate(clients):
        assert client["trained"] == [s for s in range(federation.steps) if k in federation.sampled(s // length)]


# -- what must hold


@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 1, 9), (1, 2, 3, 10)])
def test_full_batches_of_one_epoch_from_all_clients_are_central_gradient_descent(fabric, sizes):
    rounds = 6
    *_, server = run(fabric, Federation(sizes, steps=rounds, batch_size=max(sizes)))
    model = Federation(sizes, rounds).initial()
    inputs, targets = samples(0, sum(sizes))
    for _ in range(rounds):
        gradients = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    assert distance(server["weights"], weights_of(model)) < 1e-12


def test_two_steps_a_round_are_no_gradient_descent():
    """The identity above is of full batches only."""
    one = algorithm_1(Federation((4, 4, 4), steps=6, batch_size=4))[-1]
    other = algorithm_1(Federation((4, 4, 4), steps=12, batch_size=2))[-1]
    assert distance(one, other) > 1e-3


def test_the_lectures_three_parties_w_is_a_third_of_m1_plus_m2_plus_m3(fabric):
    federation = Federation((6, 6, 6), steps=3)
    *_, server = run(fabric, federation)
    start = weights_of(federation.initial())
    m1, m2, m3 = (local_training(federation, start, k, range(3))[0] for k in range(3))
    expected = {name: (m1[name] + m2[name] + m3[name]) / 3 for name in m1}
    assert distance(server["weights"], expected) < ROUNDING
    assert distance(m1, m2) > 1e-2


@pytest.mark.parametrize("optimizer", [momentum, adam])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_one_client_alone_is_serial_training_bit_for_bit(fabric, length, optimizer):
    """Whatever the length of a round, training that ends inside one and empty batches included."""
    case = Case([[4], [3], [4], [1], [4], [2], [4]], model=mlp, optimizer=optimizer)
    sync = FedAvg()
    sync.configure(Setting(steps_per_epoch=length))
    client, server = fabric(2, train, Plan(DataParallel(), sync, case))
    assert identical(client["weights"], serial(case))
    assert identical(server["weights"], serial(case))


def test_with_momentum_reset_one_client_is_not_serial(virtual_workers):
    case = Case([[4]] * 6, model=mlp, optimizer=momentum)
    _, server = virtual_workers(2, train, Plan(DataParallel(), FedAvg(momentum="reset"), case))
    assert distance(server["weights"], serial(case)) > 1e-3


@pytest.mark.parametrize(
    "federation",
    [
        Federation((7, 2, 5), steps=10, epochs=2),  # the second round is cut short
        Federation((7, 2, 5), steps=2),  # the first
        Federation((4, 4, 4), steps=8),  # none
    ],
    ids=["later", "at once", "at a round's end"],
)
def test_drained_what_was_trained_inside_a_round_is_the_servers_before_anybody_finishes(fabric, federation):
    first, *_, server = run(fabric, replace(federation, drains=True))
    assert distance(first["drained"], algorithm_1(federation)[-1]) < ROUNDING
    assert identical(first["drained"], server["weights"])
    assert server["report"] == {"lost": [], "rounds": federation.rounds}


# -- sampling

fractions = st.floats(0, 1, exclude_min=True)


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 60))
def test_a_round_samples_so_many_different_clients(seed, number, clients, count):
    count = min(count, clients)
    chosen = sampled(seed, number, clients, count)
    assert len(chosen) == count and chosen <= set(range(clients))
    assert chosen == sampled.__wrapped__(seed, number, clients, count)


def test_every_client_is_sampled_as_often_as_any_other():
    rounds, clients, count = 4000, 10, 3
    times = Counter(k for number in range(rounds) for k in sampled(0, number, clients, count))
    p = count / clients
    assert max(abs(times[k] - rounds * p) for k in range(clients)) < 4.5 * (rounds * p * (1 - p)) ** 0.5
    pairs = Counter(tuple(sorted(sampled(0, number, 4, 2))) for number in range(1200))
    assert len(pairs) == 6 and min(pairs.values()) > 140


def test_a_round_does_not_depend_on_the_one_before():
    drawn = [sampled(0, number, 4, 2) for number in range(1200)]
    assert 150 < sum(one == other for one, other in pairwise(drawn)) < 250  # a sixth of them


def test_the_number_of_clients_in_a_round_is_the_fraction_of_all_and_at_least_one():
    def m(fraction: float, clients: int) -> int:
        return len(rounds(fraction, clients, 1).sampled(0))

    assert [m(1.0, 7), m(0.1, 100), m(0.1, 4), m(0.5, 3), m(0.26, 10), m(1e-9, 1000)] == [7, 10, 1, 2, 3, 1]


def rounds(fraction: float, clients: int, length: int) -> Rounds:
    return Rounds(FedAvg(fraction).participation, (1 / clients,) * clients, length)


@given(fractions, st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.integers(0, 200))
def test_a_client_jumps_to_the_first_step_of_its_next_round(fraction, clients, epochs, per_epoch, step):
    length = epochs * per_epoch
    of_all = rounds(max(fraction, 0.05), clients, length)
    for rank in range(clients):
        landed = OneClient(of_all, rank).next_step(step)
        assert rank in of_all.sampled(landed // length)
        if landed != step:
            assert landed > step and landed % length == 0
            assert all(rank not in of_all.sampled(number) for number in range(step // length, landed // length))


# -- looking at it, saving it


@pytest.mark.parametrize("name", ["all clients", "two epochs", "half of the clients", "one client of five"])
def test_the_consensus_is_the_model_of_the_round_that_ended_last(fabric, name):
    federation = replace(FEDERATIONS[name], looks=True)
    history, length = algorithm_1(federation), federation.round_length
    first, *_ = run(fabric, federation)
    assert len(first["trained"]) == len(first["looks"]) > 0
    for step, seen in zip(first["trained"], first["looks"], strict=True):
        ended = (step + 1) // length  # rounds before this client's next step
        later = history[ended:] if (step + 1) % length == 0 else history[ended : ended + 1]
        # who asks at a round's end may come late, and see a later one, unless the next one waits for it
        late = 0 not in federation.sampled(ended)
        assert any(distance(seen, model) < ROUNDING for model in (later if late else later[:1]))


@pytest.mark.parametrize("name", ["two epochs", "half of the clients"])
def test_looking_changes_nothing_and_is_in_no_ledger(fabric, name):
    blind, looking = run(fabric, FEDERATIONS[name]), run(fabric, replace(FEDERATIONS[name], looks=True))
    assert identical(blind[-1]["weights"], looking[-1]["weights"])
    assert [one["ledger"] for one in blind] == [other["ledger"] for other in looking]


@pytest.mark.parametrize("name", ["all clients", "two epochs", "half of the clients", "momentum reset"])
def test_resumed_at_a_rounds_end_it_is_the_uninterrupted_run_bit_for_bit(virtual_workers, name):
    federation = replace(FEDERATIONS[name], looks=True)
    straight = run(virtual_workers, federation)
    length = federation.round_length
    ends = [i for i, step in enumerate(straight[0]["trained"]) if (step + 1) % length == 0]
    for i in ends:
        at = straight[0]["trained"][i] + 1
        resumed = run(virtual_workers, replace(federation, start=at, state=to_bytes(straight[0]["states"][i])))
        assert identical(resumed[-1]["weights"], straight[-1]["weights"]), at
    assert len(ends) > 1


STOPPED = {
    "all clients": (FEDERATIONS["all clients"], 2),
    "two epochs": (FEDERATIONS["two epochs"], 1),
    "half of the clients": (FEDERATIONS["half of the clients"], 3),
    "one client of five": (FEDERATIONS["one client of five"], 2),
    "some leave": (Federation((4, 6, 3), steps=24, dropout=0.5), 3),
    "most are in no later round": (Federation((4, 6, 3, 5, 2), steps=24, fraction=0.2), 7),
    "inside of the last round": (Federation((4, 6, 3, 5), steps=11, fraction=0.5), 3),
}


@pytest.mark.parametrize(("federation", "number"), STOPPED.values(), ids=list(STOPPED))
def test_told_to_stop_all_clients_end_before_the_same_round_and_what_goes_on_is_the_uninterrupted_run(
    fabric, federation, number
):
    straight = run(fabric, federation)
    *clients, server = run(fabric, replace(federation, stops=number))
    at = number * federation.round_length
    assert 0 < at < federation.steps
    assert [client["stopped"] for client in clients] == [at] * len(clients)
    for client, whole in zip(clients, straight[:-1], strict=True):
        assert client["trained"] == [step for step in whole["trained"] if step < at]
    if federation.dropout == 0:
        assert distance(server["weights"], algorithm_1(replace(federation, steps=at))[-1]) < ROUNDING
    [state] = clients[0]["states"]
    assert identical(state["weights"], server["weights"])
    resumed = run(fabric, replace(federation, start=at, state=to_bytes(state)))
    assert identical(resumed[-1]["weights"], straight[-1]["weights"])


def test_what_a_stopped_run_has_sent_is_what_its_rounds_send(fabric):
    federation = STOPPED["half of the clients"][0]
    stopped = run(fabric, replace(federation, stops=2))
    made = run(fabric, replace(federation, steps=2 * federation.round_length))
    assert stopped[-1]["ledger"] == made[-1]["ledger"]


def test_a_run_told_to_stop_in_its_last_round_is_complete(virtual_workers):
    federation = Federation((4, 6, 3, 5), steps=12, fraction=0.5)
    straight, late = (run(virtual_workers, replace(federation, stops=at)) for at in (None, federation.rounds))
    assert [client["stopped"] for client in late[:-1]] == [None] * 4
    assert identical(late[-1]["weights"], straight[-1]["weights"])


@pytest.mark.parametrize("optimizer", [sgd, momentum, adam])
def test_one_client_resumed_inside_a_round_is_serial_bit_for_bit(fabric, optimizer):
    federation = Federation((9,), steps=15, epochs=2, optimizer=optimizer, model=mlp, looks=True)
    straight, _ = run(fabric, federation)
    for at in (3, 10, 12):
        saved = to_bytes(straight["states"][at - 1])
        resumed, _ = run(fabric, replace(federation, start=at, state=saved, looks=False))
        assert identical(resumed["weights"], straight["weights"])


def test_resumed_inside_a_round_the_others_do_the_rest_of_it_and_count_for_that(fabric):
    federation = Federation((8, 8, 5), steps=12, optimizer=momentum, looks=True)
    length, at = federation.round_length, 6  # of 4 steps: the second round has two left
    straight = run(fabric, replace(federation, steps=8))[0]
    state = straight["states"][at - 1]
    resumed = run(fabric, replace(federation, start=at, state=to_bytes(state), steps=8))

    w = algorithm_1(replace(federation, steps=4))[-1]
    assert distance(state["weights"], w) < ROUNDING  # of the round's start
    _, _, kept = local_training(federation, weights_of(federation.initial()), 0, range(length))
    first, n_first, _ = local_training(federation, w, 0, range(length, 8), kept)
    others = [local_training(federation, w, client, range(at, 8))[:2] for client in (1, 2)]
    assert [n_first, *(n for _, n in others)] == [8, 4, 1]
    assert distance(resumed[-1]["weights"], mean([(first, n_first), *others])) < ROUNDING


# -- deaths


DEATHS = {
    "in the first round": (Federation((4, 6, 3), steps=9, deaths={2: 1}), 3),
    "in a round's last step": (Federation((4, 6, 3), steps=9, deaths={1: 5}), 3),
    "two at once": (Federation((4, 6, 3, 5), steps=9, deaths={1: 3, 3: 3}), 3),
    "one after another": (Federation((4, 6, 3, 5), steps=12, deaths={1: 2, 2: 7}), 4),
    "everyone but the first": (Federation((4, 6, 3), steps=9, deaths={1: 3, 2: 4}), 3),
    "all who were sampled": (Federation((4, 6, 3, 5, 2), steps=24, fraction=0.2, seed=0, deaths={}), 8),
}


@pytest.mark.fault
@pytest.mark.parametrize(("federation", "rounds"), DEATHS.values(), ids=list(DEATHS))
def test_a_client_that_dies_is_left_out_and_the_others_go_on(workers, federation, rounds):
    if not federation.deaths:  # the only one of the round, if it is not the first client
        number = next(r for r in range(1, 8) if federation.sampled(r) != [0])
        federation = replace(federation, deaths={federation.sampled(number)[0]: number * federation.round_length + 1})
        rounds -= sum(federation.sampled(r)[0] in federation.deaths for r in range(number, 8))
    dead = sorted(federation.deaths)
    results = run(workers, federation)
    server, living = results[-1], [r for k, r in enumerate(results[:-1]) if k not in dead]
    assert server["report"] == {"lost": dead, "rounds": rounds}
    assert distance(server["weights"], algorithm_1(federation)[-1]) < ROUNDING
    assert all(identical(client["weights"], server["weights"]) for client in living)


@pytest.mark.fault
def test_the_death_of_client_0_ends_it(workers):
    """Which judges and saves: nobody would know what the others trained."""
    with pytest.raises(AssertionError, match="lost a peer in recv_any: worker 0"):
        run(workers, Federation((4, 6, 3), steps=9, deaths={0: 4}))


# -- cost


COSTS = [
    Federation((4, 4, 4), steps=8, model=mlp),
    Federation((5, 1, 8, 2), steps=24, epochs=2, model=mlp),
    Federation((4, 7, 3, 5), steps=24, fraction=0.5, model=mlp),
    Federation((2, 4, 3, 1, 5), steps=30, fraction=0.4, seed=3, model=mlp),
    Federation((9,), steps=10, model=mlp),
]


@pytest.mark.parametrize("federation", COSTS)
def test_stated_cost_is_what_a_trained_step_sends(fabric, federation):
    parameters = list(mlp().parameters())
    size = 4 * sum(parameter.numel() for parameter in parameters)
    *clients, server = run(fabric, federation)
    assert federation.steps % federation.round_length == 0
    chosen = Counter(k for number in range(federation.rounds) for k in federation.sampled(number))
    for k, client in enumerate(clients):
        assert client["ledger"].get("send", 0) == chosen[k] * (size + 2 * HEADER)
    assert server["ledger"] == {"send": chosen.total() * size}

    cost = FedAvg(federation.fraction, federation.epochs).cost(
        parameters, World(len(clients), federation.partition.steps_per_epoch)
    )
    trained = sum(len(client["trained"]) for client in clients)
    assert cost.worker["send"] * trained == pytest.approx(sum(c["ledger"].get("send", 0) for c in clients))
    assert cost.server["send"] * trained / len(clients) == pytest.approx(server["ledger"]["send"])


def test_the_cost_is_not_known_before_the_steps_of_an_epoch_are():
    unknown, known = (FedAvg().cost(list(mlp().parameters()), World(2, length)) for length in (None, 5))
    assert "sync.epochs" in str(unknown.varies) and not known.varies and unknown.buffers == known.buffers > 0


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match="sync: sends all weights") as caught:
        FedAvg().cost(list(TwoDtypes().parameters()), World(2, 1))
    assert caught.value.exit_code == 2


# -- whole runs


def accuracy(monkeypatch, tmp_path, *overrides: str) -> float:
    """After the default five epochs on digits, which take serial training to 96 %."""
    monkeypatch.chdir(tmp_path)
    result = train_with([*overrides, "tracking=none", "checkpoint.every=0"], quiet=True)
    assert result is not None and result.accuracy is not None
    return result.accuracy


@pytest.mark.slow
def test_two_clients_with_evenly_dealt_digits_learn_them_as_well_as_one_does(fork_server, monkeypatch, tmp_path):
    serial = accuracy(monkeypatch, tmp_path, "strategy=single")
    assert accuracy(monkeypatch, tmp_path, "sync=fedavg", "hardware.workers=2") > serial - 0.02 > 0.92


@pytest.mark.slow
def test_three_parties_with_other_digits_each_learn_all_ten_and_less_than_with_evenly_dealt_ones(
    fork_server, monkeypatch, tmp_path
):
    three = ["experiment=three_parties", "hardware=virtual"]
    skewed = accuracy(monkeypatch, tmp_path, *three)
    even = accuracy(monkeypatch, tmp_path, *three, "partition=shuffled")
    assert 0.75 < skewed < even - 0.03
    assert even > 0.94


# -- how the server steps


def test_the_whole_mean_way_is_federated_averaging(virtual_workers):
    servers = (None, PlainServer(), ServerSGD())
    plain, named, whole = (run(virtual_workers, Federation((4, 6, 4), 9, server=server)) for server in servers)
    assert identical(plain[-1]["weights"], named[-1]["weights"])
    assert distance(plain[-1]["weights"], whole[-1]["weights"]) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["momentum", "adagrad", "adam", "yogi"])
def test_a_servers_rule_is_chosen_in_one_line_and_resumed(tmp_path, monkeypatch, choice):
    monkeypatch.chdir(tmp_path)
    asked = ["tracking=none", "model.hidden=[16]", "data.limit=96", "batch_size=8", "sync=fedavg", f"server={choice}"]
    asked += ["hardware.workers=2", "hardware.threads=1", "optimizer.momentum=0"]
    whole = train_with([*asked, "epochs=4"], quiet=True)
    train_with([*asked, "epochs=2"], name="half", quiet=True)
    rest = train_with(["epochs=4"], resume="half", quiet=True)
    assert whole is not None and rest is not None
    assert whole.summary["model_sha256"] == rest.summary["model_sha256"]
    assert whole.summary["wire"]["bytes_per_step"] == pytest.approx(whole.summary["predicted"]["bytes_per_step"])


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("steps", [6, 5], ids=["whole rounds", "amid the last round"])
def test_a_run_whose_rounds_all_lack_worker_0_saves_at_its_end_and_goes_on(tmp_path, monkeypatch, steps):
    """Worker 0 is in none of the first three rounds of 3 steps, so that its next one lies beyond the end."""
    monkeypatch.chdir(tmp_path)
    seed = next(seed for seed in range(99) if all(0 not in sampled(seed, number, 2, 1) for number in range(3)))
    asked = ["sync=fedavg", "sync.fraction=0.5", f"sync.seed={seed}", "sync.momentum=reset", "hardware.workers=2"]
    asked += ["tracking=none", "data.limit=96", "batch_size=16", "hardware.threads=1", "hardware.timeout=15"]
    train_with([*asked, f"steps={steps}"], name="away", quiet=True)
    rest = train_with(["steps=18"], resume="away", quiet=True)
    whole = train_with([*asked, "steps=18"], quiet=True)
    assert whole is not None and rest is not None
    assert whole.summary["steps"] == rest.summary["steps"] == 18
    assert (whole.summary["model_sha256"] == rest.summary["model_sha256"]) == (steps == 6)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("left", ["", "7", "3"], ids=["drawn no more", "has left", "others have left"])
def test_worker_0_saves_at_the_end_after_its_last_round(tmp_path, monkeypatch, left):
    """Drawn for the last round and for none of the next two; or others are amid the last round, which it has left, or
    which some of them have left.
    """
    monkeypatch.chdir(tmp_path)
    rounds = [False, True, False, False]
    drawn = next(seed for seed in range(99) if [0 in sampled(seed, n, 2, 1) for n in range(4)] == rounds)
    asked = ["hardware.workers=2", "sync.fraction=0.5", f"sync.seed={drawn}", "steps=6", "batch_size=16"]
    if left:
        asked = ["hardware.workers=5", "sync.dropout=0.4", "sync.sampling=weighted", f"sync.seed={left}", "steps=5"]
        asked += ["sync.epochs=2", "batch_size=8"] if left == "7" else ["partition=dirichlet", "batch_size=16"]
    asked += ["sync=fedavg", "tracking=none", "data.limit=96", "hardware.threads=1", "hardware.timeout=15"]
    train_with([*asked, "checkpoint.every_steps=50"], name="saved", quiet=True)
    rest = train_with(["steps=12"], resume="saved", quiet=True)
    assert rest is not None and rest.summary["steps"] == 12


def test_yogis_second_moment_follows_the_square_by_signs():
    """Reddi et al. 2021, Algorithm 2: v falls where it is above Delta^2 and grows where it is below, each by a share of
    Delta^2."""
    rule, weights = FedYogi(lr=0.1, tau=0.1), torch.zeros(2, dtype=torch.float64)
    way = torch.tensor([1.0, 0.01], dtype=torch.float64)  # squares above tau^2 and below it
    rule.step(weights, way)
    v = torch.tensor([0.01 + 0.01 * 1.0, 0.01 - 0.01 * 1e-4], dtype=torch.float64)
    assert torch.allclose(rule.state_dict()["v"], v, rtol=1e-12)
    assert torch.allclose(weights, 0.1 * 0.1 * way / (v.sqrt() + 0.1), rtol=1e-12)


def test_a_client_that_delivers_nan_ends_the_run_and_the_round_is_named(tmp_path):
    how = ["sync=fedavg", "attack=not_finite", "hardware=virtual", "hardware.workers=3", "epochs=1", "tracking=none"]
    with pytest.raises(RuntimeError, match=r"the weights that round 0 makes are NaN .* clients 0, 1, 2") as ended:
        train_with(how, root=tmp_path, quiet=True)
    assert getattr(ended.value, "exit_code", None) == 6
