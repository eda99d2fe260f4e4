"""Models that are no nn.Sequential, cut into stages: by their own word, or by a trace of their forward."""

import random
from collections.abc import Callable
from functools import partial, partialmethod, wraps
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from oracles import CLASSES, FEATURES, Branching, Case, Plan, identical, serial, train, workers_of
from torch import Tensor, fx, nn

from paceline.conf.errors import ConfigError
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelining.blocks import blocks_of
from paceline.strategies.pipelining.chunks import Chunks, chunks_of, weights_of, worker_of
from paceline.strategies.sync.bsp import BSP

SIZES = [[8], [7], [5]]
SCHEDULES = [("gpipe", None), ("1f1b", None), ("interleaved", 2), ("zb_h1", None)]


class Residual(nn.Module):
    """[n, width] -> [n, width]; two values are alive in it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.other(F.gelu(self.one(x)))


class Stacked(nn.Module):
    """A ModuleList, parameters of its own, a constant, a buffer that is not saved, and a weight that nobody uses."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, 6)
        self.place = nn.Parameter(torch.linspace(-1, 1, 6))
        self.register_buffer("offset", torch.full((6,), 0.5), persistent=False)
        self.register_buffer("seen", torch.zeros(3))
        self.layers = nn.ModuleList(Residual(6) for _ in range(3))
        self.spare = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.flatten(1)) + self.place + torch.arange(6) / 10
        for layer in self.layers:
            x = layer(x)
        return self.head((x - self.offset).tanh())


class Skipping(nn.Module):
    """Shaped like a U: what enters goes around the middle, where no cut is possible."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Linear(FEATURES, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        self.up, self.head = nn.Linear(12, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        down = self.down(x)
        return self.head(F.relu(self.up(torch.cat([down, self.middle(down)], dim=1))))


class Named(nn.Module):
    """Two layers and a weight of these names, and a helper method called `blocks`."""

    def __init__(self, first: str, second: str, weight: str) -> None:
        super().__init__()
        self.names = first, second, weight
        setattr(self, first, nn.Linear(FEATURES, 6))
        setattr(self, second, nn.Linear(6, CLASSES))
        setattr(self, weight, nn.Parameter(torch.linspace(-1, 1, 6)))

    def forward(self, x: Tensor) -> Tensor:
        first, second, weight = (getattr(self, name) for name in self.names)
        return second(first(x.flatten(1)).tanh() * weight)


class Helped(Named):
    def blocks(self, x: Tensor) -> Tensor:
        """Is no list of its modules: it takes an argument."""
        return getattr(self, self.names[0])(x).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, self.names[1])(self.blocks(x.flatten(1)) * getattr(self, self.names[2]))


class Telling(nn.Module):
    """Its forward cannot be traced, and it says its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.ModuleDict({"first": nn.Linear(FEATURES, 6), "second": nn.Linear(6, 6)})
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks():
            x = block(x) if bool(x.isfinite().all()) else x
        return x

    def blocks(self) -> list[nn.Module]:
        return [*self.trunk.values(), self.head]


def double(kind: type[nn.Module]) -> nn.Module:
    return kind().double()


def stacked() -> nn.Module:
    return double(Stacked)


def skipping() -> nn.Module:
    return double(Skipping)


def telling() -> nn.Module:
    return double(Telling)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("model", "schedule", "chunks"),
    [
        *((stacked, *schedule) for schedule in SCHEDULES),
        (telling, "gpipe", None),
        (telling, "1f1b", None),
        (skipping, "zb_h1", None),
        (skipping, "gpipe", None),
    ],
)
def test_stages_are_gradient_accumulation_bit_for_bit(virtual_workers, model, schedule, chunks):
    case = Case(SIZES, model=model)
    plan = Plan(Pipeline(2, schedule, 4, chunks=chunks), BSP(), case)
    results = virtual_workers(workers_of(plan), train, plan)
    whole = {name: weight for stage in results for name, weight in stage["weights"].items()}
    trained = {name: weight for name, weight in serial(case, pieces=lambda n: min(n, 4)).items() if name in whole}
    assert identical(whole, trained)
    assert whole.keys() >= {name for name, _ in model().named_parameters()} - {"spare"}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("model", [stacked, telling, skipping])
