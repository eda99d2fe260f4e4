"""Batch norm over the batches of all replicas (strategy.batch_norm=all): against plain torch, in bytes, and what is
refused.
"""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import whole_runs
from choices import SYNCS
from declared import unmet_terms
from oracles import CLASSES, FEATURES, Case, Plan, distance, identical, momentum, serial_with_buffers, train, workers_of
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.exchange.collectives import Fabric
from paceline.exchange.collectives.ring import Ring
from paceline.strategies.core.cost import World
from paceline.strategies.core.setting import Setting
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.domain import DomainParallel, group_of
from paceline.strategies.domains.cut import cut
from paceline.strategies.domains.replicas import across_of
from paceline.strategies.sync.bsp import BSP
from paceline.tasks.base import DataSpec
from paceline.tasks.models.resnet import ResNet

pytestmark = pytest.mark.dist

DEGREE, IMAGE, MAPS = 2, (4, 9, 7), 4


# -- the layer


def norms(sizes: list[int]) -> list[nn.Module]:
    """Where a replica has no samples, with weights to ask for the gradients of: a model has some."""
    torch.manual_seed(0)
    layers = [nn.BatchNorm2d(MAPS), nn.BatchNorm2d(MAPS, momentum=0.3, eps=0.1)]
    layers += [nn.BatchNorm2d(MAPS, affine=False)] * all(sizes)
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
    return [layer.double() for layer in layers]


def batch_of(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """X of all replicas, far from zero, and the gradient of what becomes of it."""
    generator = torch.Generator().manual_seed(sum(sizes))
    x = 3 + 2 * torch.randn(sum(sizes), *IMAGE, dtype=torch.float64, generator=generator)
    return x, torch.randn(x.shape, dtype=torch.float64, generator=generator)


def normalised(comm: Comm, layers: list[nn.Module], sizes: list[int]) -> list[dict[str, Any]]:
    """On the slab of this worker's replica: what comes out, and the gradients that the sync mode would weigh."""
    replica, place = divmod(comm.rank, DEGREE)
    of_replica, across = comm.split(replica), comm.split(place, "replica")
    assert of_replica is not None and across is not None
    found = []
    for layer in copy.deepcopy(layers):
        x, dy = (each.split(sizes)[replica] for each in batch_of(sizes))
        its = cut(nn.Sequential(layer), IMAGE, DEGREE, Fabric(), of_all_replicas=True)
        part = its.parts[place]
        group_of(part).comm = of_replica
        joined = across_of(part)
        assert joined is not None
        joined.join(across)
        first, end = its.deal[place : place + 2]
        share, result = sizes[replica] / sum(sizes), dict[str, Any]()
        if share:
            slab = x[:, :, first:end].contiguous().requires_grad_()
            y = part(slab)
            y.backward(dy[:, :, first:end] / share)  # of the mean over a replica's samples, not over all
            assert slab.grad is not None
            gradients = {name: parameter.grad for name, parameter in part.named_parameters()}
            result = {"y": y.detach(), "dx": slab.grad * share, "gradients": gradients}
        else:
            joined.stand_in(part, x.new_zeros(1, *IMAGE)[:, :, first:end].requires_grad_())
            assert all(parameter.grad is None for parameter in part.parameters())
        found.append(result | {"share": share, "buffers": {name: each.clone() for name, each in part.named_buffers()}})
    return found


def check_joined(results: list[list[dict[str, Any]]], sizes: list[int]) -> None:
    """The workers together are the layer in plain torch, on the samples of all."""
    for i, layer in enumerate(norms(sizes)):
        x, dy = batch_of(sizes)
        x.requires_grad_()
        y = layer(x)
        y.backward(dy)
        each = [result[i] for result in results]
        for name, wanted in (("y", y.detach()), ("dx", x.grad)):
            rows = [torch.cat([its[name] for its in each[r : r + DEGREE]], dim=2) for r in filled(sizes)]
            close(torch.cat(rows), wanted)
        for name, parameter in layer.named_parameters():
            close(sum(each[r]["share"] * each[r]["gradients"][f"0.{name}"] for r in filled(sizes)), parameter.grad)
        for its in each:
            for name, buffer in layer.named_buffers():
                close(its["buffers"][f"0.{name}"], buffer)
            assert identical(its["buffers"], each[0]["buffers"])


def filled(sizes: list[int]) -> list[int]:
    """The first worker of each replica that has samples."""
    return [replica * DEGREE for replica, size in enumerate(sizes) if size]


def close(ours: Any, wanted: Tensor | None) -> None:
    assert wanted is not None and ours.shape == wanted.shape
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)


