"""Passes that are replayed are those of autograd, bit for bit; and all others are computed by autograd."""

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from paceline.batches import Fields, Samples
from paceline.engine.base.memory import activations
from paceline.engine.fabrics import program, replayed
from paceline.engine.fabrics.program import Program
from paceline.engine.fabrics.replayed import Recordings, ReplayedPasses
from paceline.exchange.reducer import leaves
from paceline.strategies import Batch
from paceline.strategies.core.passes import Passes
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import CrossEntropy, cross_entropy
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.mlp import MLP
from paceline.tasks.models.resnet import ResNet
from paceline.tasks.models.vit import ViT

IMAGES = DataSpec((1, 8, 8), torch.float32, (), 10, None, None)
TOKENS = DataSpec((6,), torch.int64, (6,), 11, None, None)
LOSS = CrossEntropy().loss
MLP_OF_IMAGES = partial(MLP, IMAGES, [12])


class Clock:
    """Takes down when forward passes came; has no hooks in the model."""

    hooks = ()

    def __init__(self) -> None:
        self.roots: list[Tensor] = []

    def forward(self, inputs: Samples, root: Tensor) -> None:
        self.roots.append(root)


def images(size: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 1, 8, 8), torch.randint(10, (size,))


def tokens(size: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randint(11, (size, 6)), torch.randint(11, (size, 6))


def flat(size: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 64), torch.randint(10, (size,))


def layers(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), *more, nn.Linear(12, 10))


def a_pass(
    passes: Passes, module: nn.Module, batch: Samples, targets: Samples, loss: Any = LOSS
) -> tuple[Tensor, list[Tensor | None], list[int], list[Sequence[Tensor]]]:
    """Returns the loss, the gradients, their order, and the roots of the backward pass."""
    order: list[int] = []
    roots: list[Sequence[Tensor]] = []
    parameters = [*module.parameters()]
    module.zero_grad()
    hooks = [
        each.register_post_accumulate_grad_hook(lambda _, i=i: order.append(i))
        for i, each in enumerate(parameters)
        if each.requires_grad
    ]
    value = passes.forward_backward(module, loss, Batch(batch, targets, 4), lambda root, last: roots.append(root))
    for each in hooks:
        each.remove()
    return value, [each.grad for each in parameters], order, roots