def test_all_blocks_one_after_another_are_the_model(model, recompute):
    whole, x = model(), torch.randn(5, FEATURES, dtype=torch.float64)
    parts = Pipeline(2, recompute=recompute).split(whole)
    y = x
    for part in parts:
        y = part(y)
    assert y.equal(whole(x))
    names = [name for part in parts for name in part.state_dict()]
    assert sorted(names) == sorted(whole.state_dict()), "each under its own name, once"


def test_a_forward_is_cut_where_one_value_goes_on():
    names = [block.name for block in blocks_of(stacked())]
    assert [name for name in names if "layers" in name] == ["layers.0", "layers.1", "layers.2"]
    held = [{*block.uses} for block in blocks_of(skipping())]
    assert {"middle.0", "middle.1", "middle.2"} in held, "what goes around them is still to come"


def test_a_sequential_with_a_forward_of_its_own_is_not_taken_for_its_layers():
    class Doubled(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model, x = Doubled(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4)
    one, other = Pipeline(2).split(model)
    assert other(one(x)).equal(model(x))


def test_a_weight_that_two_blocks_use_counts_once_in_one_stage_and_is_refused_in_two_without_a_flush():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.shared, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.shared(self.shared(self.first(x)).relu()))

    assert len(blocks_of(Twice())) == 5
    assert all(isinstance(part, Chunks) for part in Pipeline(2, cut=[1]).split(Twice()))
    with pytest.raises(ConfigError, match="two stages share a parameter"):
        Pipeline(2, "pipedream", cut=[2]).split(Twice())


class Foreign(Telling):
    def blocks(self) -> list[nn.Module]:
        return [nn.Linear(2, 2)]


class Silent(Telling):
    def blocks(self) -> list[nn.Module]:
        return []


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class LossAndLogits(NamedTuple):
    loss: Tensor | None
    logits: Tensor


class OfHuggingFace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> LossAndLogits:
        for block in self.blocks:
            x = block(x)
        x = x if mask is None else x * mask
        return LossAndLogits(None if labels is None else nn.functional.cross_entropy(x, labels), x)


class OfHuggingFaceInStages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = OfHuggingFace()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).logits


