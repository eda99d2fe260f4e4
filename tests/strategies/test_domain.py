"""Images cut by rows: layer by layer and model by model against plain torch, in bytes, and what is refused."""

import copy
import random
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import whole_runs
from oracles import CLASSES, Case, Plan, distance, identical, momentum, serial, serial_with_buffers, train
from torch import Tensor, nn

from paceline.batches import always_infer
from paceline.comm import Comm
from paceline.compat.dispatch import TorchDispatchMode
from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.fabrics.compute import count_flops
from paceline.exchange.collectives import Fabric
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.domain import DomainParallel, group_of
from paceline.strategies.domains.cut import cut, is_known
from paceline.strategies.domains.group import SlabGroup
from paceline.strategies.domains.norms import statistics
from paceline.strategies.domains.replicas import batch_norms
from paceline.strategies.domains.rows import TooThinError, Transposed, Window, even, follow, halos
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.tasks.base import DataSpec
from paceline.tasks.models.alexnet import AlexNet
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.resnet import Padded, ResNet
from paceline.tasks.models.unet import UNet

pytestmark = pytest.mark.dist

SAMPLES, MAPS, WIDTH = 3, 4, 9


# -- rows


def test_an_output_row_is_on_the_worker_that_has_the_middle_of_what_it_reads() -> None:
    assert even(7, 3) == (0, 2, 4, 7)
    assert follow(Window(3, 1, 1), (0, 2, 4, 7), 7) == (0, 2, 4, 7)
    assert follow(Window(1, 2), (0, 3, 7), 4) == (0, 2, 4)  # rows 0 2 | 4 6
    assert follow(Window(5), (0, 4, 8), 4) == (0, 2, 4)  # middles 2 3 | 4 5
    assert follow(Transposed(2, 2), (0, 2, 3), 6) == (0, 4, 6)


