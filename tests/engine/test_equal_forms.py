"""Models in unusual forms train as the same models in plain torch do."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.base.trained import keep_memory
from paceline.exchange.privacy.dp_sgd import DPSGD
from paceline.exchange.privacy.per_sample import PerSample
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.copies import copy_of, give_own_memory
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.offload import Offload
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelining.blocks import blocks_of
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.strategies.sync.easgd import EASGD
from paceline.strategies.sync.easgd_round_robin import RoundRobinEASGD
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.push_sum import PushSum
from paceline.strategies.torch_ddp import TorchDDP
from paceline.strategies.torch_fsdp import TorchFSDP
from paceline.tasks.losses import Task
from paceline.tasks.losses.metrics import Accuracy
from paceline.testing import FABRICS, TrainingCase, TrainingPlan, distance, serial, train
from paceline.testing.training import CLASSES, FEATURES

SIZES = [[4, 4], [3, 4], [4, 4]]  # [step][replica] samples


class Checkpointed(nn.Module):
    """A linear layer, some of whose uses are computed again in backward, by a reentrant checkpoint."""

    def __init__(self, also_plain: bool) -> None:
        super().__init__()
        self.layer, self.also_plain = nn.Linear(8, 8), also_plain

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.layer, x, use_reentrant=True)
        return y + self.layer(x) if self.also_plain else y


def reentrant(also_plain: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), Checkpointed(also_plain), nn.Tanh(), nn.Linear(8, CLASSES)
    ).double()


def reentrant_and_plain() -> nn.Sequential:
    return reentrant(also_plain=True)


@pytest.mark.parametrize("strategy", [DataParallel, Offload])
@pytest.mark.parametrize("model", [reentrant, reentrant_and_plain])
def test_a_reentrant_checkpoint_trains_its_weights(model, strategy):
    case = TrainingCase(SIZES, model)
    results = FABRICS["virtual"](2, train, TrainingPlan(strategy(), BSP(), case))
    assert all(distance(each["weights"], serial(case)) < 1e-12 for each in results)


def scripted() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    for i in (0, 2):
        model[i] = torch.jit.script(model[i])
    return model


def test_a_copy_of_a_scripted_layer_has_its_own_gradients():
    model = scripted()
    model[0].bias.requires_grad_(False)
    copy = copy_of(model)
    copy(torch.ones(1, FEATURES, dtype=torch.float64)).sum().backward()
    assert all(each.grad is None for each in model.parameters())
    assert [each.grad is not None for each in copy.parameters()] == [each.requires_grad for each in model.parameters()]


class OfScripted(nn.Module):
    """Calls scripted layers in a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, _, self.other, _, self.head = scripted()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.other(self.one(x).tanh()).tanh())


@pytest.mark.parametrize("model", [scripted, OfScripted])
def test_a_stage_after_scripted_layers_trains(model):
    case = TrainingCase([[4]] * 3, model)
    results = FABRICS["virtual"](2, train, TrainingPlan(Pipeline(2, "naive", cut=[3]), BSP(), case))
    assert distance({**results[0]["weights"], **results[1]["weights"]}, serial(case)) < 1e-12


class Counts(nn.Module):
    """Counts its passes in a buffer, in place or by another tensor."""

    count: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(FEATURES, CLASSES), in_place
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.count += 1
        else:
            self.count = self.count + 1
        return self.layer(x) * (1 + 0.1 * self.count)


@pytest.mark.parametrize("at_once", [1, None])
def test_a_replaced_buffer_is_kept_where_each_sample_has_its_gradient(at_once):
    seen = []
    for in_place in (True, False):
        torch.manual_seed(0)
        model = Counts(in_place)
        own = PerSample(model, nn.functional.cross_entropy, DPSGD(1.0, 1.0, at_once=at_once), 0)
        losses = [own.losses(model, *samples(step, at_once or 3))[0] for step in range(2)]
        seen.append((model.count, torch.cat(losses)))
    assert torch.equal(*next(zip(*seen, strict=True)))
    assert seen[0][0] == 2
    assert torch.equal(seen[0][1], seen[1][1])


class Lengthening(Counts):
    """Keeps a number of each pass in a buffer."""

    def forward(self, x: Tensor) -> Tensor:
        self.count = torch.cat([self.count.flatten(), self.count.flatten()[-1:] + 1])
        return self.layer(x) * (1 + 0.1 * self.count[-1])


@pytest.mark.parametrize("at_once", [1, None])
def test_a_buffer_that_becomes_longer_is_kept_where_each_sample_has_its_gradient(at_once):
    model = Lengthening(in_place=False)
    own = PerSample(model, nn.functional.cross_entropy, DPSGD(1.0, 1.0, at_once=at_once), 0)
    for step in range(2):
        own.losses(model, *samples(step, at_once or 3))
    assert model.count.tolist() == [0, 1, 2]


