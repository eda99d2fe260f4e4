"""FedBuff against Algorithm 1 of Nguyen et al. 2022, simulated in plain torch in the order in which messages came."""

import copy
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles import (
    ROUNDING,
    TwoDtypes,
    Weights,
    adam,
    distance,
    identical,
    mlp,
    mlp64,
    momentum,
    samples,
    weights_of,
)
from torch import Tensor, nn

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.exchange.compress import Compressor, TopK
from paceline.exchange.server import FedAdam, ServerRule, ServerSGD
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.core.setting import Setting
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.sync.fedavg import FedAvg
from paceline.strategies.sync.fedbuff import HEADER, BufferMessage, FedBuff
from paceline.tasks.partition import OwnedPartition
from paceline.testing.messages import flat_vector, slot_of

pytestmark = pytest.mark.dist


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True)
class Federation:
    """Clients with `sizes[k]` samples each; a step of client k takes `seconds[k]`, which no two rounds make equal."""

    sizes: tuple[int, ...]
    steps: int
    buffer: int = 1
    seconds: tuple[float, ...] = (1.0, 1.37, 2.91, 0.731)
    batch_size: int = 2
    epochs: int = 1
    steps_a_round: int | None = None
    discount: float = 0.5
    momentum: Literal["kept", "reset"] = "kept"
    optimizer: Callable[..., torch.optim.Optimizer] = sgd
    model: Callable[[], nn.Module] = mlp64
    compress: Compressor | None = None
    server: ServerRule | None = None
    start: int = 0
    looks: bool = False  # client 0 asks for the consensus after each step
    state: bytes | None = None  # {"weights", "sync"} of client 0, to go on from
    deaths: Mapping[int, int] = field(default_factory=dict)  # client -> the step in which it dies

    @property
    def partition(self) -> OwnedPartition:
        bounds = np.cumsum([0, *self.sizes])
        return OwnedPartition([np.arange(a, b) for a, b in pairwise(bounds)], self.batch_size, 0)

    @property
    def round_length(self) -> int:
        return self.steps_a_round or self.epochs * self.partition.steps_per_epoch

    @property
    def rounds(self) -> int:
        return -(-self.steps // self.round_length)

    def batch(self, step: int, client: int) -> Batch:
        partition = self.partition
        inputs, targets = samples(0, partition.samples)
        chosen = partition.indices(step, client)
        dtype = next(self.model().parameters()).dtype
        return Batch(inputs[chosen].to(dtype), targets[chosen], partition.total(step))

    def initial(self, client: int = 0) -> nn.Module:
        torch.manual_seed(client)
        return self.model()

    def mode(self) -> FedBuff:
        compress, server = copy.deepcopy(self.compress), copy.deepcopy(self.server)
        how = (self.buffer, self.epochs, self.steps_a_round, self.discount, self.momentum, compress, server)
        sync = FedBuff(*how)
        sync.configure(Setting(steps_per_epoch=self.partition.steps_per_epoch))
        return sync


# -- the real thing


def take_part(comm, federation: Federation, sync=None) -> dict[str, Any]:
    """A client's or the server's whole life, as the engine has it. Clients start from other weights than the server."""
    serves = comm.rank == len(federation.sizes)
    model = federation.initial(0 if serves else comm.rank + 5)
    sync = federation.mode() if sync is None else sync
    state = from_bytes(federation.state) if federation.state is not None else None
    if state is not None:
        model.load_state_dict(state["weights"])
    sync.prepare(dict(model.named_parameters()), federation.optimizer(model.parameters()), comm)
    if state is not None:
        sync.load_state_dict(state["sync"])
    if serves:
        order = heard_of(comm)
        sync.serve()
        own = {"weights": weights_of(model), "report": sync.report(), "ledger": comm.ledger.snapshot()}
        return own | {"order": order, "buffers": held_by(sync)}
    looks, states, done = [], [], federation.start
    while (step := sync.next_step(done)) < federation.steps:
        batch = federation.batch(step, comm.rank)
        sync.begin(batch)
        if federation.deaths.get(comm.rank) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if batch.size:
            F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
            comm.elapse(federation.seconds[comm.rank])
        sync.update()
        done = step + 1
        if federation.looks and comm.rank == 0:
            with comm.ledger.aside():
                looks.append({name: tensor.clone() for name, tensor in sync.consensus().items()})
                states.append({"weights": looks[-1], "sync": from_bytes(to_bytes(sync.state_dict()))})
    sent, held = comm.ledger.snapshot(), held_by(sync)
    sync.finish()
    told = {"weights": weights_of(model), "consensus": dict(sync.consensus()), "looks": looks, "states": states}
    return told | {"ledger": sent, "buffers": held, "report": sync.report()}


def heard_of(comm) -> list[tuple[int, int, int]]:
    """(client, message, samples) in the order in which this server hears them."""
    order: list[tuple[int, int, int]] = []
    recv_any = comm.recv_any

    def heard(header: Tensor) -> int:
        client = recv_any(header)
        order.append((client, *header.tolist()))
        return client

    comm.recv_any = heard
    return order


def held_by(sync) -> int:
    return sum(buffer.numel() * buffer.element_size() for buffer in sync.buffers())


def run(fabric, federation: Federation, *sync) -> list[dict[str, Any]]:
    """Clients' results, then the server's. On processes a second is a hundredth of one."""
    if getattr(fabric, "__name__", "") != "run_virtual":
        federation = replace(federation, seconds=tuple(each / 100 for each in federation.seconds))
    lost = {"lost": tuple(federation.deaths)} if federation.deaths else {}
    return fabric(len(federation.sizes) + 1, take_part, federation, *sync, **lost)


# -- the oracle


class Client:
    """One, in plain torch."""

    def __init__(self, federation: Federation, rank: int) -> None:
        self.federation, self.rank, self.model = federation, rank, federation.initial()
        self.optimizer = federation.optimizer(self.model.parameters())
        self.step, self.left_out = 0, None

    def round(self, w: Weights) -> Tensor:
        """[n]: the way that is read of its message."""
        federation = self.federation
        self.model.load_state_dict(w)
        if federation.momentum == "reset":
            self.optimizer = federation.optimizer(self.model.parameters())
        until = min(self.step - self.step % federation.round_length + federation.round_length, federation.steps)
        for step in range(self.step, until):
            batch = federation.batch(step, self.rank)
            if batch.size:
                self.optimizer.zero_grad()
                F.cross_entropy(self.model(batch.inputs), lone(batch.targets)).backward()
                self.optimizer.step()
        self.step = until
        way = flat(weights_of(self.model)) - flat(w)
        if federation.compress is None:
            return way
        way = way if self.left_out is None else self.left_out + way
        sent = federation.compress.decode(federation.compress.encode(way, slot_of(way)), flat_vector(way))
        self.left_out = way - sent
        return sent


def flat(weights: Weights) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in weights.values()])