def test_a_model_that_returns_an_object_is_cut_in_a_wrapper_that_returns_its_logits() -> None:
    assert len(Pipeline(2).split(OfHuggingFaceInStages())) == 2
    with pytest.raises(ConfigError, match=r"returns an object, and a stage passes on one tensor\. Wrap it in a module"):
        Pipeline(2).split(OfHuggingFace())


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Branching, r"torch\.fx cannot trace its forward \(oracles\.py, line \d+: .*; give it a method blocks\(\)"),
        (Foreign, r"Foreign\.blocks\(\) returns a Linear that is no module of it"),
        (Silent, r"Silent\.blocks\(\) returns nothing"),
        (TwoInputs, "the forward of TwoInputs must take one tensor.* It takes x, y. Wrap it in a module that calls"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_it_would_need(model, says):
    with pytest.raises(ConfigError, match=says) as caught:
        Pipeline(2).split(model())
    assert caught.value.exit_code == 2


WORDS = {"blocks", "weights", "worker", "body", "head", "stage", "chunk", "module", "graph", "code", "loss", "input"}


def test_no_name_of_a_module_or_a_weight_matters():
    """Also not the names that a Sequential, a GraphModule, or our own class have beyond those of each nn.Module."""
    taken = {name for kind in (nn.Sequential, fx.GraphModule, Chunks, Pipeline) for name in dir(kind)}
    names = sorted(name for name in WORDS | taken if not name.startswith("_") and not hasattr(nn.Module(), name))
    assert {"append", "blocks", "graph", "split"} <= {*names}
    x = torch.randn(3, FEATURES)
    models: list[nn.Module] = [
        Named(*each) for each in zip(names, names[1:] + names[:1], names[2:] + names[:2], strict=True)
    ]
    for model in (*models, Helped("first", "second", "third")):
        parts = Pipeline(2).split(model)
        out = x
        for place, part in enumerate(parts):
            assert isinstance(part, Chunks)
            assert (worker_of(part), len(chunks_of(part))) == (place, 1)
            assert len(weights_of(part, 0)) == len(list(part.parameters()))
            out = part(out)
        assert torch.equal(out, model(x)), [*model.state_dict()]
        assert {name for part in parts for name in part.state_dict()} == {*model.state_dict()}


class Keeping(nn.Module):
    """Keeps what a pass computes for the next one."""

    kept: dict[int, Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.one, self.other = {}, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        if 4 not in self.kept:
            self.kept[4] = x.new_ones(4)
        return self.other(x * self.kept[4])


class OddlyNamed(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Linear(FEATURES, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.name)(x.flatten(1))


@pytest.mark.parametrize("name", ["\\u540d", 'a"b', 'a"); (1', "a\nb"])
def test_a_name_that_torch_fx_writes_as_another_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^strategy\.stages: the name .* has a quote, a backslash or a line break"):
        blocks_of(OddlyNamed(name))


@pytest.mark.parametrize(
    ("name", "why"), [("class", "has a keyword of Python"), ("None", "has a keyword"), ("\ufb01", "has letters that")]
)
def test_a_name_that_python_reads_as_something_else_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^strategy\.stages: the name '{name}' in the model {why}"):
        blocks_of(OddlyNamed(name))


@pytest.mark.parametrize("name", ["class-1", "a b", "0", "\u540d", "x\u00b2", "match"])
def test_other_names_are_found_again(name: str) -> None:
    model, x = OddlyNamed(name), torch.randn(2, FEATURES)
    for block in blocks_of(model):
        x = block.run(model, x)
    assert x.shape == (2, CLASSES)


def test_a_forward_that_keeps_values_of_a_trace_is_refused() -> None:
    model = Keeping()
    blocks_of(model)
    with pytest.raises(ConfigError, match=r"torch\.fx cannot trace its forward"):
        blocks_of(model)


class Unrepeatable(nn.Module):
    """Its forward does `does`, which a trace does not record."""

    mean: Tensor

    def __init__(self, does: str) -> None:
        super().__init__()
        self.enter, self.head, self.does, self.count = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES), does, 0
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("which", torch.zeros(FEATURES, dtype=torch.int64))
        self.plain = torch.zeros(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        match self.does:
            case "counts":
                self.count += 1
            case "draws":
                x = x + torch.randn(FEATURES)
            case "skips":
                x = x if random.random() < 0.5 else 2 * x
            case "no_grad":
                with torch.no_grad():
                    x = self.enter.weight.sum() * x
            case "autocast":
                with torch.autocast("cpu"):
                    return self.head(self.enter(x))
            case "sets":
                self.enter.weight.data = self.enter.weight.data * 0.9
            case "decays":
                self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            case "follows":
                self.mean.add_(x.detach().mean(0))
            case "follows a part":
                self.mean[:2].add_(x.detach().mean(0)[:2])
            case "replaces":
                self.mean = self.mean * 0.9
            case "plain":
                self.plain.mul_(0.9)
            case "clamps":
                self.enter.weight.detach().clamp_(-0.2, 0.2)
            case "clamps a row":
                self.enter.weight.detach()[0].t()[:2].mul_(0.5)
            case "fills":
                self.mean[0] = x.detach().mean()
            case "decays weights":
                for weight in self.enter.parameters():
                    weight.detach().mul_(0.9)
            case "freezes":
                self.enter.requires_grad_(False)
            case "freezes by a buffer":
                self.enter.requires_grad_(False)
                x = x if self.mean.sum() < 1 else 2 * x
            case "freezes a while":
                self.enter.requires_grad_(False)
                y = self.enter(x)
                self.enter.requires_grad_(True)
                return self.head(y)
            case "finds the largest":
                torch.max(x.detach(), 0, out=(self.mean, self.get_buffer("which")))
            case "freezes a weight a while":
                weight = self.enter.weight
                self.enter.requires_grad_(False)
                y = F.linear(x, weight)
                self.enter.requires_grad_(True)
                return self.head(y)
            case "freezes afterwards":
                y = self.head(self.enter(x))
                self.enter.requires_grad_(False)
                return y
            case "evaluates":
                self.enter.eval()
                y = self.enter(x)
                self.enter.train()
                return self.head(y)
            case _:
                x = x + torch.rand_like(x) + F.dropout(x, 0.5, self.training)
        return self.head(self.enter(x))


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("counts", "it changes the attribute count"),
        ("draws", "it draws random numbers"),
        ("skips", "it draws random numbers"),
        ("no_grad", "it turns gradients or autocast on or off"),
        ("autocast", "it turns gradients or autocast on or off"),
        ("sets", "it sets the attribute data of a tensor"),
        ("decays", r"it changes the buffer mean, .*; give it a method blocks\(\)"),
        ("follows", "it changes the buffer mean,"),
        ("finds the largest", "it changes the buffer mean,"),
        ("follows a part", "it changes the buffer mean,"),
        ("replaces", "it changes the buffer mean,"),
        ("plain", "it changes the tensor plain,"),
        ("clamps", r"it changes the parameter enter\.weight,"),
        ("clamps a row", r"it changes the parameter enter\.weight,"),
        ("fills", "it changes the buffer mean,"),
        ("decays weights", r"it changes the parameter enter\.weight,"),
        ("freezes", r"it changes requires_grad of enter\.weight,"),
        ("freezes by a buffer", r"it changes requires_grad of enter\.weight,"),
        ("freezes a while", r"it changes requires_grad of enter\.weight,"),
        ("freezes a weight a while", r"it changes requires_grad of enter\.weight,"),
        ("freezes afterwards", r"it changes requires_grad of enter\.weight,"),
        ("evaluates", "it changes training of enter,"),
    ],
)
def test_a_forward_of_which_a_trace_is_not_the_whole_is_refused(does: str, said: str) -> None:
    """Stages would count, draw and skip once for all steps, and would give gradients where there are none."""
    with pytest.raises(ConfigError, match=said):
        blocks_of(Unrepeatable(does))


def test_numbers_that_a_forward_draws_in_the_shape_of_its_batch_are_drawn_in_each_step() -> None:
    model, x = Unrepeatable("else"), torch.ones(3, FEATURES)
    part = Chunks(model, [blocks_of(model)])
    assert not torch.equal(part(x), part(x))


class OfBuffers(nn.Module):
    """Uses `how` its buffers come into both halves."""

    scale: Tensor
    places: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.enter, self.head = how, nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES)
        self.register_buffer("scale", torch.ones(6))
        self.register_buffer("places", torch.ones(9, 6))

    def forward(self, x: Tensor) -> Tensor:
        match self.how:
            case "computed":
                scale = self.scale.exp() + 1
            case "of the batch's size":
                scale = self.places[: x.shape[0]] * self.scale.expand(x.shape[0], -1)
            case "in place":
                scale = self.scale.float() + 1
                scale.mul_(3)
            case "in place by the batch":
                scale = self.scale.float() + 1
                scale[:4].mul_(x.mean())
            case "item":
                scale = self.scale.sum().item()
            case _:
                scale = F.dropout(self.scale, 0.5)
        x = self.enter(x.flatten(1)) * scale
        return self.head(x.relu() * scale)