class Shifting(nn.Module):
    """Keeps the numbers of its last two passes in buffers."""

    last: Tensor
    before: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("before", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.before, self.last = self.last, self.last + 1
        return self.layer(x)


@pytest.mark.parametrize("at_once", [1, None])
def test_a_buffer_may_take_the_place_of_another_where_each_sample_has_its_gradient(at_once):
    model = Shifting()
    own = PerSample(model, nn.functional.cross_entropy, DPSGD(1.0, 1.0, at_once=at_once), 0)
    for step in range(3):
        own.losses(model, *samples(step, at_once or 3))
    assert (float(model.last), float(model.before)) == (3, 2)


class OneInMemory(nn.Module):
    """The gradient of `token` is a part of that of `place`, as in a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.ones(1, 1, FEATURES)), nn.Parameter(torch.ones(1, 2, FEATURES))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((torch.cat([self.token.expand(len(x), -1, -1), x[:, None]], 1) + self.place).tanh().sum(1))


class Padded(nn.Module):
    """The mean of embeddings, of which those of `padding_idx` are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(3, 4, padding_idx=-3)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows((x > 0).long()).mean(1))


class ComputedAgain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda given: self.layer(given).tanh(), x, use_reentrant=False))


class Normed(nn.Module):
    """Has the product of its weights as a tensor beside them, once it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.utils.weight_norm(nn.Linear(FEATURES, 8)), nn.Linear(8, CLASSES)
        self(torch.ones(1, FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).tanh())


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    ("kind", "count"), [(OneInMemory, 1), (OneInMemory, 4), (Padded, 4), (ComputedAgain, 1), (Normed, 1)]
)
def test_gradients_are_clipped_as_each_sample_has_them(kind, count):
    torch.manual_seed(0)
    model, clip = kind(), 0.1
    inputs, targets = samples(0, count)
    wanted = [torch.zeros_like(each) for each in model.parameters()]
    for x, y in zip(inputs.split(1), targets.split(1), strict=True):
        own = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        norm = sum(float(each.square().sum()) for each in own) ** 0.5
        for total, each in zip(wanted, own, strict=True):
            total += each * min(1.0, clip / norm) / count
    loss = nn.functional.cross_entropy
    PerSample(model, loss, DPSGD(clip, 0.0), 0).loss(model, Batch(inputs, targets, count)).backward()
    for parameter, each in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, each, rtol=1e-4, atol=1e-7)


def samples(step: int, count: int) -> tuple[Tensor, Tensor]:
    inputs, targets = TrainingCase([[count]] * (step + 1)).step(step)
    return inputs.float(), targets


def sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 4, sparse=True))


def test_a_sparse_embedding_that_is_frozen_has_no_gradient_to_refuse():
    model = sparse().requires_grad_(False)
    for strategy in (TorchDDP(), TorchFSDP()):
        assert len(strategy.split(model)) == 1


def without_entries() -> nn.Module:
    model = nn.Linear(2, 2)
    model.none = nn.Parameter(torch.zeros(0, 2))
    return model


@pytest.mark.parametrize(
    "strategy, model, why",
    [
        (TorchDDP(), sparse, "gradient of 0.weight is sparse"),
        (TorchDDP(zero_optimizer=True), sparse, "gradient of 0.weight is sparse"),
        (TorchFSDP(), sparse, "gradient of 0.weight is sparse"),
        (TorchFSDP(), without_entries, "parameter none has no entries"),
    ],
)
def test_gradients_that_a_strategy_cannot_send_are_refused(strategy, model, why):
    with pytest.raises(ConfigError, match=why):
        strategy.split(model())


def in_groups(parameters) -> torch.optim.Optimizer:
    """SGD with a group for each parameter, which together say the same as one group."""
    return torch.optim.SGD([{"params": [each]} for each in parameters], lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("sync", [EASGD, RoundRobinEASGD])
def test_a_spring_knows_the_momentum_of_each_group(sync):
    one, several = (
        FABRICS["virtual"](2, train, TrainingPlan(DataParallel(), sync(period=1, nesterov=True), case))
        for case in (TrainingCase(SIZES), TrainingCase(SIZES, optimizer=in_groups))
    )
    assert all(distance(a["weights"], b["weights"]) == 0 for a, b in zip(one, several, strict=True))


class Returning(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> object:
        hidden = self.first(x)
        logits = self.last(hidden)
        if self.kind == "logits":
            return {"logits": logits}
        return {"logits": logits, "more": hidden if self.kind == "logits and hidden" else x.sum()}


@pytest.mark.parametrize("kind", ["logits", "logits and hidden", "logits and a sum"])
def test_a_pipeline_refuses_a_model_that_returns_a_dict(kind):
    with pytest.raises(ConfigError, match="the forward of Returning returns an object"):
        blocks_of(Returning(kind))


class Ending(nn.Module):
    """Ends with values that nobody uses, or with a change of its result in place."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        mean = hidden.mean()
        logits = self.last(hidden)
        if self.kind == "unused":
            torch.add(mean, logits.sum())
        elif self.kind == "unused alone":
            logits.sum()
        elif self.kind == "in place":
            logits.clamp_(-0.3, 0.3)
        else:
            logits.mul_(mean + 1)
        return logits


