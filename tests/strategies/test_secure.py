"""secure=bonawitz under sync=fedavg: rounds against plain sums of rounded numbers, and clients that are killed."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from faults.lying_clients import ACTS, KEYS, LIAR, OPENED, SHARES, SIGNATURE, UNNAMED, VECTOR, ByzantineWorker
from oracles import Weights, identical, mlp64, samples, weights_of

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine import plan, prepare, run
from paceline.engine.config.experiment import shipped
from paceline.engine.features.pairs import pairs
from paceline.exchange.attack import SignFlip
from paceline.exchange.participation import sampled
from paceline.exchange.privacy import DPFedAvg
from paceline.exchange.secure import Bonawitz, primitives
from paceline.exchange.secure.fixed_point import FixedPoint
from paceline.exchange.secure.protocol import SecureError
from paceline.exchange.server import ServerSGD
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.cost import World
from paceline.strategies.core.errors import MissingToolError
from paceline.strategies.core.setting import Setting
from paceline.strategies.sync.fedavg import FedAvg
from paceline.tasks.partition import OwnedPartition
from paceline.testing.fabrics import FABRICS
from paceline.testing.processes import WorkerError
from paceline.tracking.summaries import row_of

slow = pytest.mark.slow


class Mortal(Bonawitz):
    """Clients that are killed as they would say something in a round. `dies`: client -> (round, the how manieth)."""

    def __init__(self, dies: Mapping[int, tuple[int, int]]) -> None:
        super().__init__(threshold=0.6)
        self.dies, self.said = dies, 0

    def deliver(self, way: torch.Tensor, samples: int, number: int, sampled: int) -> None:
        self.number, self.said = number, 0
        super().deliver(way, samples, number, sampled)

    def _say(self, data: bytes) -> None:
        self.said += 1
        if self.dies.get(self._comm.rank) == (self.number, self.said):
            os.kill(os.getpid(), signal.SIGKILL)
        super()._say(data)


@dataclass(frozen=True)
class Federation:
    sizes: tuple[int, ...] = (4, 6, 3, 5, 4)
    steps: int = 9
    fraction: float = 1.0
    dies: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    momentum: float | None = None  # of the server
    attack: SignFlip | None = None
    begin: int = 0  # the first step, as in a resumed run
    act: str = ""  # of the client that lies

    @property
    def partition(self) -> OwnedPartition:
        bounds = np.cumsum([0, *self.sizes])
        return OwnedPartition([np.arange(a, b) for a, b in pairwise(bounds)], 2, 0)

    def batch(self, step: int, client: int) -> Batch:
        inputs, targets = samples(0, self.partition.samples)
        chosen = self.partition.indices(step, client)
        return Batch(inputs[chosen], targets[chosen], self.partition.total(step))

    def server(self) -> ServerSGD | None:
        return None if self.momentum is None else ServerSGD(momentum=self.momentum)


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def take_part(comm, federation: Federation) -> dict[str, Any]:
    serves = comm.rank == len(federation.sizes)
    torch.manual_seed(0 if serves else comm.rank + 5)
    model, secure = mlp64(), ByzantineWorker(federation.act) if federation.act else Mortal(federation.dies)
    given = {"attack": federation.attack, "server": federation.server(), "secure": secure}
    sync = FedAvg(federation.fraction, **given)
    sync.configure(Setting(steps_per_epoch=federation.partition.steps_per_epoch))
    with comm.ledger.aside():
        sync.prepare(dict(model.named_parameters()), sgd(model.parameters()), comm)
    if serves:
        sync.serve()
        return {"weights": weights_of(model), "report": sync.report(), "ledger": comm.ledger.snapshot()}
    done = federation.begin
    while (step := sync.next_step(done)) < federation.steps:
        batch = federation.batch(step, comm.rank)
        sync.begin(batch)
        if batch.size:
            F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        sync.update()
        done = step + 1
    sent = comm.ledger.snapshot()
    with comm.ledger.aside():
        sync.drain()
        sync.finish()
    return {"weights": weights_of(model), "ledger": sent}


def by_hand(federation: Federation) -> Weights:
    """Plain sums of rounded numbers modulo 2^64, by Python's own integers."""
    torch.manual_seed(0)
    model = mlp64()
    w = torch.cat([each.detach().flatten() for each in model.parameters()])
    v = torch.zeros_like(w)
    length, clients = federation.partition.steps_per_epoch, len(federation.sizes)
    for number in range(-(-federation.steps // length)):
        total, n = [0] * len(w), 0
        for client in sampled(0, number, clients, max(round(federation.fraction * clients), 1)):
            last = federation.dies.get(client, (number, OPENED))
            if number > last[0] or (number == last[0] and last[1] <= VECTOR):
                continue
            torch.nn.utils.vector_to_parameters(w.clone(), model.parameters())
            optimizer = sgd(model.parameters())
            n_k = 0
            for step in range(number * length, min((number + 1) * length, federation.steps)):
                batch = federation.batch(step, client)
                optimizer.zero_grad()
                if batch.size:
                    F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
                    optimizer.step()
                n_k += batch.size
            way = torch.cat([each.detach().flatten() for each in model.parameters()]) - w
            if federation.attack is not None and client in federation.attack.byzantine(clients):
                way = -federation.attack.scale * way
            q = [int(each) for each in (way.clamp(-16, 16) * 2**24).round().tolist()]
            total = [(a + n_k * b) % 2**64 for a, b in zip(total, q, strict=True)]
            n += n_k
        signed = torch.tensor([each - 2**64 if each >= 2**63 else each for each in total], dtype=torch.float64)
        way = signed / (2.0**24 * n)
        v = way if federation.momentum is None else federation.momentum * v + way
        w = w + v
    torch.nn.utils.vector_to_parameters(w, model.parameters())
    return weights_of(model)


def trained(federation: Federation, fabric: str = "virtual") -> list[dict[str, Any]]:
    lost = {"lost": tuple(federation.dies)} if federation.dies else {}
    return FABRICS[fabric](len(federation.sizes) + 1, take_part, federation, **lost)


@pytest.mark.parametrize(
    "federation",
    [
        Federation(),
        Federation(fraction=0.6, steps=12),
        Federation(steps=8, momentum=0.5),
        Federation(attack=SignFlip(scale=3.0)),
    ],
    ids=["all", "three of five", "ends inside a round, and a server's rule", "a liar"],
)
def test_rounds_are_plain_sums_of_rounded_numbers_bit_for_bit(federation: Federation) -> None:
    *clients, server = trained(federation)
    assert identical(server["weights"], by_hand(federation))
    assert all(identical(each["weights"], server["weights"]) for each in clients)
    assert server["report"]["given_up"] == 0


def test_where_nobody_has_samples_in_the_rest_of_a_round_w_stays() -> None:
    """A resumed run begins in a round's last step, in which none of those that are sampled has a sample."""
    there = sampled(0, 0, 5, 3)
    sizes = tuple(2 if client in there else 6 for client in range(5))
    *_, server = trained(Federation(sizes, steps=3, begin=2, fraction=0.6))
    torch.manual_seed(0)
    assert identical(server["weights"], weights_of(mlp64()))
    assert server["report"] == {"lost": [], "rounds": 0, "given_up": 0}


def test_what_is_sent_is_what_is_stated() -> None:
    federation = Federation(steps=9)
    *clients, server = trained(federation)
    length, parameters = federation.partition.steps_per_epoch, list(mlp64().parameters())
    cost = FedAvg(secure=Bonawitz()).cost(parameters, World(5, length, steps=9))
    assert [each["ledger"]["send"] for each in clients] == [pytest.approx(9 * cost.worker["send"])] * 5
    assert server["ledger"]["send"] == pytest.approx(9 * cost.server["send"])


@slow
@pytest.mark.dist
@pytest.mark.fault
@pytest.mark.parametrize(
    ("dies", "given_up"),
    [
        ({}, 0),
        ({4: (1, KEYS)}, 0),
        ({1: (1, SHARES)}, 0),
        ({2: (1, VECTOR)}, 0),
        ({3: (1, SIGNATURE)}, 0),
        ({2: (0, OPENED), 4: (1, VECTOR)}, 0),
        ({1: (0, VECTOR), 2: (1, VECTOR)}, 0),
    ],
    ids=["nobody", "keys", "shares", "before its vector", "after its vector", "two", "one a round"],
)
def test_killed_clients_are_in_the_sum_if_they_had_sent_their_vectors(dies, given_up: int) -> None:
    federation = Federation(dies=dies)
    *_, server = trained(federation, "process")
    assert identical(server["weights"], by_hand(federation))
    assert server["report"] == {"lost": sorted(dies), "rounds": 3, "given_up": given_up}


@slow
@pytest.mark.dist
@pytest.mark.fault
def test_with_too_few_clients_left_for_any_round_the_run_ends() -> None:
    """The dead do not come back: going on would train for nothing."""
    dies = {client: (0, VECTOR) for client in (1, 2, 3)}
    with pytest.raises(WorkerError, match=r"2 of 5 clients are left, and secure=bonawitz needs 3 .* of 5 \(secure"):
        trained(Federation(dies=dies), "process")


@slow
@pytest.mark.dist
@pytest.mark.fault
def test_a_round_that_too_few_came_to_the_end_of_is_given_up_and_w_stays() -> None:
    """Two of three that are sampled die in it, and three are left, of whom a round needs two."""
    die = sorted(sampled(0, 0, 5, 3))[:2]
    *_, server = trained(Federation(fraction=0.6, dies={client: (0, VECTOR) for client in die}, steps=3), "process")
    torch.manual_seed(0)
    assert identical(server["weights"], weights_of(mlp64()))
    assert server["report"] == {"lost": die, "rounds": 0, "given_up": 1}


# -- runs

SHORT = ["tracking=none", "model.hidden=[16]", "data.limit=240", "batch_size=8", "epochs=2", "sync=fedavg"]
VIRTUAL = ["hardware=virtual", "hardware.workers=4", "secure=bonawitz", *SHORT]


def test_a_run_sends_and_holds_what_its_plan_says_and_is_nearly_the_plain_one(tmp_path) -> None:
    planned = plan(VIRTUAL)
    secure = run(VIRTUAL, root=tmp_path / "a", quiet=True)
    plain = run([*VIRTUAL, "secure=none"], root=tmp_path / "b", quiet=True)
    assert secure is not None and plain is not None
    assert secure.summary["wire"]["bytes_per_step"] == planned.bytes_per_step()
    held = planned.peak_memory()
    assert {kind: secure.summary["memory"][kind] for kind in held} == held
    assert secure.summary["loss"] == pytest.approx(plain.summary["loss"], rel=1e-5)
    assert secure.summary["secure"] == "bonawitz"


@pytest.mark.parametrize(
    ("knobs", "least", "most"),
    [([], 0.0, 0.02), (["secure.largest=1e-4"], 0.5, 1.0), (["secure.bits=1"], 1.0, 1.0)],
    ids=["usual", "largest", "bits"],
)
def test_entries_that_are_cut_or_rounded_to_nothing_are_counted_in_the_row(tmp_path, knobs, least, most) -> None:
    result = run([*VIRTUAL, "epochs=1", *knobs], root=tmp_path, quiet=True)
    assert result is not None and least <= row_of(result.summary)["cut_share"] <= most


@slow
@pytest.mark.dist
@pytest.mark.timeout(240)
def test_processes_are_the_virtual_cluster_bit_for_bit_though_masks_are_not(tmp_path) -> None:
    how = ["hardware.workers=4", "hardware.threads=1", "secure=bonawitz", *SHORT]
    found = [run(how, root=tmp_path, name=name, quiet=True) for name in ("one", "other")]
    modelled = run(VIRTUAL, root=tmp_path, name="modelled", quiet=True)
    losses = {result.summary["loss"] for result in (*found, modelled) if result is not None}
    assert len(losses) == 1


def test_a_client_with_more_samples_than_fit_refuses_before_it_sends_anything() -> None:
    with pytest.raises(
        SecureError, match="round 2, client 1: 1,000 samples make sums of 5 clients larger than 63 bits"
    ):
        rule = Bonawitz(bits=48, largest=16.0)
        cast(Any, rule)._comm = type("Comm", (), {"rank": 1, "size": 6})()
        rule.deliver(torch.zeros(3), 1000, 2, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        ["partition=dirichlet", "server=momentum", "client=fedprox"],
        pytest.param(["sync.fraction=0.75", "privacy.noise=2"], marks=slow),
    ],
    ids=" ".join,
)
def test_under_secure_sums_clients_are_hidden_as_by_a_server_that_sees_them(tmp_path, how: list[str]) -> None:
    """The same clipping and noise, but for rounding; clients count alike, however many samples they have."""
    how = [*VIRTUAL, "privacy=dp_fedavg", "privacy.clip=0.05", "privacy.noise=0.1", *how]
    one, other, plain = (
        run([*how, *more], root=tmp_path / str(i), quiet=True)
        for i, more in enumerate(([], ["secure=none"], ["privacy.noise=0"]))
    )
    assert one is not None and other is not None and plain is not None
    assert one.summary["loss"] == pytest.approx(other.summary["loss"], rel=1e-5) != plain.summary["loss"]
    assert one.summary["epsilon"] == other.summary["epsilon"]


def test_a_clipped_way_is_no_longer_than_c_once_it_is_rounded() -> None:
    rule, fixed = DPFedAvg(clip=0.01), FixedPoint(bits=16)
    for seed in range(20):
        way = torch.randn(1000, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        clipped = rule.clipped(way, 0, 0, fixed.rounding(1000))
        rounded = fixed.decode(fixed.encode(clipped, 1), 1)
        assert 0.9 * 0.01 < float(rounded.norm()) <= 0.01


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["aggregate=median"],
            "secure=bonawitz: masks each change, so that the server learns the sum alone, and aggregate=median",
        ),
        (["attack=alie"], "secure=bonawitz: masks each change, so that the server learns the sum"),
        (["compress=topk"], "secure=bonawitz: adds masked numbers up as they are, and"),
        (["privacy=dp_fedavg", "secure.bits=2"], "privacy.clip=1: changes are rounded to secure.bits behind the point"),
        (["sync=bsp"], "secure=bonawitz: sync=bsp takes no secure. Choose sync=fedavg"),
        (["hardware.workers=2"], "secure=bonawitz: a round has 2 clients, and of the sum of two each knows"),
        (["sync.fraction=0.5"], "a round has 2 clients"),
        (["secure.threshold=0.5"], "secure.threshold=0.5: must be"),
        (["secure.bits=48", "secure.largest=1e6"], "one number takes more than 63 bits"),
    ],
)
def test_what_it_cannot_go_with_is_refused_by_name(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare([*VIRTUAL, *overrides]).plan()
    assert says in str(caught.value) and caught.value.exit_code == 2


def test_where_cryptography_is_missing_it_is_said_with_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(primitives, "IS_THERE", False)
    with pytest.raises(MissingToolError, match=r"pip install 'paceline\[privacy\]'") as caught:
        prepare(VIRTUAL).plan()
    assert caught.value.exit_code == 3


def test_what_goes_with_what_is_known_where_cryptography_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(primitives, "IS_THERE", False)
    (pair,) = pairs([shipped("strategy", "data_parallel")], [shipped("sync", "fedavg")])
    assert pair.takes["secure"] == ["bonawitz"]


FAST_ACTS = ("a share spoilt", "a share spoilt and signed", "a false accusation", "shares cut short")


@pytest.mark.parametrize("act", [pytest.param(act, marks=[] if act in FAST_ACTS else [slow]) for act in ACTS])
def test_a_client_that_breaks_the_rules_ends_the_run_at_once_and_is_named(act: str) -> None:
    with pytest.raises(RuntimeError, match=f"(client|worker) {LIAR}.*{ACTS[act][1]}") as ended:
        trained(Federation(act=act))
    assert ended.value.exit_code == 4  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("act", [pytest.param(act, marks=slow if "zeros" in act else []) for act in UNNAMED])
def test_a_vector_that_is_not_masked_for_its_round_ends_the_run(act: str) -> None:
    with pytest.raises(RuntimeError, match=f"round 1: .*{UNNAMED[act][1]}") as ended:
        trained(Federation(act=act))
    assert ended.value.exit_code == 4  # pyright: ignore[reportAttributeAccessIssue]


def test_a_client_whose_public_key_is_none_is_named() -> None:
    class Told:
        rank, size = 0, 3

        def all_gather(self, own: torch.Tensor) -> torch.Tensor:
            return torch.cat([own, own + 1000, own])

    with pytest.raises(SecureError, match="client 1 told a public key that is none"):
        Bonawitz().begin(cast(Any, Told()))