HOW = ["computed", "of the batch's size", "in place", "in place by the batch", "item", "dropped"]


@pytest.mark.parametrize("how", HOW)
def test_values_of_buffers_are_computed_in_each_pass_and_alike_in_all_stages(how: str) -> None:
    model, x = OfBuffers(how), torch.randn(5, FEATURES)
    blocks = blocks_of(model)
    for value in (0.25, 2.0):
        model.scale.fill_(value)  # as a callback would
        outputs = []
        for stages in ([blocks], [[each] for each in blocks]):
            torch.manual_seed(0)
            entered = x
            for its in stages:
                entered = Chunks(model, [its])(entered)
            outputs.append(entered)
        torch.manual_seed(0)
        assert all(torch.equal(each, model(x)) for each in outputs[:1]) and torch.equal(*outputs)


def test_a_model_is_cut_between_two_uses_of_a_value_of_its_buffers() -> None:
    assert len(blocks_of(OfBuffers("computed"))) == 6


class Asking(nn.Module):
    """Halves its values if one of them is a tensor."""

    table: Tensor

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.one, self.two = what, nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.register_buffer("table", torch.ones(8))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.one(x) if mask is None else self.one(x) * mask
        x += self.table
        is_tensor = {
            "input": lambda: torch.is_tensor(x),
            "class": lambda: type(x) is Tensor,
            "buffer": lambda: isinstance(self.table, Tensor),
            "weight": lambda: isinstance(self.one.weight, nn.Parameter),
            "itself": lambda: any(each is self.table for each in self.buffers()),
            "nothing": lambda: True,
        }
        return self.two(x / 2 if is_tensor[self.what]() else x)