@pytest.mark.parametrize("kind", ["unused", "unused alone", "in place", "in place by another"])
def test_stages_compute_all_of_a_forward(kind):
    torch.manual_seed(0)
    model, (x, _) = Ending(kind), TrainingCase([[5]]).step(0)
    result = x
    for block in blocks_of(model):
        result = block.run(model, result)
    assert torch.equal(result, model(x))


class Optimistic(torch.optim.Optimizer):
    """Steps by 1.5 g_t - 0.5 g_(t-1), and keeps all gradients as they are, without a copy."""

    def __init__(self, parameters, drops) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.drops = drops
        self.state["steps"] = 0  # type: ignore[index]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.state["steps"] += 1  # type: ignore[index]
        for parameter in self.param_groups[0]["params"]:
            before = self.state[parameter].setdefault("before", [])
            before.append(parameter.grad)
            parameter.sub_(0.1 * (1.5 * parameter.grad - 0.5 * before[-2:][0]))
            if self.drops:
                parameter.grad = None


@pytest.mark.parametrize("drops", [False, True])
def test_an_optimizer_may_keep_a_gradient_whose_memory_gets_the_next_one(drops: bool):
    weights = []
    for in_one_memory in (False, True):
        parameter = nn.Parameter(torch.zeros(3))
        optimizer, room = Optimistic([parameter], drops), torch.zeros(6)
        keep_memory(optimizer)
        for step in range(3):
            gradient = torch.arange(3.0) + step**2
            parameter.grad = room[3:].copy_(gradient) if in_one_memory else gradient
            optimizer.step()
        weights.append(parameter.detach())
    assert torch.equal(*weights)


class Remembering(torch.optim.Optimizer):
    """Keeps copies of gradients in a list that its state and an attribute have."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {})
        self.before: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("before", self.before).append(parameter.grad.clone())


def test_a_list_in_the_state_of_an_optimizer_stays_the_same():
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    optimizer = Remembering([parameter])
    keep_memory(optimizer)
    for _ in range(2):
        optimizer.step()
    assert optimizer.state[parameter]["before"] is optimizer.before
    assert len(optimizer.before) == 2


def test_offload_refuses_a_layer_with_a_module_under_two_names():
    shared = nn.Linear(8, 8)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Sequential(shared, nn.Tanh(), shared), nn.Linear(8, CLASSES))
    with pytest.raises(ConfigError, match="layer 1 has a module under two names"):
        Offload().split(model)
    Offload().split(nn.Sequential(shared, nn.Tanh(), nn.ReLU(), shared))


def test_tied_weights_have_the_gradients_of_each_sample():
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))
    model[2].weight = model[0].weight
    own = PerSample(model, nn.functional.cross_entropy, DPSGD(1.0, 1.0), 0)
    inputs, targets = samples(0, 3)
    losses, weights = own.losses(model, inputs, targets)
    expected = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    torch.testing.assert_close(losses, expected)
    found = torch.autograd.grad(losses.sum(), weights)
    for each, whole in zip(found, torch.autograd.grad(expected.sum(), list(model.parameters())), strict=True):
        torch.testing.assert_close(each.sum(0), whole)


@pytest.mark.slow
def test_a_plan_names_a_tensor_that_a_loss_keeps():
    plan = engine.plan(
        data="digits", model="linear", task={"_target_": Weighted}, hardware={"workers": 1}, tracking="none"
    )
    assert any("or the loss keeps a tensor" in each for each in plan.notes)


class Weighted(Task):
    targets = "labels"
    metric = Accuracy()

    def __init__(self) -> None:
        self.function_of = nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function_of(outputs, targets)


# -- one layer of a model, in an unusual and in an ordinary form, under each of these


class Half(torch.autograd.Function):
    """Identity, whose gradient is half of its output's."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient / 2


class By(nn.Module):
    """A linear layer, and what `forward` makes of it."""

    layer: nn.Linear
    scale: nn.Parameter
    direction: nn.Parameter

    def __init__(self, forward, **more: Tensor) -> None:
        super().__init__()
        self.layer, self.by = linear(), forward
        for name, each in more.items():
            setattr(self, name, nn.Parameter(each.double()))

    def forward(self, x: Tensor) -> Tensor:
        return self.by(self, x)


def linear() -> nn.Linear:
    return nn.Linear(8, 8, dtype=torch.float64)


