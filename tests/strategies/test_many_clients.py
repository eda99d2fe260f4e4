"""FedAvg's clients that are no workers: against Algorithm 1 of as many clients in plain torch, and as real clients."""

import copy
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch.nn.functional as F
from needs import needs_fashion_mnist
from oracles import ROUNDING, adam, distance, identical, mlp, momentum, samples, weights_of
from test_fedavg import Federation, algorithm_1, local_training, mean
from test_fedavg import run as run_real_clients

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.fabrics.clients import PartitionOfClients
from paceline.exchange.server import FedAdam, ServerSGD
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.core.setting import Setting
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.sync.fedavg import HEADER, FedAvg

pytestmark = pytest.mark.dist
SIZES = (4, 1, 6, 3, 2, 5, 4)


def sharing(federation: Federation) -> FedAvg:
    how = (federation.fraction, federation.epochs, "reset", federation.seed)
    return FedAvg(*how, server=copy.deepcopy(federation.server), clients=len(federation.sizes))


def take_part(comm, federation: Federation, rounds: float) -> dict[str, Any]:
    """A worker's or the server's whole life, as the engine has it."""
    workers = comm.size - 1
    sync = sharing(federation)
    shares = sync.shares(workers)
    assert shares is not None
    partition = PartitionOfClients(federation.partition, shares)
    sync.configure(Setting(steps_per_epoch=partition.steps_per_epoch))
    steps = round(rounds * federation.epochs * partition.steps_per_epoch)
    model = federation.initial(0 if comm.rank == workers else comm.rank + 5)
    state = from_bytes(federation.state) if federation.state is not None else None
    if state is not None:
        model.load_state_dict(state["weights"])
    sync.prepare(dict(model.named_parameters()), federation.optimizer(model.parameters()), comm)
    if state is not None:
        sync.load_state_dict(state["sync"])
    if comm.rank == workers:
        sync.serve()
        return {"weights": weights_of(model), "report": sync.report(), "ledger": comm.ledger.snapshot()}
    inputs, targets = samples(0, sum(federation.sizes))  # as `Federation.batch` has them
    inputs = inputs.to(next(model.parameters()).dtype)
    trained, states, done = [], [], federation.start
    while (step := sync.next_step(done)) < steps:
        chosen = partition.indices(step, comm.rank)
        assert len(chosen) == partition.size(step, comm.rank)
        if federation.deaths.get(comm.rank) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        sync.begin(Batch(inputs[chosen], targets[chosen], partition.total(step), step))
        if len(chosen):
            F.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
        sync.update()
        trained.append(step)
        done = step + 1
        if federation.looks and comm.rank == 0:
            with comm.ledger.aside():
                look = {name: tensor.clone() for name, tensor in sync.consensus().items()}
                states.append({"weights": look, "sync": from_bytes(to_bytes(sync.state_dict()))})
    sent = comm.ledger.snapshot()
    held = sum(buffer.numel() * buffer.element_size() for buffer in sync.buffers())
    sync.finish()
    told = {"weights": weights_of(model), "trained": trained, "states": states}
    return told | {"ledger": sent, "buffers": held, "steps": steps}


def run(fabric, workers: int, federation: Federation, rounds: float = 3) -> list[dict[str, Any]]:
    lost = {"lost": tuple(federation.deaths)} if federation.deaths else {}
    return fabric(workers + 1, take_part, federation, rounds, **lost)


def of_rounds(federation: Federation, rounds: int) -> Federation:
    """As clients of their own count steps."""
    return replace(federation, steps=rounds * federation.round_length)


FEDERATIONS = {
    "all of them": Federation(SIZES, 0, optimizer=momentum, momentum="reset"),
    "some": Federation(SIZES, 0, fraction=0.6, seed=3, optimizer=momentum, momentum="reset"),
    "two epochs": Federation(SIZES, 0, fraction=0.45, epochs=2, optimizer=adam, momentum="reset"),
    "server momentum": Federation(SIZES, 0, momentum="reset", server=ServerSGD(lr=0.5, momentum=0.9)),
    "server adam": Federation(SIZES, 0, fraction=0.6, momentum="reset", server=FedAdam(lr=0.05)),
}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", FEDERATIONS)
def test_rounds_are_those_of_algorithm_1_with_as_many_clients(virtual_workers, workers, name):
    federation = FEDERATIONS[name]
    *trained, server = run(virtual_workers, workers, federation)
    expected = algorithm_1(of_rounds(federation, 3))[-1]
    assert distance(server["weights"], expected) < ROUNDING
    assert all(identical(each["weights"], server["weights"]) for each in trained)
    assert server["report"] == {"lost": [], "rounds": 3}


def test_on_processes_as_on_the_virtual_cluster_bit_for_bit(workers, virtual_workers):
    federation = FEDERATIONS["some"]
    ends = [run(fabric, 2, federation)[-1]["weights"] for fabric in (workers, virtual_workers)]
    assert identical(*ends)