@pytest.mark.parametrize("what", ["input", "class", "buffer", "weight", "itself", "nothing"])
def test_a_forward_that_takes_another_branch_in_its_trace_is_refused(what: str) -> None:
    def plan() -> None:
        batch = torch.zeros(4, FEATURES, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
        Pipeline(2, micro_batches=2).resolved(Asking(what).to("meta"), *batch, F.cross_entropy)

    if what == "nothing":
        plan()
        return
    with pytest.raises(
        ConfigError, match=r"^strategy\.stages: .* only the (forward|stages) would run aten\.div\.Tensor\. "
    ):
        plan()


class Unpacking(nn.Module):
    """Has a scripted layer, and unpacks a tensor, as attention does with queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.qkv = torch.jit.script(nn.Linear(FEATURES, 8)), nn.Linear(8, 12)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.enter(x)).unflatten(-1, (3, 4)).transpose(0, 1)
        return self.head(q * k.softmax(-1) + v)


def test_a_forward_may_unpack_a_tensor() -> None:
    inputs, targets = torch.zeros(4, FEATURES, device="meta"), torch.zeros(4, dtype=torch.int64, device="meta")
    assert Pipeline(2, cut="time", micro_batches=2).resolved(Unpacking().to("meta"), inputs, targets, F.cross_entropy)
    model, x = Unpacking(), torch.randn(4, FEATURES)
    one, other = Pipeline(2, cut=[1]).split(model)
    assert other(one(x)).equal(model(x))


class Placed(nn.Module):
    """Asserts the length of its input, and embeds its places, as GPTs are often written."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(FEATURES, 8), nn.Embedding(6, 8)
        self.layers, self.head = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        samples, length = x.shape
        assert 0 < length <= 6 and x.dim() == 2, "too long"
        padded = torch.zeros(samples, 1, 8, device=x.device)
        h = self.words(x) + self.places(torch.arange(0, length, dtype=torch.long, device=x.device)) + padded
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


def test_a_forward_may_assert_sizes_and_make_tensors_of_them() -> None:
    shapes = {"dtype": torch.int64, "device": "meta"}
    inputs, targets, arange = torch.zeros(4, 5, **shapes), torch.zeros(4, **shapes), torch.arange
    assert Pipeline(2, cut="time", micro_batches=2).resolved(Placed().to("meta"), inputs, targets, F.cross_entropy)
    assert torch.arange is arange
    model = Placed()
    one, other = Pipeline(2, cut=[2]).split(model)
    for size in ((4, 5), (1, 6)):
        x = torch.randint(FEATURES, size)
        assert other(one(x)).equal(model(x))
    with pytest.raises(
        AssertionError, match=r"^assert 0 < length <= 6 and x.dim\(\) == 2, \"too long\" \(.*test_blocks.py"
    ):
        one(torch.zeros(4, 7, dtype=torch.int64))


class Asserting(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.enter, self.head = what, nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "one of several":
            assert x.shape[1] in (5, FEATURES)
        elif self.what == "either":
            assert x.shape[1] == 5 or x.dim() == 2
        elif self.what == "the larger":
            assert max(x.shape[0], x.shape[1]) <= FEATURES
        else:
            assert x.shape[1] != 5
        return self.head(self.enter(x))


@pytest.mark.parametrize("what", ["one of several", "either", "the larger", "another"])
def test_an_assertion_that_may_hold_in_two_ways_is_refused(what: str) -> None:
    with pytest.raises(ConfigError, match=r"\(test_blocks.py, line \d+: symbolically traced variables cannot be used"):
        blocks_of(Asserting(what))


class AssigningParts(nn.Module):
    """Assigns to parts of what it computes, of which `zeros` is a value of a buffer."""

    zeros: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.register_buffer("zeros", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).tanh()
        turned, shift = torch.zeros_like(h), self.zeros * 1
        turned[:, ::2], turned[:, 1::2] = -h[:, 1::2], h[:, ::2]
        turned[:, :4] *= 2
        shift[2:] = h.mean(0)[2:]
        return self.head(self.inner(turned).tanh() + shift + h)


def assigning_parts64() -> nn.Module:
    return AssigningParts().double()


class ChangingViews(nn.Module):
    """Changes what a layer returns by a view of it, before the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        flat = h.flatten(1)
        flat += 1
        h = (self.inner(flat) + 1).view(-1, 8)
        h[:, 1] = 0
        return self.head(h.tanh())


def test_no_cut_is_before_a_change_of_a_view() -> None:
    model, x = ChangingViews().double(), torch.randn(4, FEATURES).double()
    h = x
    for block in blocks_of(model):
        h = block.run(model, h if h is x else h.detach().requires_grad_())  # as a stage has it
    assert torch.equal(h, model(x))


@pytest.mark.parametrize("cut", [[1], [2]])
def test_a_forward_may_assign_to_parts_of_what_it_computes(cut: list[int], virtual_workers: Any) -> None:
    case = Case([[4]] * 3, model=assigning_parts64)
    results = virtual_workers(2, train, Plan(Pipeline(2, "naive", cut=cut), BSP(), case))
    assert identical({**results[0]["weights"], **results[1]["weights"]}, serial(case))


class Open(nn.Module):
    """Takes any arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, *more: Tensor, scale: float = 2.0, **named: Tensor) -> Tensor:
        x = self.one(x) * scale
        for each in (*more, *named.values()):
            x = x + each
        return self.two(x)


class Passing(nn.Module):
    """Passes its arguments on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Open(), nn.Linear(CLASSES, CLASSES)

    def forward(self, *given: Tensor, scale: float = 3.0) -> Tensor:
        return self.outer(self.inner(*given, scale=scale))


def _passed_on(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(forward)
    def passed(*given: Any, **named: Any) -> Tensor:
        return forward(*given, **named)

    return passed


class Decorated(Open):
    @_passed_on
    def forward(self, x: Tensor, *, scale: float = 2.0, activation: Callable[[Tensor], Tensor] = F.gelu) -> Tensor:
        return self.two(activation(self.one(x)) * scale)


class Partial(Open):
    def _scaled(self, x: Tensor, scale: float) -> Tensor:
        return self.two(self.one(x) * scale)

    forward = partialmethod(_scaled, scale=2.0)  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize("kind", [Open, Passing, Decorated, Partial])
def test_a_trace_has_no_more_arguments_than_a_stage_gives(kind: type[nn.Module]) -> None:
    model, x = kind(), torch.randn(5, FEATURES)
    one, other = Pipeline(2, cut=[1]).split(model)
    assert torch.equal(other(one(x)), model(x))


class Following(nn.Module):
    """Does what a trace may miss: operators that change a value in place, a value that is kept, an optional input."""

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(FEATURES, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 0.5) -> Tensor:
        x = self.one(x)
        same = x
        x += 1
        x *= scale
        x = self.two(x + same)
        if mask is None:
            x = x.tanh()
        output = self.three(x)
        self.kept = x.detach().mean()
        return output


def test_a_trace_is_the_whole_forward() -> None:
    model = Following()
    x = torch.randn(5, FEATURES)
    [part] = Pipeline(1).split(model)
    assert part(x).equal(model(x))


def test_no_cut_is_before_an_operator_that_changes_a_value_in_place() -> None:
    x = torch.empty(4, FEATURES, device="meta")
    for cut in range(1, len(blocks_of(Following()))):
        Pipeline(2, cut=[cut], micro_batches=1).resolved(Following().to("meta"), x, x, lambda outputs, _: outputs.sum())


class Normed(nn.Module):
    """Changes what it computes in place, and has a module of torch's that changes its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.head = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
        self.place, self.mask = nn.Parameter(torch.ones(6)), None

    def forward(self, x: Tensor) -> Tensor:
        self.mask = torch.ones(6)
        x = (self.place + self.norm(self.enter(x.flatten(1)))) * self.mask
        x.mul_(2)[:, 0].fill_(0.0)
        return self.head(F.relu(x, inplace=True))


def test_a_forward_may_change_what_it_computes_and_a_module_of_torch_its_buffers() -> None:
    model, other, x = Normed(), Normed(), torch.randn(5, FEATURES)
    other.load_state_dict(model.state_dict())
    for _ in range(2):
        part = Chunks(model, [blocks_of(model)])
    for _ in range(2):
        assert torch.equal(part(x), other(x))
    assert identical(model.state_dict(), other.state_dict())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.recur, self.head = nn.Linear(2, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.recur(self.enter(x))
        return self.head(y[:, -1])


def test_no_cut_is_between_a_module_that_returns_a_tuple_and_what_takes_it_apart() -> None:
    model, x = Recurrent(), torch.randn(3, 5, 2)
    blocks = blocks_of(model)
    assert [{*block.uses} for block in blocks if block.uses] == [{"enter"}, {"recur"}, {"head"}]
    for block in blocks:
        x = block.run(model, x)
        assert isinstance(x, Tensor)


def test_a_layer_that_gives_no_tensor_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.LSTM(4, 6), nn.Linear(6, 2)).to("meta")
    pipeline, x = Pipeline(2, cut="time"), torch.empty(4, 5, 2, device="meta")
    with pytest.raises(ConfigError, match=r"strategy\.stages: layer 1 of the model gives a tuple") as caught:
        pipeline.resolved(model, x, x, lambda outputs, _: outputs.sum())
    assert caught.value.exit_code == 2


class Detaching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x)).detach())