def plain(**more: Tensor) -> By:
    return By(lambda it, x: it.layer(x), **more)


def with_weight(change) -> By:
    made = plain()
    made.layer.weight = nn.Parameter(change(made.layer.weight.detach()))
    return made


def slice_of_columns(weight: Tensor) -> Tensor:
    wide = torch.zeros(16, 24, dtype=weight.dtype)
    wide[::2, ::3] = weight
    return wide[::2, ::3]


def in_one_tensor() -> By:
    made, both = plain(), torch.zeros(72, dtype=torch.float64)
    both[:64], both[64:] = made.layer.weight.detach().flatten(), made.layer.bias.detach()
    made.layer.weight, made.layer.bias = nn.Parameter(both[:64].view(8, 8)), nn.Parameter(both[64:])
    return made


def normed() -> By:
    made = plain()
    nn.utils.parametrizations.weight_norm(made.layer)
    return made


def normed_by_hand() -> By:
    made = By(
        lambda it, x: F.linear(x, it.scale * it.direction / it.direction.norm(dim=1, keepdim=True), it.layer.bias),
        scale=torch.zeros(8, 1),
        direction=torch.zeros(8, 8),
    )
    weight = made.layer.weight.detach()
    made.scale.data, made.direction.data = weight.norm(dim=1, keepdim=True), weight.clone()
    made.layer.register_parameter("weight", None)
    return made


def hooked() -> By:
    made = plain()
    made.layer.weight.register_hook(lambda gradient: gradient / 2)
    return made


FORMS = {
    "slice of a tensor": (lambda: with_weight(slice_of_columns), plain),
    "transposed": (lambda: with_weight(lambda weight: weight.t().contiguous().t()), plain),
    "views of one tensor": (in_one_tensor, plain),
    "number": (
        lambda: By(lambda it, x: it.layer(x) * it.scale, scale=torch.tensor(1.5)),
        lambda: By(lambda it, x: it.layer(x) * it.scale, scale=torch.tensor([1.5])),
    ),
    "no entries": (lambda: plain(none=torch.zeros(0, 3)), plain),
    "weight norm": (normed, normed_by_hand),
    "hook": (hooked, lambda: By(lambda it, x: F.linear(x, Half.apply(it.layer.weight), it.layer.bias))),
    "checkpoint": (lambda: By(lambda it, x: checkpoint(it.layer, x, use_reentrant=False)), plain),
    "reentrant checkpoint": (lambda: By(lambda it, x: checkpoint(it.layer, x, use_reentrant=True)), plain),
    "used twice": (
        lambda: By(lambda it, x: it.layer(it.layer(x))),
        lambda: By(lambda it, x: F.linear(F.linear(x, *it.layer.parameters()), *it.layer.parameters())),
    ),
    "changed in place": (
        lambda: By(lambda it, x: it.layer(x).clamp_(-0.5, 0.5)),
        lambda: By(lambda it, x: it.layer(x).clamp(-0.5, 0.5)),
    ),
}
LAYOUTS = {
    "bsp": lambda: (DataParallel(), BSP()),
    "bsp_naive": lambda: (DataParallel(), NaiveBSP()),
    "local_sgd": lambda: (DataParallel(), LocalSGD(period=2)),
    "easgd": lambda: (DataParallel(), EASGD(period=2)),
    "push_sum": lambda: (DataParallel(), PushSum()),
    "offload": lambda: (Offload(), BSP()),
    "pipeline": lambda: (Pipeline(stages=2, cut=[2]), BSP()),
}


def trained(layer, layout: str) -> list[Tensor]:
    """Returns each worker's trained weights, as one vector. Parameters of one number have no dimension."""

    def model() -> nn.Module:
        ends = nn.Linear(FEATURES, 8).double(), nn.Linear(8, CLASSES).double()
        made = nn.Sequential(ends[0], nn.Tanh(), layer(), nn.Tanh(), ends[1])
        give_own_memory(made)  # as the engine does
        return made

    sizes = [[8], [7], [8]] if layout == "pipeline" else SIZES
    strategy, sync = LAYOUTS[layout]()
    results = FABRICS["virtual"](2, train, TrainingPlan(strategy, sync, TrainingCase(sizes, model)))
    return [torch.cat(sorted((each.flatten() for each in of["weights"].values()), key=order)) for of in results]


def order(weights: Tensor) -> tuple[int, float]:
    """Parametrizations and forms name and order parameters otherwise."""
    return len(weights), float(weights.abs().sum())


FAST = "bsp", "offload"


@pytest.mark.parametrize(
    "layout", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in LAYOUTS]
)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_trains_as_the_ordinary_one(form, layout):
    unusual, ordinary = (trained(each, layout) for each in FORMS[form])
    assert all(torch.allclose(one, other, rtol=1e-9, atol=1e-12) for one, other in zip(unusual, ordinary, strict=True))