def test_forward_gradients_and_running_statistics_are_those_of_all_samples(fabric) -> None:
    sizes = [3, 2]
    check_joined(fabric(4, normalised, norms(sizes), sizes), sizes)


@pytest.mark.parametrize("sizes", [[1, 5], [2, 0], [0, 2], [4, 1, 0, 2]], ids=str)
def test_a_replica_counts_by_its_samples_and_one_without_any_takes_part(virtual_workers, sizes) -> None:
    check_joined(virtual_workers(DEGREE * len(sizes), normalised, norms(sizes), sizes), sizes)


# -- models


def resnet() -> nn.Module:
    return ResNet(DataSpec((2, 13, 9), torch.float32, (), CLASSES), depth=8, width=4).double()


class Behind(nn.Module):
    """Its first layer by name is the last one that is used."""

    def __init__(self) -> None:
        super().__init__()
        self.after = nn.BatchNorm1d(MAPS * 4)
        self.conv = nn.Conv2d(1, MAPS, 3, padding=1)
        self.norm = nn.BatchNorm2d(MAPS)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.output = nn.Linear(MAPS * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.after(self.pool(F.relu(self.norm(self.conv(x))))))


def behind() -> nn.Module:
    return Behind().double()


MODELS = {resnet: (2, 13, 9), behind: (1, 10, 6)}
UNEVEN = [[3, 2], [1, 4], [2, 0], [2, 2]]


def over_all(model, degree: int = DEGREE, **knobs: Any) -> DomainParallel:
    return DomainParallel(degree, list(MODELS[model]), batch_norm="all", **knobs)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.slow
def test_replicas_of_slabs_train_as_one_worker_with_the_batches_of_all(fabric, model) -> None:
    case = Case(UNEVEN, model, momentum, shape=MODELS[model])
    results = fabric(4, train, Plan(over_all(model), BSP(), case))
    whole = results[0]["whole"]
    assert distance(dict(whole), serial_with_buffers(case, whole)) < 1e-12
    assert all(identical(result["weights"], results[0]["weights"]) for result in results)


@pytest.mark.slow
def test_over_a_replicas_own_batch_they_do_not(virtual_workers) -> None:
    case = Case(UNEVEN, resnet, momentum, shape=MODELS[resnet])
    own = DomainParallel(DEGREE, list(MODELS[resnet]))
    whole = virtual_workers(4, train, Plan(own, BSP(), case))[0]["whole"]
    assert distance(dict(whole), serial_with_buffers(case, whole)) > 1e-3