def test_a_kernel_of_k_rows_needs_half_of_k_of_each_neighbour() -> None:
    for kernel in (1, 3, 5, 7):
        rule = Window(kernel, 1, kernel // 2)
        for halo in halos(rule, (0, 5, 10, 15), (0, 5, 10, 15)):
            needs = [end - first for first, end in (halo.above, halo.below)]
            assert needs == [kernel // 2 * (halo.have[0] > 0), kernel // 2 * (halo.have[1] < 15)]


def test_rows_of_no_neighbour_and_no_rows_at_all_are_too_thin() -> None:
    with pytest.raises(TooThinError, match=r"worker 0, .* rows 0 to 3, more than a neighbour has"):
        halos(Window(7, 1, 3), (0, 1, 2, 9), (0, 1, 2, 9))
    with pytest.raises(TooThinError, match="worker 1 would have none of its 2 output rows"):
        halos(Window(2, 2), (0, 2, 3, 4), (0, 1, 1, 2))


# -- layers


def on_slabs(comm: Comm, layers: list[tuple[nn.Module, int]]) -> list[dict[str, Any]]:
    """Each layer by itself, on this worker's slab of an image of so many rows: its outputs and gradients."""
    found = []
    for layer, height in copy.deepcopy(layers):  # processes are given the same memory, and running statistics are kept
        x, dy = inputs_of(layer, height)
        its = cut(nn.Sequential(layer), (MAPS, height, WIDTH), comm.size, Fabric())
        part = its.parts[comm.rank]
        group_of(part).comm = comm
        first, end = its.deal[comm.rank : comm.rank + 2]
        slab = x[:, :, first:end].contiguous().requires_grad_()
        torch.manual_seed(7)
        y = part(slab)
        y.backward(dy[:, :, its.outs[comm.rank] : its.outs[comm.rank + 1]])
        assert slab.grad is not None
        gradients = {name: parameter.grad for name, parameter in part.named_parameters()}
        buffers = {name: buffer.clone() for name, buffer in part.named_buffers()}
        found.append({"y": y.detach(), "dx": slab.grad, "gradients": gradients, "buffers": buffers})
    return found


def inputs_of(layer: nn.Module, height: int) -> tuple[Tensor, Tensor]:
    """X, and the gradient of what the layer makes of it."""
    generator = torch.Generator().manual_seed(height)
    x = torch.randn(SAMPLES, MAPS, height, WIDTH, dtype=torch.float64, generator=generator)
    rows = layer(x).detach() if not isinstance(layer, nn.BatchNorm2d) else x
    return x, torch.randn(rows.shape, dtype=torch.float64, generator=generator)


def check_whole(layers: list[tuple[nn.Module, int]], results: list[list[dict[str, Any]]]) -> None:
    """The workers' rows together are those of the layer in plain torch, and their gradients its."""
    for i, (layer, height) in enumerate(layers):
        x, dy = inputs_of(layer, height)
        x.requires_grad_()
        torch.manual_seed(7)
        layer.zero_grad()
        y = layer(x)
        y.backward(dy)
        close(torch.cat([result[i]["y"] for result in results], dim=2), y.detach(), layer)
        close(torch.cat([result[i]["dx"] for result in results], dim=2), x.grad, layer)
        for result in results:
            for name, parameter in layer.named_parameters():
                close(result[i]["gradients"][f"0.{name}"], parameter.grad, layer)
            for name, buffer in layer.named_buffers():
                close(result[i]["buffers"][f"0.{name}"], buffer, layer)
            assert identical(result[i]["gradients"], results[0][i]["gradients"])


def close(ours: Tensor, wanted: Tensor | None, layer: nn.Module) -> None:
    assert wanted is not None and ours.shape == wanted.shape, layer
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12, msg=lambda text: f"{layer}: {text}")


def some_layers() -> list[tuple[nn.Module, int]]:
    torch.manual_seed(0)
    strided = Padded(2, 2)
    layers = [
        (nn.Conv2d(MAPS, 5, 3, padding=1), 7),
        (nn.Conv2d(MAPS, 5, (5, 3), stride=(2, 1), padding=(2, 0), bias=False), 11),
        (nn.Conv2d(MAPS, 6, 3, dilation=2, padding="same", groups=2), 13),
        (nn.Conv2d(MAPS, 5, 1, stride=3), 10),
        (nn.MaxPool2d(3, 2, padding=1), 11),
        (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), 9),
        (nn.AvgPool2d(3, 1, padding=1), 9),
        (nn.AvgPool2d(2, divisor_override=3), 10),
        (nn.BatchNorm2d(MAPS), 9),
        (nn.BatchNorm2d(MAPS, momentum=0.3, affine=False), 10),
        (nn.GroupNorm(2, MAPS), 9),
        (nn.Upsample(scale_factor=3), 7),
        (nn.Upsample(size=(14, 2 * WIDTH)), 7),
        (nn.ConvTranspose2d(MAPS, 5, 2, stride=2), 7),
        (nn.ConvTranspose2d(MAPS, 6, 4, stride=3, padding=1, output_padding=1, groups=2, bias=False), 9),
        (nn.ConvTranspose2d(MAPS, 5, 3, dilation=2, padding=1), 9),
        (nn.Dropout(0.4), 9),
        (nn.Sequential(nn.Dropout2d(0.4), nn.Conv2d(MAPS, 2, 1)), 9),
        (strided, 9),
    ]
    return [(layer.double(), height) for layer, height in layers]


def test_each_kind_of_layer_on_slabs_is_the_layer(fabric) -> None:
    check_whole(some_layers(), fabric(2, on_slabs, some_layers()))