def is_same(found: Tensor | None, expected: Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return found.stride() == expected.stride() and torch.equal(
        found.contiguous().view(-1).view(torch.uint8), expected.contiguous().view(-1).view(torch.uint8)
    )


def compared(
    make: Callable[[], nn.Module],
    batch: Callable[[], tuple[Samples, Samples]],
    loss: Any = LOSS,
    passes: int = 6,
    change: Callable[[nn.Module], None] = lambda module: None,
) -> int:
    """Makes passes of two workers as a run does, and by autograd alone; returns how many of them were replayed.

    `change`: is done to the models before the last two passes.
    """
    torch.manual_seed(0)
    recordings: Recordings = {}
    clocks = [Clock(), Clock()]
    workers = [(make(), ReplayedPasses(clock, recordings)) for clock in clocks]
    for step in range(passes):
        for module, own in workers:
            if step == passes - 2:
                change(module)
            inputs, targets = batch()
            drawn = torch.default_generator.get_state()
            with torch.no_grad():
                held = [each.clone() for each in module.buffers()]
            expected = a_pass(Passes(), module, inputs, targets, loss)
            after = torch.default_generator.get_state(), [each.clone() for each in module.buffers()]
            torch.default_generator.set_state(drawn)
            for each, before in zip(module.buffers(), held, strict=True):
                each.copy_(before)
            found = a_pass(own, module, inputs, targets, loss)
            assert is_same(found[0], expected[0]) and not found[0].requires_grad
            assert all(map(is_same, found[1], expected[1])) and found[2] == expected[2]
            assert not any(each.requires_grad for each in found[1] if each is not None)
            assert len(found[3]) == len(expected[3]) == 1
            assert leaves(found[3][0]) == leaves(expected[3][0])
            assert torch.equal(torch.default_generator.get_state(), after[0])
            assert all(map(is_same, module.buffers(), after[1]))
            storages = {each.untyped_storage().data_ptr() for each in found[1] if each is not None}
            assert len(storages) == sum(each is not None for each in found[1])
            with torch.no_grad():
                for each in module.parameters():
                    if each.grad is not None:
                        each -= 0.1 * each.grad
    return sum(len(each.roots) for each in clocks)


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    module[2].weight = module[0].weight
    return module


ALIKE = {
    "mlp": (partial(MLP, IMAGES, [12, 9]), images),
    "cnn": (partial(CNN, IMAGES, (3, 4), 3, (9, 9)), images),
    "resnet": (partial(ResNet, IMAGES, 8, width=4, norm="group", groups=2), images),
    "vit": (partial(ViT, IMAGES, 4, n_layer=1, n_head=2, width=8, dropout=0.0), images),
    "gpt": (partial(GPT, TOKENS, n_layer=2, n_head=2, width=8, dropout=0.0), tokens),
    "llama": (
        partial(GPT, TOKENS, n_layer=1, n_head=2, width=8, dropout=0.0, gated=True, rms_norm=True, rotary=100.0),
        tokens,
    ),
    "tied": (tied, flat),
    "layers in place": (lambda: layers(nn.ReLU(inplace=True)), flat),
}


@pytest.mark.budget(1)
@pytest.mark.parametrize("name", ALIKE)
def test_replayed_passes_are_those_of_autograd(name: str) -> None:
    """The first pass of a shape is autograd's, and two are compared."""
    assert compared(*ALIKE[name]) == 12 - 3


def test_hooks_of_a_replayed_pass_record_no_gradients_and_the_next_pass_does() -> None:
    module, passes, seen = MLP_OF_IMAGES(), ReplayedPasses(Clock(), {}), list[bool]()
    next(module.parameters()).register_post_accumulate_grad_hook(lambda _: seen.append(torch.is_grad_enabled()))
    for _ in range(5):
        a_pass(passes, module, *images())
    assert seen == [False] * 5 and torch.is_grad_enabled()


def test_another_shape_has_a_recording_of_its_own() -> None:
    sizes = iter([3, 3, 3, 3, 5, 5, 5, 5, 3, 3, 5, 5])
    assert compared(MLP_OF_IMAGES, lambda: images(next(sizes))) == 1 + 1 + 4


def test_a_loss_with_weights_is_replayed() -> None:
    def batch() -> tuple[Samples, Samples]:
        inputs, targets = images()
        return inputs, Fields({"targets": targets, "weights": torch.rand(3)})

    weighted = CrossEntropy().function(DataSpec((1, 8, 8), torch.float32, (), 10, None, None, weights=True))
    assert compared(MLP_OF_IMAGES, batch, weighted) == 12 - 3


# -- what is not replayed


class Counting(nn.Module):
    """Scales by the number of its passes, of which torch knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return x * ((self.passes + 1) // 2)  # for each pass there is one to compare with


class Recomputing(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        output = checkpoint(super().forward, input, use_reentrant=False)
        assert isinstance(output, Tensor)
        return output


Recomputing.__module__ = "torch.nn.modules.linear"  # so that it is not refused for being somebody's own


class Choosing(nn.Linear):
    """Its operations depend on values."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * (2 if input.sum() > 0 else 1)


Choosing.__module__ = "torch.nn.modules.linear"


def hooked(register: str, hook: Callable[..., None] = lambda *args: None) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = layers(nn.ReLU())
        getattr(module[1], register)(hook)  # type: ignore[index]
        return module

    return make


def with_tensor_hook() -> nn.Module:
    module = layers(nn.ReLU())
    next(module.parameters()).register_hook(lambda gradient: gradient * 2)
    return module


def with_own_forward() -> nn.Module:
    module = layers(nn.ReLU())
    module[1].forward = torch.sigmoid  # type: ignore[index]
    return module


def with_norm_that_does_not_count() -> nn.Module:
    module = layers(nn.BatchNorm1d(12))
    module[1].num_batches_tracked = None  # type: ignore[index]
    return module


def in_evaluation() -> nn.Module:
    return layers(nn.ReLU()).eval()


def of_experts() -> nn.Module:
    return GPT(TOKENS, n_layer=1, n_head=2, width=8, dropout=0.0, experts=2, active=1)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets)


NOT_REPLAYED = {
    "dropout": (lambda: layers(nn.Dropout(0.5)), flat),
    "dropout of a transformer": (partial(GPT, TOKENS, n_layer=1, n_head=2, width=8, dropout=0.1), tokens),
    "noise": (lambda: layers(nn.RReLU()), flat),
    "batch norm": (lambda: layers(nn.BatchNorm1d(12)), flat),
    "batch norm of a resnet": (partial(ResNet, IMAGES, 8, width=2), images),
    "batch norm without a count": (with_norm_that_does_not_count, flat),
    "somebody's layer": (lambda: layers(Counting()), flat),
    "hook before forward": (hooked("register_forward_pre_hook"), flat),
    "hook after forward": (hooked("register_forward_hook"), flat),
    "hook of backward": (hooked("register_full_backward_hook"), flat),
    "hook of a gradient": (with_tensor_hook, flat),
    "forward of the object": (with_own_forward, flat),
    "parametrization": (lambda: layers(nn.utils.parametrizations.weight_norm(nn.Linear(12, 12))), flat),
    "recomputation": (lambda: layers(Recomputing(12, 12)), flat),
    "values": (lambda: layers(Choosing(12, 12)), flat),
    "experts": (of_experts, tokens),
    "evaluation": (in_evaluation, flat),
}