@pytest.mark.parametrize("cut", ["time", "memory", "parameters", [1, 2]])
def test_a_stage_behind_the_first_that_passes_no_gradient_is_refused(cut: Any) -> None:
    x = torch.empty(8, 4, device="meta")
    with pytest.raises(ConfigError, match=r"layer 2 passes no gradient .* no cut before layer 3\.") as caught:
        Pipeline(3, cut=cut).resolved(Detaching().to("meta"), x, x, lambda outputs, _: outputs.sum())
    assert caught.value.exit_code == 2


class Binned(nn.Sequential):
    """Its second layer gives integers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), Picking(), nn.Embedding(4, 4), nn.Linear(4, 4))


class Picking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


def test_a_stage_that_begins_with_integers_is_refused_behind_the_first() -> None:
    x = torch.empty(8, 4, device="meta")
    with pytest.raises(ConfigError, match=r"strategy.cut=\[2\]: layer 2 takes torch.int64, .* Choose") as caught:
        Pipeline(2, cut=[2]).resolved(Binned().to("meta"), x, x, lambda outputs, _: outputs.sum())
    assert caught.value.exit_code == 2
    for cut in ([3], [9], "time", "memory"):  # 9 is refused where the model is split
        found = Pipeline(2, cut=cut).resolved(Binned().to("meta"), x, x, lambda outputs, _: outputs.sum())
        assert found.get("cut", [3]) == [3]


class Still(nn.Sequential):
    """Keeps its norm in evaluation."""

    def train(self, mode: bool = True) -> "Still":
        super().train(mode)
        self[1].eval()
        return self


def still() -> nn.Sequential:
    return Still(nn.Linear(4, 4), nn.BatchNorm1d(4))


def test_a_train_of_its_own_that_no_stage_calls_is_refused() -> None:
    inside = Traced()
    inside.norm = still()
    for model in (still(), inside):
        with pytest.raises(ConfigError, match=r"this Still has a train\(\) of its own, which no stage calls") as caught:
            blocks_of(model)
        assert caught.value.exit_code == 2
    assert len(blocks_of(nn.Sequential(still(), nn.Linear(4, 4)))) == 2


class Traced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(4, 4), nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        for each in self.norm:
            x = each(x)
        return self.one(x)


class Twice(nn.Module):
    """Uses one norm twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.two(self.norm(self.one(x))))