@pytest.mark.budget(3)
@pytest.mark.parametrize("seed", range(3))
def test_windows_of_any_geometry_on_slabs_are_those_of_the_whole(virtual_workers, seed: int) -> None:
    draw, layers, degree = random.Random(seed), list[tuple[nn.Module, int]](), 2 + seed % 2
    torch.manual_seed(seed)
    while len(layers) < 40:
        kernel, stride, dilation, height = (draw.randint(*ends) for ends in ((1, 7), (1, 3), (1, 2), (5, 30)))
        padding = draw.randint(0, kernel // 2)
        if height + 2 * padding < dilation * (kernel - 1) + 1 or WIDTH + 2 * padding < dilation * (kernel - 1) + 1:
            continue
        kind = draw.choice(["conv", "max", "average"])
        if kind == "conv":
            layer: nn.Module = nn.Conv2d(MAPS, 3, kernel, stride, padding, dilation)
        elif kind == "max":
            layer = nn.MaxPool2d(kernel, stride, padding, dilation)
        elif WIDTH + 2 * padding < kernel:
            continue
        else:
            layer = nn.AvgPool2d(kernel, stride, padding, count_include_pad=draw.random() < 0.5)
        try:
            cut(nn.Sequential(layer), (MAPS, height, WIDTH), degree, Fabric())
        except ConfigError:
            continue
        layers.append((layer.double(), height))
    check_whole(layers, virtual_workers(degree, on_slabs, layers))


@pytest.mark.parametrize("groups", [None, 2])
def test_statistics_take_as_many_operations_for_any_number_of_slabs(groups: int | None) -> None:
    """A plan takes a pass for each slab: with an operation for each slab in it, 64 of them would take a minute."""

    class Operations(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    counts: list[int] = []
    for degree in (2, 64):
        x = torch.randn(2, 4, 3, 5, device="meta")
        with Operations() as operations:
            statistics(x, groups, tuple(range(0, 3 * degree + 1, 3)), SlabGroup(0, degree, Fabric()))
        counts.append(operations.count)
    assert counts[0] == counts[1] > 0


def test_slabs_do_not_repeat_the_pattern_of_dropout(virtual_workers) -> None:
    """That they are the whole image's is held above."""
    one, other = virtual_workers(2, on_slabs, [(nn.Dropout(0.5), 8)])
    assert not torch.equal(one[0]["y"] == 0, other[0]["y"] == 0)


# -- bytes


def stated(model: nn.Module, image: tuple[int, ...], degree: int) -> list[dict[str, float]]:
    strategy = DomainParallel(degree, list(image))
    with torch.device("meta"):
        parts = strategy.split(model.to("meta"))
        return [dict(each) for each in strategy.cost(parts, torch.empty(SAMPLES, *image, dtype=torch.float64))]


@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
def test_a_halo_is_of_the_papers_size(virtual_workers, kernel: int) -> None:
    def pair() -> nn.Sequential:
        """The second one has a gradient to send back."""
        convs = [nn.Conv2d(MAPS, MAPS, kernel, padding=kernel // 2, bias=False) for _ in range(2)]
        return nn.Sequential(*convs, nn.Flatten(), nn.Linear(MAPS * 15 * WIDTH, CLASSES)).double()

    # B X_W X_C floor(k / 2) a neighbour, forward through both layers, back through one
    halo = 3 * SAMPLES * WIDTH * MAPS * (kernel // 2) * 8
    sent = stated(pair(), (MAPS, 15, WIDTH), 3)
    assert [each.get("send", 0) for each in sent] == [halo, 2 * halo, halo]
    weights = 2 * MAPS * MAPS * kernel * kernel * 8
    assert sent[1]["all_reduce"] == pytest.approx(2 * 2 / 3 * weights)
    assert sent[1]["all_gather"] == 2 * SAMPLES * MAPS * 5 * WIDTH * 8
    case = Case([[SAMPLES]], pair, momentum, shape=(MAPS, 15, WIDTH))
    results = virtual_workers(3, train, Plan(DomainParallel(3, [MAPS, 15, WIDTH]), BSP(), case))
    assert [result["ledger"] for result in results] == [
        {primitive: pytest.approx(nbytes, abs=1) for primitive, nbytes in each.items()} for each in sent
    ]


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_kernels_of_one_pixel_send_nothing(stride: int) -> None:
    model = nn.Sequential(nn.Conv2d(MAPS, 5, 1, stride), nn.Conv2d(5, 5, 1), nn.Flatten(), nn.LazyLinear(2)).double()
    model(torch.empty(1, MAPS, 11, WIDTH, dtype=torch.float64))
    assert all("send" not in each for each in stated(model, (MAPS, 11, WIDTH), 3))


# -- models


def images(*image: int) -> DataSpec:
    return DataSpec(image, torch.float32, (), CLASSES)


def cnn() -> nn.Module:
    return CNN(images(1, 18, 14), hidden=(8, 6)).double()


def resnet() -> nn.Module:
    return ResNet(images(2, 13, 9), depth=8, width=4).double()


def resnet_18() -> nn.Module:
    return ResNet(images(2, 19, 9), depth=18, width=4, norm="group", groups=2).double()


def alexnet() -> nn.Module:
    return AlexNet(images(1, 30, 30), channels=(3, 4, 4, 4, 3), hidden=(6, 6), dropout=0.0).double()


def unet() -> nn.Module:
    """A label for each sample: the mean over its pixels, which is taken of the whole."""
    net = UNet(DataSpec((1, 20, 12), torch.float32, (20, 12), CLASSES), width=4)
    inner = {"net": net.get_submodule("net"), "output": net.get_submodule("output")}
    return nn.Sequential(OrderedDict(**inner, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())).double()


MODELS = {
    cnn: (1, 18, 14),
    resnet: (2, 13, 9),
    resnet_18: (2, 19, 9),
    alexnet: (1, 30, 30),
    unet: (1, 20, 12),
}


@pytest.mark.budget(2)
@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_a_replica_trains_as_one_worker(virtual_workers, model, degree: int) -> None:
    if model is resnet_18 and degree == 3:
        degree = 2  # its last maps have three rows, of which one reads all
    case = Case([[5], [3], [2]], model, momentum, shape=MODELS[model])
    results = virtual_workers(degree, train, Plan(DomainParallel(degree, list(MODELS[model])), BSP(), case))
    assert distance(results[0]["whole"] | {}, serial_with_buffers(case, results[0]["whole"])) < 1e-10
    assert all(result["whole"] is None for result in results[1:])
    assert all(identical(result["weights"], results[0]["weights"]) for result in results)
    assert None not in results[0]["losses"] and set(results[1]["losses"]) == {None}


def test_replicas_of_two_train_as_one_worker_with_all_samples_on_both_fabrics(fabric) -> None:
    case = Case([[3, 2], [1, 4], [2, 0]], alexnet, momentum, shape=MODELS[alexnet])
    results = fabric(4, train, Plan(DomainParallel(2, list(MODELS[alexnet])), BSP(), case))
    assert distance(results[0]["whole"], serial(case)) < 1e-12
    assert all(identical(result["weights"], results[0]["weights"]) for result in results)


def test_other_sync_modes_agree_over_replicas_of_slabs(virtual_workers) -> None:
    case = Case([[3, 2]] * 5, alexnet, momentum, shape=MODELS[alexnet])
    results = virtual_workers(4, train, Plan(DomainParallel(2, list(MODELS[alexnet])), LocalSGD(2), case))
    [plain, _] = virtual_workers(2, train, Plan(DataParallel(), LocalSGD(2), case))
    assert distance(results[0]["whole"], plain["whole"]) < 1e-12


# -- what is refused


class Functional(nn.Module):
    """A convolution, and then what `name` says."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.conv, self.name, self.scale = nn.Conv2d(1, 2, 3, padding=1), name, nn.Parameter(torch.ones(2, 1, 1))
        self.register_buffer("ramp", torch.arange(8.0).view(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        made: dict[str, Any] = {
            "residual": lambda: F.relu(y + x) * 2.0,
            "join": lambda: torch.cat([y, x], dim=1),
            "flatten": lambda: torch.flatten(y, 1),
            "pool": lambda: F.max_pool2d(y, 2),
            "mean": lambda: y - y.mean(dim=(2, 3), keepdim=True),
            "weight": lambda: y * self.scale,
            "rows": lambda: y + self.ramp,
            "join rows": lambda: torch.cat([y, y], dim=2),
        }
        return made[self.name]()


@pytest.mark.parametrize("name", ["residual", "join"])
def test_elementwise_functions_in_a_forward_are_taken(name: str) -> None:
    assert len(cut(Functional(name), (1, 8, 8), 2, Fabric()).parts) == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("flatten", "Functional calls flatten which is not known to be element-wise.*docs/domain.md"),
        ("pool", "calls .*max_pool2d.* which is not known"),
        ("mean", "calls mean which is not known"),
        ("weight", r"calls mul of a slab and of another tensor, \[2, 1, 1\]"),
        ("rows", r"calls add of a slab and of another tensor, \[8, 1\]"),
        ("join rows", "calls cat along rows"),
    ],
)
def test_any_other_function_is_refused_by_its_name(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cut(Functional(name), (1, 8, 8), 2, Fabric())


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, given, output: output - output.mean((2, 3), keepdim=True))
    return layer


def patched(layer: nn.Module) -> nn.Module:
    whole = layer.forward
    layer.forward = lambda input: whole(input) - whole(input).mean((2, 3), keepdim=True)
    return layer


@pytest.mark.parametrize("own", [hooked, patched])
def test_a_layer_that_computes_more_than_torchs_is_not_known(own) -> None:
    model = nn.Sequential(own(nn.Conv2d(1, 2, 3, padding=1)), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1))
    with pytest.raises(ConfigError, match=r"calls conv2d which is not known"):
        cut(model, (1, 8, 8), 2, Fabric())
    norm = own(nn.BatchNorm2d(2))
    assert list(batch_norms(nn.Sequential(nn.BatchNorm2d(2), norm))) == ["0"]


def test_a_batch_norm_that_is_frozen_is_known_unless_it_computes_more() -> None:
    norm = nn.BatchNorm2d(2)
    always_infer(norm)
    assert is_known(norm) and not is_known(hooked(norm))


def conv(**knobs: Any) -> nn.Module:
    return nn.Sequential(OrderedDict(first=nn.Conv2d(1, 2, **{"kernel_size": 3, **knobs})))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("model", "image", "degree", "says"),
    [
        (conv(padding=1), (1, 8, 8), 9, "degree=9: an image of these data has 8 rows. Choose strategy.degree <= 8"),
        (conv(kernel_size=7, padding=3), (1, 8, 8), 4, "the layer first worker 0, .*. Choose strategy.degree=3"),
        (conv(kernel_size=8), (1, 8, 8), 2, "worker 1 would have none .*. Choose strategy=data_parallel, or larger"),
        (conv(padding_mode="reflect", padding=1), (1, 8, 8), 2, r"first \(Conv2d\) has padding_mode='reflect'"),
        (conv(kernel_size=2, padding="same"), (1, 8, 8), 2, "padding='same' with an even kernel. Choose an odd one"),
        (nn.MaxPool2d(3, 2, ceil_mode=True), (1, 8, 8), 2, "ceil_mode=True. Choose ceil_mode=False"),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 8, 8), 2, "mode='bilinear' .*. Choose nearest"),
        (nn.InstanceNorm2d(1), (1, 8, 8), 2, "InstanceNorm2d calls instance_norm which is not known"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), (1, 8, 8), 2, "no layer of Sequential works on slabs"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_cannot_be_cut_is_refused_with_what_could(model, image, degree, says) -> None:
    with pytest.raises(ConfigError, match=says):
        cut(model, image, degree, Fabric())


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("model=linear", "data=diabetes", "task=squared"), "cuts images"),
        (("model=gpt", "data=text"), r"cuts images .* data=digits, fashion_mnist or disks"),
        (("model=mlp",), "no layer of MLP works on slabs"),
        (("model=vit",), "which is not known to be element-wise"),
        (("model=cnn", "strategy.degree=9", "hardware.workers=9"), "Choose strategy.degree <= 8"),
        (
            ("model=cnn", "strategy.image=[1,8,9]"),
            r"image=\[1, 8, 9\]: a sample .* \[1, 8, 8\]. Choose strategy.image=null",
        ),
        (("model=cnn", "sync=asp"), "strategy=domain: holds some parameters whole on several workers of a"),
        (("model=cnn", "compress=topk"), "strategy=domain: holds some parameters whole on several workers of a"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(overrides, says) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        prepare(["tracking=none", "strategy=domain", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def test_a_loss_over_pixels_that_is_no_mean_of_its_rows_is_refused() -> None:
    net = UNet(DataSpec((1, 8, 8), torch.float32, (8, 8), 2), width=2, levels=2, norm="group", groups=1)
    inputs, targets = torch.empty(1, 1, 8, 8, device="meta"), torch.empty(1, 8, 8, dtype=torch.int64, device="meta")

    def largest(outputs: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, -2), wanted.flatten(), reduction="none").max()

    with pytest.raises(ConfigError, match="not the mean of the losses of each"):
        DomainParallel(2).resolved(net, inputs, targets, largest)


# -- whole runs

PIXELS = ("model=unet", "model.width=4", "data=disks", "data.side=32", "data.samples=8", "batch_size=4", "steps=4")
DIGITS = ("model=resnet", "model.depth=8", "model.width=4", "data.limit=64", "batch_size=8", "steps=8")


def trained(*overrides: str, **how: str) -> tuple[dict[str, Tensor], dict]:
    given = overrides if "resume" in how else ("tracking=none", "strategy=domain", *overrides)
    return whole_runs.trained(*given, **how)


@pytest.mark.slow
def test_a_run_has_the_bits_bytes_and_memory_of_the_virtual_cluster_and_its_plan(here) -> None:
    real, told = trained(*PIXELS, "hardware.workers=2", "hardware.threads=1")
    modelled, of_model = trained(*PIXELS, "hardware.workers=2", "hardware=virtual")
    assert distance(real, modelled) < 1e-5
    for summary in (told, of_model):
        assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])
        assert summary["mesh"] == {"replica": 1, "domain": 2}
    assert told["predicted"]["memory"] == of_model["predicted"]["memory"]
    kinds = ("parameters", "gradients", "optimizer", "activations", "buffers")
    assert [told["memory"][kind] for kind in kinds] == [told["predicted"]["memory"][kind] for kind in kinds]


@pytest.mark.slow
def test_pixels_are_learnt_as_by_one_worker(here) -> None:
    cut_up, summary = trained(*PIXELS, "hardware=virtual", "hardware.workers=4", "strategy.degree=2", "batch_size=2")
    whole, alone = trained(*PIXELS, "strategy=data_parallel", "hardware=virtual", "hardware.workers=2", "batch_size=2")
    assert distance(cut_up, whole) < 1e-4
    assert summary["loss"] == pytest.approx(alone["loss"], rel=1e-3)


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_one_that_went_through(here) -> None:
    overrides = (*DIGITS, "hardware.workers=2", "hardware.threads=1")
    whole, _ = trained(*overrides)
    trained(*overrides, "steps=4", "checkpoint.every_steps=4", name="half")
    assert identical(trained("steps=8", resume="half")[0], whole)


@pytest.mark.parametrize("degree", [2, 4])
def test_activations_shrink_by_the_degree(degree: int) -> None:
    asked = ["model=unet", "data=disks", "batch_size=2", "hardware=virtual", "tracking=none"]
    whole = prepare([*asked, "hardware.workers=1"]).plan().peak_memory()
    cut_up = prepare([*asked, "strategy=domain", f"strategy.degree={degree}", f"hardware.workers={degree}"]).plan()
    # but for the neighbours' rows: 1 of 256 and of 128 at most in each layer, and 4 of 64 where sides are a quarter
    assert cut_up.peak_memory()["activations"] == pytest.approx(whole["activations"] / degree, rel=0.02)


def test_a_slab_has_its_share_of_the_floating_point_operations() -> None:
    """Which the virtual cluster's time follows."""
    with torch.device("meta"):
        model = UNet(DataSpec((1, 64, 64), torch.float32, (64, 64), 2), width=4)
    whole = count_flops(model, torch.empty(2, 1, 64, 64, device="meta"))
    part = cut(model, (1, 64, 64), 2, Fabric()).parts[0]
    half = count_flops(part, torch.empty(2, 1, 32, 64, device="meta"))
    assert half[0] == whole[0] / 2
    # the neighbours' rows are computed on in backward, too
    assert whole[1] / 2 <= half[1] < 1.1 * whole[1] / 2
    assert half[2].keys() == whole[2].keys()