@pytest.mark.parametrize("name", ["all of them", "some"])
def test_it_is_as_many_real_clients_but_for_the_order_of_sums(virtual_workers, name):
    federation = FEDERATIONS[name]
    real = run_real_clients(virtual_workers, of_rounds(federation, 3))[-1]
    assert distance(run(virtual_workers, 2, federation)[-1]["weights"], real["weights"]) < ROUNDING


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_each_sampled_client_is_trained_once_by_one_worker_and_takes_its_own_samples(workers, fraction):
    federation = Federation(SIZES, 0, fraction=fraction, epochs=2, momentum="reset")
    shares, dealt = sharing(federation).shares(workers), federation.partition
    assert shares is not None
    partition = PartitionOfClients(dealt, shares)
    length, own = 2 * partition.steps_per_epoch, 2 * dealt.steps_per_epoch
    for number in range(3):
        went: dict[int, list[int]] = {}
        taken: dict[int, list[int]] = {}
        for worker in range(workers):
            for step in range(number * length, (number + 1) * length):
                found = shares.at(step, worker, dealt.steps_per_epoch)
                if found is not None:
                    went.setdefault(found[0], []).append(found[1])
                    taken.setdefault(found[0], []).extend(partition.indices(step, worker).tolist())
        assert set(went) == set(federation.sampled(number))
        assert all(steps == list(range(number * own, (number + 1) * own)) for steps in went.values())
        start = [sum(SIZES[:k]) for k in range(len(SIZES))]
        for client, places in taken.items():
            each = range(start[client], start[client] + SIZES[client])
            assert sorted(places) == sorted([*each, *each])  # twice: two epochs
    order = [shares.at(0, worker, dealt.steps_per_epoch) for worker in range(workers)]
    assert [found[0] for found in order if found] == federation.sampled(0)[:workers]


def test_a_round_cut_short_counts_for_what_was_trained_of_it(virtual_workers):
    """Of the second turn of two one step of three is trained."""
    federation = Federation((6, 6, 6, 6), 0, momentum="reset")
    *_, server = run(virtual_workers, 2, federation, rounds=2 / 3)
    assert server["report"]["rounds"] == 1
    w = weights_of(federation.initial())
    ends = [local_training(federation, w, k, range(3 if k < 2 else 1))[:2] for k in range(4)]
    assert distance(server["weights"], mean(ends)) < ROUNDING


@pytest.mark.parametrize("name", ["some", "server adam"])
def test_resumed_one_worker_goes_on_bit_for_bit_inside_a_round_too(virtual_workers, name):
    federation = replace(FEDERATIONS[name], looks=True)
    straight, end = run(virtual_workers, 1, federation)
    for at in (1, 5, 13, len(straight["states"]) - 2):
        saved = to_bytes(straight["states"][at - 1])
        resumed = run(virtual_workers, 1, replace(federation, start=straight["trained"][at - 1] + 1, state=saved))
        assert identical(resumed[-1]["weights"], end["weights"]), at


def test_resumed_at_a_rounds_end_two_workers_go_on_bit_for_bit(virtual_workers):
    federation = replace(FEDERATIONS["some"], looks=True)
    straight, _, end = run(virtual_workers, 2, federation)
    length = straight["steps"] // 3
    for at in (length, 2 * length):
        i = straight["trained"].index(at - 1)
        saved = to_bytes(straight["states"][i])
        resumed = run(virtual_workers, 2, replace(federation, start=at, state=saved))
        assert identical(resumed[-1]["weights"], end["weights"])


def test_resumed_inside_a_round_that_a_worker_was_through_with_nobody_waits_for_it(virtual_workers):
    federation = replace(FEDERATIONS["all of them"], looks=True)
    straight, other, _ = run(virtual_workers, 2, federation)
    length, own = straight["steps"] // 3, len(other["trained"]) // 3
    for at in (own, length - 1, length + own):
        i = straight["trained"].index(at - 1)
        again = replace(federation, start=at, state=to_bytes(straight["states"][i]))
        first, second, server = run(virtual_workers, 2, again)
        number = at // length
        assert first["trained"] == [*range(at, 3 * length)]
        assert second["trained"] == [step for step in other["trained"] if step >= (number + 1) * length]
        assert server["report"] == {"lost": [], "rounds": 3 - number}


@pytest.mark.fault
def test_a_worker_that_dies_takes_its_clients_with_it_and_the_others_go_on(workers):
    federation = Federation(SIZES, 0, fraction=0.6, seed=3, momentum="reset")
    length = 2 * federation.round_length  # four clients, two of each worker
    *_, server = run(workers, 2, replace(federation, deaths={1: length + 1}))
    w = weights_of(federation.initial())
    for number in range(3):
        own = range(number * federation.round_length, (number + 1) * federation.round_length)
        chosen = federation.sampled(number)[:: 1 if number == 0 else 2]
        w = mean([local_training(federation, w, client, own)[:2] for client in chosen])
    assert server["report"] == {"lost": [1], "rounds": 3}
    assert distance(server["weights"], w) < ROUNDING