def test_a_buffer_that_one_stage_changes_and_another_has_is_refused() -> None:
    x = torch.empty(8, 4, device="meta")
    said = r"strategy.cut=\[2\]: two stages use the buffer norm\.num_batches_tracked and one changes it"
    with pytest.raises(ConfigError, match=said) as caught:
        Pipeline(2, cut=[2]).resolved(Twice().to("meta"), x, x, lambda outputs, _: outputs.sum())
    assert caught.value.exit_code == 2
    Pipeline(2, cut=[1]).resolved(Twice().to("meta"), x, x, lambda outputs, _: outputs.sum())
    fixed = Twice().to("meta")
    fixed.norm.eval()
    Pipeline(2, cut=[2]).resolved(fixed, x, x, lambda outputs, _: outputs.sum())


class Assigning(nn.Module):
    """Has a mean of its inputs, a new tensor after each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = (self.mean + x.detach().mean(0)) / 2
        return x - self.mean


@pytest.mark.parametrize("norm", [Assigning, partial(nn.BatchNorm1d, 4)], ids=["assigned", "in place"])
def test_a_buffer_that_two_places_of_a_sequential_have_is_one(norm: Callable[[], nn.Module]) -> None:
    x, shared = torch.empty(8, 4, device="meta"), norm()
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared).to("meta")
    with pytest.raises(ConfigError, match=r"strategy.cut=\[2\]: two stages use the buffer 1\.\w+ and one changes it"):
        Pipeline(2, cut=[2]).resolved(model, x, x, lambda outputs, _: outputs.sum())
    Pipeline(2, cut=[1]).resolved(model, x, x, lambda outputs, _: outputs.sum())
    own = nn.Sequential(nn.Linear(4, 4), norm(), nn.Linear(4, 4), norm()).to("meta")
    Pipeline(2, cut=[2]).resolved(own, x, x, lambda outputs, _: outputs.sum())


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x)


class Real(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(x).flatten(1)


def test_layers_of_complex_numbers_are_looked_at() -> None:
    x = torch.empty(8, 4, device="meta")
    model = nn.Sequential(nn.Linear(4, 4), Spectrum(), Real(), nn.Linear(6, 4)).to("meta")
    Pipeline(2, cut=[3]).resolved(model, x, x, lambda outputs, _: outputs.sum())


@pytest.mark.parametrize("schedule", ["gpipe", "pipedream"])
def test_the_loss_of_a_model_in_float64_has_its_digits(virtual_workers, schedule) -> None:
    case = Case([[6]])
    plan = Plan(Pipeline(2, schedule, micro_batches=2), BSP(), case)
    inputs, targets = case.step(0)
    [loss] = virtual_workers(2, train, plan)[1]["losses"]
    assert loss == pytest.approx(case.loss(case.start()(inputs), targets).item(), rel=1e-14)