def algorithm_1(federation: Federation, order: list[tuple[int, int, int]]) -> tuple[list[Weights], Counter[int]]:
    """w before each step of the server and at the end, and the staleness of ways, where messages come in this order."""
    w = weights_of(federation.initial())
    history, buffer, staleness = [w], [], Counter[int]()
    clients = [Client(federation, rank) for rank in range(len(federation.sizes))]
    fetched = {}
    moments: dict[str, Tensor] = {}

    def step() -> None:
        mean = cast(Tensor, sum(buffer) / len(buffer))
        moved = flat(history[-1]) + rule(federation.server, mean, moments)
        pieces = moved.split([tensor.numel() for tensor in w.values()])
        history.append({name: piece.view_as(w[name]) for name, piece in zip(w, pieces, strict=True)})
        buffer.clear()

    for rank, message, count in order:
        if message == BufferMessage.JOIN:
            fetched[rank] = history[-1], len(history)
        elif message == BufferMessage.DELIVER:
            began, version = fetched.pop(rank)
            way = clients[rank].round(began)
            if count == 0:
                continue
            tau = len(history) - version
            staleness[tau] += 1
            buffer.append(way / (1 + tau) ** federation.discount)
            if len(buffer) == federation.buffer:
                step()
    if buffer:
        step()
    return history, staleness