@pytest.mark.budget(0.3)
@pytest.mark.parametrize("name", NOT_REPLAYED)
def test_passes_that_are_not_the_same_each_time_are_left_to_autograd(name: str) -> None:
    assert compared(*NOT_REPLAYED[name]) == 0


@pytest.mark.parametrize("loss", [own_loss, lambda outputs, targets: cross_entropy(outputs, targets)])
def test_a_loss_that_is_not_ours_is_left_to_autograd(loss: Any) -> None:
    assert compared(MLP_OF_IMAGES, images, loss) == 0


def freeze(module: nn.Module) -> None:
    next(module.parameters()).requires_grad_(False)


def evaluate(module: nn.Module) -> None:
    module[1].eval()  # type: ignore[index]


def hook(module: nn.Module) -> None:
    module[1].register_forward_hook(lambda layer, inputs, output: output * 2)  # type: ignore[index]


def replace(module: nn.Module) -> None:
    module[1] = nn.Tanh()  # type: ignore[index]


def change_forward(module: nn.Module) -> None:
    module[1].forward = MethodType(lambda self, x: x * 2, module[1])  # type: ignore[index]


def change_value(module: nn.Module) -> None:
    module[1].negative_slope = 0.5  # type: ignore[index]


def change_gradient(module: nn.Module) -> None:
    next(module.parameters()).register_hook(lambda gradient: gradient * 2)


@pytest.mark.parametrize("change", [freeze, evaluate, hook, replace, change_forward, change_value, change_gradient])
def test_a_change_of_the_model_is_seen(change: Callable[[nn.Module], None]) -> None:
    """At the change, up to two more passes of the new model are compared before it is replayed."""
    replays = compared(lambda: layers(nn.LeakyReLU()), flat, change=change)
    assert 8 - 3 <= replays <= 8 - 3 + 1


def test_hooks_that_take_gradients_away_are_called_in_order() -> None:
    """Takes them as sync=bsp does with sync.shard=gradients."""
    torch.manual_seed(0)
    taken: list[list[Tensor]] = [[], []]

    def take(place: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        taken[place].append(parameter.grad)
        parameter.grad = None

    weights = layers(nn.ReLU()).state_dict()
    for place, own in enumerate((ReplayedPasses(Clock(), {}), Passes())):
        module = layers(nn.ReLU())
        module.load_state_dict(weights)
        for each in module.parameters():
            each.register_post_accumulate_grad_hook(partial(take, place))
        torch.manual_seed(1)
        for _ in range(5):
            a_pass(own, module, *flat())
    assert len(taken[0]) == 4 * 5 and all(map(is_same, *taken))


def test_gradients_are_added_to_those_that_are_there() -> None:
    torch.manual_seed(0)
    module, own = layers(nn.ReLU()), ReplayedPasses(Clock(), {})
    for _ in range(4):
        a_pass(own, module, *flat())
    batch, expected = Batch(*flat(), 4), [each.grad.clone() for each in module.parameters() if each.grad is not None]
    own.forward_backward(module, LOSS, batch, lambda roots, last: None)
    found = [each.grad.clone() for each in module.parameters() if each.grad is not None]
    module.zero_grad()
    Passes().forward_backward(module, LOSS, batch, lambda roots, last: None)
    more = [each.grad for each in module.parameters() if each.grad is not None]
    assert all(torch.equal(a, b + c) for a, b, c in zip(found, expected, more, strict=True))


def test_saved_tensors_are_counted_as_ever() -> None:
    peaks = []
    for own in (ReplayedPasses(Clock(), {}), Passes()):
        module = layers(nn.ReLU())
        for _ in range(4):
            a_pass(own, module, *flat())
        with activations() as account:
            a_pass(own, module, *flat())
        peaks.append(account.peak)
    assert peaks[0] == peaks[1] > 0


def test_a_recording_whose_results_differ_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Program.run
    monkeypatch.setattr(Program, "run", lambda self, inputs: _off(run(self, inputs)))
    assert compared(MLP_OF_IMAGES, images) == 0


def _off(results: list[Any]) -> list[Any]:
    value, first, *others = results
    first.view(-1)[0] = first.view(-1)[0].nextafter(torch.tensor(1e9))
    return [value, first, *others]


def test_one_batch_twice_proves_nothing() -> None:
    torch.manual_seed(0)
    same = images()
    assert compared(MLP_OF_IMAGES, lambda: same, passes=4) == 0


def test_computations_with_large_results_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST", 100)
    assert compared(MLP_OF_IMAGES, images) == 0


def test_so_many_models_and_no_more_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "MOST", 0)
    assert compared(MLP_OF_IMAGES, images) == 0