@pytest.mark.parametrize(("workers", "rounds"), [(1, 2), (2, 2), (3, 2), (3, 1.4), (2, 0.2)])
@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_stated_cost_and_buffers_are_what_is_sent_and_held(virtual_workers, workers, rounds, fraction):
    federation = Federation(SIZES, 0, fraction=fraction, model=mlp, momentum="reset")
    *trained, server = run(virtual_workers, workers, federation, rounds)
    parameters, sync = list(mlp().parameters()), sharing(federation)
    shares = sync.shares(workers)
    assert shares is not None
    per_epoch = shares.steps_per_epoch(federation.partition.steps_per_epoch)
    cost = sync.cost(parameters, World(workers, per_epoch, steps=trained[0]["steps"]))
    steps = sum(len(worker["trained"]) for worker in trained)
    assert cost.worker["send"] * steps == pytest.approx(sum(worker["ledger"].get("send", 0) for worker in trained))
    assert cost.server["send"] / workers * steps == pytest.approx(server["ledger"]["send"])
    assert max(worker["buffers"] for worker in trained) == cost.buffers
    if rounds == 2:
        unlimited = sync.cost(parameters, World(workers, per_epoch))
        assert unlimited.worker == pytest.approx(cost.worker) and unlimited.server == pytest.approx(cost.server)
        size = 4 * sum(parameter.numel() for parameter in parameters)
        assert all(worker["ledger"] == {"send": 2 * (size + 2 * HEADER)} for worker in trained)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("", "sync.momentum=kept: with sync.clients=20 a worker keeps no optimizer"),
        ("sync.momentum=reset compress=topk", "sync.clients=20: .*compress=topk"),
        ("sync.momentum=reset aggregate=median", "sync.clients=20: has a worker send what its clients make together,"),
        ("sync.momentum=reset attack=zero", "sync.clients=20: .*attack=zero"),
        ("sync.momentum=reset schedule=cosine", "schedule=cosine: .*with sync.clients=20.*Choose schedule=none"),
        ("sync.momentum=reset sync.fraction=0.1 hardware.workers=3", "sync.clients=20: of them sync.fraction=0.1 is 2"),
        ("sync.momentum=reset data.limit=19", "sync.clients=20: each must have a sample.*19.*at most sync.clients=19"),
        ("sync.momentum=reset sync.clients=0", "sync.clients=0"),
        (
            "sync.momentum=reset partition=by_label partition.labels=99",
            "partition.labels=99: 20 replicas.*sync.clients",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(overrides, words):
    with pytest.raises(ConfigError, match=words) as caught:
        engine.prepare(["sync=fedavg", "sync.clients=20", *overrides.split()]).plan()
    assert caught.value.exit_code == 2


# -- whole runs


def trained(*overrides: str, **how: Any):
    settings = ["tracking=none", "model.hidden=[16]", "checkpoint.every=0", "evaluate.every=1000", "batch_size=8"]
    result = engine.run([*settings, "sync=fedavg", "sync.momentum=reset", *overrides], quiet=True, **how)
    assert result is not None
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


@pytest.mark.parametrize(
    "partition", ["shuffled", *(pytest.param(each, marks=pytest.mark.slow) for each in ("dirichlet", "by_label"))]
)
def test_a_run_is_that_of_as_many_workers(here, partition):
    """In float32, sums of six clients in another order: a few units in the last place of weights about 1."""
    asked = [f"partition={partition}", "hardware=virtual", "data.limit=96", "epochs=2"]
    many, summary = trained(*asked, "sync.clients=6", "hardware.workers=2")
    real, _ = trained(*asked, "hardware.workers=6")
    assert all(float((many[name] - real[name]).abs().max()) < 1e-6 for name in real)
    if partition == "shuffled":
        assert summary["wire"]["bytes_per_step"] == summary["predicted"]["bytes_per_step"]
    assert summary["memory"]["buffers"] == summary["predicted"]["memory"]["buffers"]


@pytest.mark.slow
def test_a_run_is_resumed_bit_for_bit_on_real_processes(here):
    asked = ["sync.clients=6", "hardware.workers=2", "hardware.threads=1", "data.limit=96", "partition=dirichlet"]
    straight, _ = trained(*asked, "epochs=4")
    trained(*asked, "epochs=2", "checkpoint.every=1", name="half")
    rest = engine.run(["epochs=4"], resume="half", quiet=True)
    assert rest is not None
    assert identical(straight, safetensors.torch.load_file(rest.path / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_fashion_mnist
def test_ten_thousand_clients_a_hundred_a_round_take_less_than_two_gibibytes(here):
    """60,000 images, of which each client has a few; all workers are threads of one process."""
    clients = ["sync.clients=10000", "sync.fraction=0.01", "partition=dirichlet", "hardware=virtual"]
    _, summary = trained(*clients, "data=fashion_mnist", "hardware.workers=4", "epochs=5")
    assert summary["status"] == "completed" and summary["epochs"] == 5
    assert summary["memory"]["process_peak"] < 2 * 2**30