def features() -> nn.Module:
    layers = (nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("model", [features, resnet, behind])
def test_replicas_of_one_worker_do_too(fabric, model) -> None:
    sizes = [[3, 2, 1], [1, 4, 0], [2, 0, 0], [1, 1, 3]]
    case = Case(sizes, model, momentum, shape=MODELS.get(model, (FEATURES,)))
    results = fabric(3, train, Plan(DataParallel(batch_norm="all"), BSP(), case))
    whole = results[0]["whole"]
    assert distance(dict(whole), serial_with_buffers(case, whole)) < 1e-12
    assert all(identical(result["weights"], results[0]["weights"]) for result in results)


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.slow
def test_more_replicas_and_sums_of_messages_are_as_good(virtual_workers, degree: int) -> None:
    case = Case([[1, 2, 1], [2, 0, 0], [1, 1, 1]], resnet, momentum, shape=MODELS[resnet])
    results = virtual_workers(3 * degree, train, Plan(over_all(resnet, degree, collective=Ring()), BSP(), case))
    whole = results[0]["whole"]
    assert distance(dict(whole), serial_with_buffers(case, whole)) < 1e-12
    assert all(identical(result["weights"], results[0]["weights"]) for result in results)


@pytest.mark.slow
def test_one_replica_has_the_bits_of_its_own_statistics(virtual_workers) -> None:
    case = Case([[3], [4]], resnet, momentum, shape=MODELS[resnet])
    own = DomainParallel(DEGREE, list(MODELS[resnet]))
    [one, *_], [other, *_] = (virtual_workers(2, train, Plan(its, BSP(), case)) for its in (own, over_all(resnet)))
    assert identical(one["whole"], other["whole"])
    assert one["ledger"] == other["ledger"] and not other["across"]


# -- bytes


def stated(model, replicas: int, samples: int = 2, collective: Any = None) -> dict[str, list[dict[str, float]]]:
    strategy = over_all(model, collective=collective)
    strategy.configure(Setting(worlds=[World(replicas)] * DEGREE))
    with torch.device("meta"):
        parts = strategy.split(model())
        inputs = torch.empty(samples, *MODELS[model], dtype=torch.float64)
        return {axis: [dict(each) for each in its] for axis, its in strategy.cost_along(parts, inputs).items()}


@pytest.mark.parametrize("replicas", [2, 3])
def test_what_replicas_are_sent_follows_from_the_channels_and_is_in_the_ledger(virtual_workers, replicas: int) -> None:
    case = Case([[2] * replicas] * 3, behind, momentum, shape=MODELS[behind])
    results = virtual_workers(DEGREE * replicas, train, Plan(over_all(behind), BSP(), case))
    found = stated(behind, replicas)
    channels, numbers = [MAPS, 4 * MAPS], 8  # bytes of a number
    wanted = {
        "all_gather": sum((replicas - 1) * (2 * c + 1) for c in channels) * numbers,
        "all_reduce": sum(2 * (replicas - 1) / replicas * 2 * c for c in channels) * numbers,
    }
    assert found["replica"] == [pytest.approx(wanted)] * DEGREE
    for rank, result in enumerate(results):
        assert result["across"] == {name: pytest.approx(3 * each, abs=1) for name, each in wanted.items()}
        within = found["domain"][rank % DEGREE]
        gathered = within["all_gather"] + wanted["all_gather"]
        assert result["ledger"]["all_gather"] == 3 * gathered


def test_a_replica_without_others_sends_them_nothing() -> None:
    assert stated(behind, 1)["replica"] == [{}] * DEGREE


def test_a_plan_of_data_parallel_states_what_its_replicas_send_one_another(here) -> None:
    overrides = ("tracking=none", *RESNET, "strategy.batch_norm=all", "steps=2", "hardware=virtual")
    _, summary = whole_runs.trained(*overrides, "hardware.workers=2", "checkpoint.every=0")
    plan = prepare([*overrides, "hardware.workers=2"]).plan()
    assert summary["wire"]["bytes_per_step"] == pytest.approx(plan.bytes_per_step())
    assert plan.parts[0].along == {"replica": 4 * sum(4 * c + 1 for c in [4] * 3 + [8] * 2 + [16] * 2)}
    assert summary["wire"]["by_axis"] == {"replica": pytest.approx(plan.bytes_per_step())}


# -- sync modes


@pytest.mark.parametrize("sync", SYNCS)
def test_it_takes_the_modes_in_which_replicas_take_every_step_together(virtual_workers, sync: str) -> None:
    """And ends, where not all replicas have samples in a step; a virtual cluster names a deadlock."""
    mode, strategy = copy.deepcopy(SYNCS[sync]), over_all(behind)
    if not mode.traits.synchronous or mode.traits.survives:
        for chosen in (strategy, DataParallel("all")):
            waits = [need for need in chosen.needs if need.key == "strategy.batch_norm=all"]
            assert {need.term for need in waits} & {*mode.lacks} & unmet_terms(mode, chosen)
    elif mode.traits.entrywise:
        assert not unmet_terms(mode, strategy)
        case = Case(UNEVEN, behind, momentum, shape=MODELS[behind])
        plan = Plan(strategy, mode, case)
        results = virtual_workers(workers_of(plan), train, plan)
        whole = results[0]["whole"]
        if mode.traits.weights_agree and mode.traits.exact:
            assert distance(dict(whole), serial_with_buffers(case, whole)) < 1e-12
        assert all(bool(tensor.isfinite().all()) for tensor in whole.values())


# -- whole runs

RESNET = ("model=resnet", "model.depth=8", "model.width=4", "data.limit=33", "batch_size=8", "steps=3")
FOUR = (*RESNET, "strategy.batch_norm=all", "hardware.workers=4", "checkpoint.every=0")  # 33: at last one has none


def trained(*overrides: str, **how: str) -> tuple[dict[str, Tensor], dict]:
    given = overrides if "resume" in how else ("tracking=none", "strategy=domain", *overrides)
    return whole_runs.trained(*given, **how)


@pytest.mark.slow
def test_a_run_has_the_bits_and_bytes_of_the_virtual_cluster_and_its_plan(here) -> None:
    overrides = (*FOUR, "steps=2")  # whole batches, of which the bytes are stated
    real, told = trained(*overrides, "hardware.threads=1")
    modelled, of_model = trained(*overrides, "hardware=virtual")
    assert distance(real, modelled) < 1e-5
    plan = prepare(["tracking=none", "strategy=domain", *overrides]).plan()
    along = {axis: sum(part.along[axis] for part in plan.parts) / 2 for axis in ("domain", "replica")}
    assert along["replica"] > 0
    [sync] = {sum(part.worker.values()) - sum(part.within.values()) for part in plan.parts if part.worker}
    for summary in (told, of_model):
        wire = summary["wire"]
        assert wire["bytes_per_step"] == pytest.approx(plan.bytes_per_step())
        assert wire["by_axis"] == {
            "domain": pytest.approx(along["domain"]),
            "replica": pytest.approx(along["replica"] + sync),
        }
    kinds = ("parameters", "gradients", "optimizer", "activations", "buffers")
    assert [told["memory"][kind] for kind in kinds] == [told["predicted"]["memory"][kind] for kind in kinds]


@pytest.mark.slow
def test_a_run_on_four_workers_is_one_on_one_worker_with_all_samples(here) -> None:
    """Also where not all replicas have samples."""
    joined, _ = trained(*FOUR, "hardware=virtual")
    alone, _ = trained(*RESNET, "batch_size=16", "strategy=single", "hardware.workers=1")
    assert distance(joined, alone) < 1e-4


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_went_through(here) -> None:
    overrides = (*FOUR, "hardware.threads=1")
    whole, _ = trained(*overrides, "steps=8")
    trained(*overrides, "steps=4", "checkpoint.every_steps=4", name="half")
    assert identical(trained("steps=8", resume="half")[0], whole)


# -- what is refused


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.flatten = nn.Conv2d(1, MAPS, 3, padding=1), nn.BatchNorm2d(MAPS), nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        y = self.flatten(self.norm(self.conv(x)))
        return F.batch_norm(y, None, None, training=True)


def test_what_else_normalises_over_a_batch_is_refused_by_name() -> None:
    inputs, targets = torch.empty(2, 1, 8, 8, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta")
    DomainParallel(2).resolved(Own().to("meta"), inputs, targets, F.cross_entropy)
    with pytest.raises(ConfigError, match=r"batch_norm=all: .* calls batch_norm, .*choose strategy.batch_norm=replica"):
        DomainParallel(2, batch_norm="all").resolved(Own().to("meta"), inputs, targets, F.cross_entropy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("model=cnn",), "CNN has no batch norm, .*. Choose strategy.batch_norm=replica"),
        (("model=resnet", "strategy.batch_norm=image"), "strategy.batch_norm.*image.*replica.*all"),
        (
            ("model=resnet", "sync=asp"),
            "strategy.batch_norm=all: waits for all .* sync=asp lets replicas step at their own pace",
        ),
        (
            ("model=resnet", "sync=noloco"),
            "strategy.batch_norm=all: waits for all .* sync=noloco goes on without replicas that have",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(overrides, says) -> None:
    asked = ["tracking=none", "strategy=domain", "strategy.batch_norm=all", *overrides]
    with pytest.raises(ValueError, match=says) as refused:
        prepare(asked).plan()
    assert getattr(refused.value, "exit_code", None) == 2