def rule(server: ServerRule | None, mean: Tensor, moments: dict[str, Tensor]) -> Tensor:
    """What w moves by (Hsu et al. 2019, and Reddi et al. 2021, a second time)."""
    if server is None:
        return mean
    if isinstance(server, ServerSGD):
        moments["v"] = server.momentum * moments.get("v", torch.zeros_like(mean)) + mean
        return server.lr * moments["v"]
    assert isinstance(server, FedAdam)
    moments["m"] = 0.9 * moments.get("m", torch.zeros_like(mean)) + 0.1 * mean
    moments["v"] = 0.99 * moments.get("v", torch.full_like(mean, server.tau**2)) + 0.01 * mean**2
    return server.lr * moments["m"] / (moments["v"].sqrt() + server.tau)


FEDERATIONS = {
    "two of three": Federation((4, 6, 4), steps=9, buffer=2),
    "one by one": Federation((4, 6, 4), steps=9),
    "more than there are": Federation((4, 6, 4), steps=12, buffer=5),
    "all alike": Federation((4, 6, 4), steps=9, buffer=2, discount=0.0),
    "two epochs": Federation((3, 6, 2, 4), steps=18, buffer=2, epochs=2),
    "steps in place of epochs": Federation((5, 6, 4), steps=9, buffer=2, steps_a_round=2),
    "compressed": Federation((4, 6, 4), steps=9, buffer=2, compress=TopK(0.2)),
    "momentum kept": Federation((4, 6, 4), steps=9, buffer=2, optimizer=momentum),
    "momentum reset": Federation((4, 6, 4), steps=9, buffer=2, optimizer=momentum, momentum="reset"),
    "adam": Federation((6, 3), steps=9, buffer=2, optimizer=adam),
    "half of the mean way": Federation((4, 6, 4), steps=9, buffer=2, server=ServerSGD(lr=0.5)),
    "server momentum": Federation((4, 6, 4), steps=12, buffer=2, server=ServerSGD(lr=0.5, momentum=0.9)),
    "server adam": Federation((4, 6, 4), steps=12, buffer=2, server=FedAdam(lr=0.05)),
    "the last round cut short": Federation((7, 2, 5), steps=10, buffer=2, epochs=2),
}
every_federation = pytest.mark.parametrize("federation", FEDERATIONS.values(), ids=list(FEDERATIONS))


@every_federation
def test_the_server_steps_as_algorithm_1_does_in_the_order_that_messages_came(fabric, federation):
    """The order is recorded, and a simulation of its own goes through it."""
    *clients, server = run(fabric, federation)
    history, staleness = algorithm_1(federation, server["order"])
    assert distance(server["weights"], history[-1]) < ROUNDING
    assert server["report"] == {"lost": [], "staleness": dict(staleness), "rounds": len(history) - 1}
    delivered = [samples for _, message, samples in server["order"] if message == BufferMessage.DELIVER]
    assert len(delivered) == len(clients) * federation.rounds
    assert sum(staleness.values()) == sum(samples > 0 for samples in delivered)
    assert all(identical(client["weights"], server["weights"]) for client in clients)
    assert all(identical(client["consensus"], server["weights"]) for client in clients)


def test_ways_come_in_the_order_of_the_clock_and_the_same_run_has_the_same_bits(virtual_workers):
    federation = FEDERATIONS["two epochs"]
    one, other = (run(virtual_workers, federation)[-1] for _ in range(2))
    length, per_epoch = federation.round_length, federation.partition.steps_per_epoch
    ends = []
    for client, (size, seconds) in enumerate(zip(federation.sizes, federation.seconds, strict=False)):
        busy = -(-size // federation.batch_size)  # steps of an epoch with samples
        for number in range(federation.rounds):
            ends.append((seconds * busy * (number + 1) * length / per_epoch, client))
    delivered = [client for client, message, _ in one["order"] if message == BufferMessage.DELIVER]
    assert delivered == [client for _, client in sorted(ends)]
    assert one["order"] == other["order"] and identical(one["weights"], other["weights"])
    assert set(one["report"]["staleness"]) > {0, 1}  # it is no FedAvg


def test_as_many_as_there_are_clients_of_one_speed_and_size_is_fedavg(virtual_workers):
    federation = Federation((4, 4, 4), steps=8, buffer=3, seconds=(1.0, 1.0, 1.0), optimizer=momentum)
    fedavg = FedAvg()
    fedavg.configure(Setting(steps_per_epoch=federation.partition.steps_per_epoch))
    buffered, rounds = run(virtual_workers, federation)[-1], run(virtual_workers, federation, fedavg)[-1]
    assert distance(buffered["weights"], rounds["weights"]) < ROUNDING
    assert buffered["report"] == {"lost": [], "staleness": {0: 12}, "rounds": 4}
    slower = run(virtual_workers, replace(federation, seconds=(1.0, 1.0, 1.5)))[-1]
    assert distance(slower["weights"], rounds["weights"]) > 1e-4


def test_its_knobs_change_what_is_trained(virtual_workers):
    one = Federation((4, 6, 4), steps=12, buffer=2, optimizer=momentum)
    others = [{"buffer": 3}, {"epochs": 2}, {"steps_a_round": 2}, {"discount": 0.0}, {"momentum": "reset"}]
    ends = [run(virtual_workers, replace(one, **other))[-1]["weights"] for other in ({}, *others)]
    assert not any(distance(a, b) < 1e-5 for i, a in enumerate(ends) for b in ends[:i])


def test_without_a_number_half_of_the_clients_fill_the_buffer():
    assert [FedBuff().full(clients) for clients in (1, 2, 3, 10, 11)] == [1, 1, 2, 5, 6]
    assert FedBuff(7).full(2) == 7


# -- looking at it, saving it


def test_the_consensus_is_what_the_server_has_and_looking_changes_nothing(virtual_workers):
    federation = FEDERATIONS["two of three"]
    blind, looking = (run(virtual_workers, replace(federation, looks=looks)) for looks in (False, True))
    assert identical(blind[-1]["weights"], looking[-1]["weights"])
    assert [one["ledger"] for one in blind] == [other["ledger"] for other in looking]
    history, _ = algorithm_1(federation, blind[-1]["order"])
    seen = [min(range(len(history)), key=lambda i: distance(look, history[i])) for look in looking[0]["looks"]]
    assert all(distance(look, history[i]) < ROUNDING for look, i in zip(looking[0]["looks"], seen, strict=True))
    assert seen == sorted(seen) and len(set(seen)) > 2


@pytest.mark.parametrize("server", [None, FedAdam(lr=0.05)], ids=["plain", "adam"])
def test_one_client_goes_on_where_it_was_saved_bit_for_bit(fabric, server):
    """Two rounds fill the buffer, so that it holds a way when the second is under way."""
    federation = Federation((9,), 20, 2, steps_a_round=3, optimizer=adam, model=mlp, server=server, looks=True)
    straight, _ = run(fabric, federation)
    for at in (3, 4, 12, 14):
        saved = to_bytes(straight["states"][at - 1])
        resumed, _ = run(fabric, replace(federation, start=at, state=saved, looks=False))
        assert identical(resumed["weights"], straight["weights"]), at
    assert straight["states"][2]["sync"]["server"]["count"] == 1


def test_resumed_the_others_do_the_rest_of_their_round_with_what_was_saved(virtual_workers):
    federation = Federation((8, 8, 5), steps=12, buffer=2, optimizer=momentum, looks=True)
    at, cut = 6, replace(federation, steps=8)  # the second round has two steps left
    saved = run(virtual_workers, cut)[0]["states"][at - 1]
    server = saved["sync"]["server"]
    resumed = run(virtual_workers, replace(cut, start=at, state=to_bytes(saved)))[-1]

    w, version, buffer, count = server["weights"], server["version"], server["sum"], server["count"]
    clients = [Client(cut, rank) for rank in range(3)]
    for client in clients:
        client.step = at
    clients[0].optimizer.load_state_dict(saved["sync"]["optimizer"])
    local, fetched = saved["sync"]["local"], {0: (saved["sync"]["local"]["began"], server["fetched"])}
    names = weights_of(cut.initial())
    for rank, message, _ in resumed["order"]:
        if message == BufferMessage.JOIN:
            fetched[rank] = w, version
        elif message == BufferMessage.DELIVER:
            began, of = fetched[rank]
            y0 = local["weights"] if rank == 0 else began
            way = clients[rank].round(unflat(y0, names)) + (y0 - began)
            buffer = buffer + way / (1 + version - of) ** 0.5
            count += 1
            if count == 2:
                w, version, buffer, count = w + buffer / 2, version + 1, torch.zeros_like(buffer), 0
    if count:
        w = w + buffer / count
    assert distance({"w": flat(resumed["weights"])}, {"w": w}) < ROUNDING
    assert [rank for rank, message, _ in resumed["order"] if message == BufferMessage.JOIN] == [1, 2]


def unflat(vector: Tensor, like: Weights) -> Weights:
    pieces = vector.split([tensor.numel() for tensor in like.values()])
    return {name: piece.view_as(like[name]) for name, piece in zip(like, pieces, strict=True)}


# -- deaths


@pytest.mark.fault
@pytest.mark.parametrize("deaths", [{2: 1}, {1: 5}, {1: 3, 2: 4}], ids=str)
def test_a_client_that_dies_is_missed_by_nobody(workers, deaths):
    federation = Federation((4, 6, 3), steps=9, buffer=2, deaths=deaths)
    results = run(workers, federation)
    server, living = results[-1], [r for k, r in enumerate(results[:-1]) if k not in deaths]
    history, staleness = algorithm_1(federation, server["order"])
    assert server["report"] == {"lost": sorted(deaths), "staleness": dict(staleness), "rounds": len(history) - 1}
    assert sum(staleness.values()) >= 3 * len(living)
    assert distance(server["weights"], history[-1]) < ROUNDING
    assert all(identical(client["weights"], server["weights"]) for client in living)


@pytest.mark.fault
def test_the_death_of_client_0_ends_it(workers):
    """Which judges and saves: nobody would know what the others trained."""
    with pytest.raises(AssertionError, match="lost a peer in recv_any: worker 0"):
        run(workers, Federation((4, 6, 3), steps=9, deaths={0: 4}))


# -- cost


COSTS = [
    Federation((4, 4, 4), steps=8, model=mlp),
    Federation((5, 1, 8, 2), steps=24, epochs=2, buffer=3, model=mlp),
    Federation((8, 8), steps=12, steps_a_round=3, model=mlp),
    Federation((9,), steps=10, model=mlp, compress=TopK(0.1)),
]


@pytest.mark.parametrize("federation", COSTS)
def test_stated_cost_and_buffers_are_what_a_step_sends_and_a_client_holds(virtual_workers, federation):
    parameters = list(mlp().parameters())
    size = 4 * sum(parameter.numel() for parameter in parameters)
    *clients, server = run(virtual_workers, federation)
    world = World(len(clients), federation.partition.steps_per_epoch, steps=federation.steps)
    cost = federation.mode().cost(parameters, world)
    for client in clients:
        assert client["ledger"]["send"] == pytest.approx(cost.worker["send"] * federation.steps)
        assert client["buffers"] == cost.buffers
    if federation.compress is None:
        assert all(client["ledger"]["send"] == federation.rounds * (size + 2 * HEADER) for client in clients)
    assert server["ledger"] == {"send": len(clients) * federation.rounds * size}
    assert cost.server["send"] * federation.steps == pytest.approx(server["ledger"]["send"])
    assert server["buffers"] == 2 * size


def test_the_cost_is_not_known_before_the_data_are_dealt():
    unknown, known = (FedBuff().cost(list(mlp().parameters()), World(2, length)) for length in (None, 5))
    assert "dealt" in str(unknown.varies) and not known.varies and unknown.buffers == known.buffers > 0
    assert FedBuff(steps=3).cost(list(mlp().parameters()), World(2)).varies  # some rounds may have no samples


def test_a_run_too_short_to_fill_the_buffer_is_told():
    parameters, world = list(mlp().parameters()), World(2, 5, steps=10)
    assert FedBuff(4).notes(parameters, world) == []
    [note] = FedBuff(5).notes(parameters, world)
    assert note.startswith("sync.buffer=5: the run has 4 rounds")


# -- refusals


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("sync.steps=5 sync.epochs=2", "sync.steps=5: says how long a round is, and so does sync.epochs=2"),
        ("aggregate=median", "aggregate=median: sync=fedbuff takes no aggregate. Choose .*fedavg"),
        ("attack=zero", "attack=zero: sync=fedbuff takes no attack"),
        ("compress=dgc optimizer.momentum=0", "sync=fedbuff: sends changes of weights, and compress=dgc"),
        ("sync.fraction=0.5", "sync.fraction: there is no such key.*sync=fedavg has sync.fraction"),
        ("average=ema", "average=ema: averages the weights that are evaluated, and"),
        ("sync.buffer=0", "sync.buffer=0"),
        ("sync.discount=-1", "sync.discount=-1"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would(overrides, words):
    with pytest.raises(ConfigError, match=words) as caught:
        engine.prepare(["sync=fedbuff", *overrides.split()]).plan()
    assert caught.value.exit_code == 2


def test_several_dtypes_are_refused():
    with pytest.raises(ConfigError, match="sync: sends all weights") as caught:
        FedBuff().cost(list(TwoDtypes().parameters()), World(2, 1))
    assert caught.value.exit_code == 2


# -- whole runs


def summary_of(*overrides: str, **how: Any) -> dict[str, Any]:
    result = engine.run([*overrides, "tracking=none", "checkpoint.every=0"], quiet=True, **how)
    assert result is not None
    return result.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs", [(), ("sync.buffer=4",), ("server=sgd", "server.lr=0.5"), ("compress=topk", "compress.ratio=0.1")]
)
def test_digits_are_learnt_with_workers_of_uneven_speed(here, knobs):
    four = ("hardware=virtual", "hardware.workers=4", "stragglers=lognormal", "epochs=10")
    summary = summary_of("sync=fedbuff", *four, *knobs)
    assert summary["accuracy"] > 0.93
    assert summary["staleness"]["mean"] > 0
    assert summary["wire"]["bytes_per_step"] == summary["predicted"]["bytes_per_step"]


@pytest.mark.slow
def test_nobody_waits_for_the_slowest(here):
    slow = ("hardware=virtual", "hardware.workers=4", "stragglers=one_slow", "stragglers.factor=8", "epochs=5")
    fedavg, fedbuff = (summary_of(f"sync={sync}", *slow, "target_accuracy=0.9") for sync in ("fedavg", "fedbuff"))
    assert fedbuff["time_to_accuracy"] < fedavg["time_to_accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["sync.buffer=2", "sync.steps=3"])
def test_a_run_with_a_servers_rule_is_resumed_bit_for_bit(here, sync):
    asked = ["model.hidden=[16]", "data.limit=96", "batch_size=8", "sync=fedbuff", sync, "server=adam"]
    asked += ["hardware.workers=1", "hardware.threads=1", "tracking=none", "checkpoint.every_steps=7"]
    whole = engine.run([*asked, "steps=24"], quiet=True)
    engine.run([*asked, "steps=14"], name="half", quiet=True)
    rest = engine.run(["steps=24"], resume="half", quiet=True)
    assert whole is not None and rest is not None
    assert whole.summary["model_sha256"] == rest.summary["model_sha256"]
