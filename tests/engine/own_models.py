"""Models, losses and data that users write: what looks at values, changes its mind in mid-run, or holds NaN."""

import secrets
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from paceline.tasks.base import Data, DataSpec, Split
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.losses.metrics import Metric


class Rows(Data):
    """Eight features, two classes. The test split's `unknown` rows hold a NaN."""

    def __init__(self, unknown: int = 0) -> None:
        self.unknown = unknown

    @property
    def spec(self) -> DataSpec:
        return DataSpec((8,), torch.float32, (), 2, train_size=64, test_size=32)

    def load(self) -> tuple[Split, Split]:
        inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
        targets = (inputs[:, 0] > 0).long()
        inputs[96 - self.unknown :, 1] = float("nan")
        return Split(inputs[:64], targets[:64]), Split(inputs[64:], targets[64:])


class InPlace(nn.Module):
    """[n, 8] -> [n, 2]; its forward changes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sub_(0.5))


class Counting(nn.Module):
    """[n, 8] -> [n, 2]; its outputs grow with the number of training steps, which `buffered` keeps in a buffer."""

    def __init__(self, buffered: bool) -> None:
        super().__init__()
        self.layer, self.width = nn.Linear(8, 2), 8
        steps = torch.zeros((), dtype=torch.int64)
        self.register_buffer("steps", steps) if buffered else setattr(self, "steps", 0)

    def forward(self, x: Tensor) -> Tensor:
        self.steps += int(self.training and not x.is_meta)
        return self.layer(x) * (1 + self.steps)


class Changing(nn.Module):
    """[n, 8] -> [n, 2]; in training step `at` (0: in each pass) it changes itself, in the way that `kind` says."""

    def __init__(self, kind: str, at: int = 3) -> None:
        super().__init__()
        self.kind, self.at, self.steps = kind, at, 0
        self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 2)
        self.long = nn.Buffer(torch.zeros(2))
        self.register_buffer("given", None)
        self.register_buffer("unsaved", None, persistent=False)
        if kind == "thawed":
            self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training and not x.is_meta
        if self.at in (0, self.steps) and self.training:
            self.change()
        return self.second(torch.relu(self.first(x.to(self.first.weight.dtype))).float())

    def change(self) -> None:
        match self.kind:
            case "thawed":
                self.first.requires_grad_(True)
            case "swapped":
                self.second = nn.Linear(4, 2)
            case "swapped_weight":
                self.second.weight = nn.Parameter(torch.zeros(2, 4))
            case "grown":
                self.second = nn.Sequential(self.second, nn.Linear(2, 2))
            case "another_dtype":
                self.first.bfloat16()
            case "another_buffer":
                self.second.seen = nn.Buffer(torch.zeros(3))
            case "another_norm":
                self.norm = nn.BatchNorm1d(2, affine=False)
            case "given_buffer":
                self.given = torch.zeros(3)
            case "longer_buffer":
                self.long = torch.cat([self.long, self.long])
            case "no_buffer":
                del self.long
            case "unsaved_buffer":
                self.own = nn.Buffer(torch.zeros(3), persistent=False)
                self.unsaved = torch.zeros(3)
                self.long = self.long + 1
            case "another_activation":
                self.activation = nn.ReLU()
            case _:
                raise AssertionError(self.kind)


class Thawing(nn.Module):
    """[n, 8] -> [n, 2]; its first layer, built to be trained, is frozen in the steps 0 and 1, and again from 4 on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not x.is_meta:
            if self.steps in (0, 2, 4):
                self.first.requires_grad_(self.steps == 2)
            self.steps += 1
        return self.second(torch.relu(self.first(x)))


class Lazy(nn.Module):
    """[n, 8] -> [n, 2]; its first layer knows its width when it sees a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LazyLinear(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class WeightNorm(nn.Module):
    """[n, 8] -> [n, 2]; the older weight_norm keeps a tensor that is no leaf as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.layer = nn.utils.weight_norm(nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Unused(nn.Module):
    """[n, 8] -> [n, 2]; nobody calls its second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)


class Shrinking(nn.Module):
    """[n, 8] -> [n, 2]; changes its weights as it trains: in place, or by other memory under the same parameter."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.head = kind, nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            for each in self.parameters():
                if self.kind == "in_place":
                    each.data.mul_(0.9)
                else:
                    each.data = each.data * 0.9
        return self.head(x)


class Synchronised(nn.Sequential):
    """[n, 8] -> [n, 2]"""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 3), nn.SyncBatchNorm(3), nn.Linear(3, 2))


class Clamped(nn.Module):
    """[n, 8] -> [n, 2]; each forward pass holds the weights of a layer to a rule, in the way that `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "in_place":
                with torch.no_grad():
                    self.first.weight.clamp_(-0.1, 0.1)
            case "data":
                self.first.weight.data.clamp_(-0.1, 0.1)
            case "replaced":
                self.first.weight.data = torch.renorm(self.first.weight.data, 2, 0, 0.1)
            case "read":
                x = x * self.first.weight.detach().norm().add_(1)
            case _:
                raise AssertionError(self.kind)
        return self.second(torch.relu(self.first(x)))


class Bypassing(nn.Module):
    """[n, 8] -> [n, 2]; its forward passes by the layer `second`, or uses its weight in another way, by `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second, self.third, self.last = (nn.Linear(8, 8) for _ in range(4))
        self.held = [self.second]
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        match self.kind:
            case "weight":
                x = nn.functional.linear(x, self.second.weight)
            case "held":
                x = self.held[0](x)
            case "penalty":
                x = self.second(x) * self.second.weight.norm()
            case "clamped":
                self.second.weight.data.clamp_(-0.1, 0.1)
                x = self.second(x)
            case "dtype":
                x = x.to(self.second.weight.dtype).view(-1, self.second.in_features)
                x = self.second(x) + self.second.weight.new_zeros(8) + self.second.bias
            case _:
                raise AssertionError(self.kind)
        return self.out(self.last(self.third(torch.relu(x))))


class FreezingLinear(nn.Linear):
    """It is frozen from the second step on."""

    steps = 0

    def forward(self, input: Tensor) -> Tensor:
        if self.training and not input.is_meta:
            self.requires_grad_(self.steps < 1)
            self.steps += 1
        return super().forward(input)


class FreezingStage(nn.Sequential):
    """[n, 8] -> [n, 2]"""

    def __init__(self) -> None:
        super().__init__(FreezingLinear(8, 4), nn.ReLU(), nn.Linear(4, 2))


class Holding(nn.Module):
    """[n, 8] -> [n, 2]; keeps a view of a layer's weights, or uses them outside of the layer, as `kind` says."""

    kept: Any

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)
        if kind == "hooked":
            self.first = nn.utils.spectral_norm(self.first)
        self.blocks = nn.Sequential(self.first, nn.Tanh(), self.second)
        weight = self.first.weight
        match kind:
            case "transpose":
                self.kept = weight.t()
            case "data":
                self.kept = [weight.data.t()]
            case "buffer":
                self.register_buffer("kept", weight.detach().t())
            case "function":
                detached = weight.detach()
                self.use = lambda x: x @ detached.t()
            case "parameter":
                self.kept = [weight]
            case _:
                pass

    def forward(self, x: Tensor) -> Tensor:
        match self.kind:
            case "transpose" | "buffer":
                x = x @ self.kept
            case "data":
                x = x @ self.kept[0]
            case "function":
                x = self.use(x)
            case "parameter":
                x = x @ self.kept[0].t()
            case "child":
                x = x @ self.first.weight.t()
            case "called":
                scaled = {name: 0.9 * each for name, each in self.blocks.named_parameters()}
                return torch.func.functional_call(self.blocks, scaled, (x,))
            case "penalty":
                return self.blocks(x) * (1 + torch.stack([each.square().mean() for each in self.parameters()]).sum())
            case _:
                pass
        return self.blocks(x)


class Remembering(nn.Module):
    """[n, 8] -> [n, 2]; each forward pass keeps its output in a buffer, which `kind` makes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)
        first = None if kind == "none" else torch.zeros(0 if kind == "empty" else 2)
        self.register_buffer("last", first, persistent=kind != "unsaved")
        self.whole = kind != "mean"

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        self.last = y.detach() if self.whole else y.detach().mean(0)
        return y


class BuiltLate(nn.Module):
    """[n, 8] -> [n, 2]; the first forward pass makes its head, or one of its parameters, as `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body = kind, nn.Linear(8, 4)
        self.head = None if kind == "layer" else nn.Linear(4, 2, bias=kind != "bias")
        if kind in ("empty", "filled"):
            self.scale = nn.Parameter(torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.head is None:
            self.head = nn.Linear(y.shape[1], 2)
        if self.kind == "bias" and self.head.bias is None:
            self.head.bias = nn.Parameter(torch.zeros(2))
        if self.kind == "empty" and not len(self.scale):
            self.scale = nn.Parameter(torch.ones(2))
        if self.kind == "filled":
            self.scale.data = torch.ones(2, device=x.device)
        return self.head(y)


class WithLoss(nn.Module):
    """[n, 8] -> [n, 2], and a loss that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(x)
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels.view(7, -1))}


class Tokens(Data):
    """Sixteen tokens, each labelled by its parity."""

    @property
    def spec(self) -> DataSpec:
        return DataSpec((16,), torch.int64, (16,), 2, train_size=64, test_size=32)

    def load(self) -> tuple[Split, Split]:
        ids = (20 * torch.arange(16)).repeat(96, 1)
        return Split(ids[:64], ids[:64] % 2), Split(ids[64:], ids[64:] % 2)


class Tagger(nn.Module):
    """[n, 16] int64 -> [n, 16, 2]; has embeddings of 256 ids."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        self.looks, self.table, self.head = looks, nn.Embedding(256, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.looks:
            tokens.max().item()
        return self.head(self.table(tokens))


class Looked(nn.Module):
    """[n, 8] -> [n, 2]; has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.table((4 * x.detach().sum(1)).long().clamp(0, 19)))


class Unfit(CrossEntropy):
    """A loss that cannot be trained, in the way that `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind in ("parameter", "frozen"):
            self.scale = nn.Parameter(torch.ones(()), requires_grad=kind == "parameter")

    def loss(self, outputs: Tensor, targets: Tensor) -> Any:
        loss = nn.functional.cross_entropy(outputs, targets)
        match self.kind:
            case "vector":
                return nn.functional.cross_entropy(outputs, targets, reduction="none")
            case "number":
                return float(loss.detach())
            case "pair":
                return loss, 1
            case "detached":
                return loss.detach()
            case "raises":
                targets = targets.view(7, -1)
                return loss
            case "count":
                return (outputs.argmax(1) != targets).sum()
            case _:
                return loss


class MeanError(Metric):
    """From 1/2 to 1 if it declares that smaller is better, else from 5 to 10."""

    name = "error"

    def __init__(self, larger_is_better: bool) -> None:
        self.larger_is_better = larger_is_better

    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        wrong = (outputs.argmax(1) != targets).double()
        return ((1 + wrong) * (5 if self.larger_is_better else 0.5)).sum()

    def score(self, tally: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
        return tally.item() / len(targets)


class Erring(CrossEntropy):
    """Reports an error; `declared`: it says that smaller is better."""

    def __init__(self, declared: bool) -> None:
        super().__init__()
        self.metric = MeanError(not declared)


class Defaulting(nn.Module):
    """[n, 8] -> [n, 2]; its constructor leaves another default dtype behind."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)
        torch.set_default_dtype(torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Stepping(torch.optim.Optimizer):
    """Plain SGD, in place or by new memory under its parameters."""

    def __init__(self, params: Any, renews: bool = False) -> None:
        self.renews = renews
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each in self.param_groups[0]["params"]:
            if self.renews:
                each.data = each.data - 0.1 * each.grad
            else:
                each -= 0.1 * each.grad


class FromSets(torch.optim.Adam):
    """Adam with its matrices and its vectors in groups, each in an order of its own process, as that of a set."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        params = list(params)
        groups = [[each for each in params if (each.dim() > 1) == whole] for whole in (True, False)]
        for group in groups:
            secrets.SystemRandom().shuffle(group)
        super().__init__([{"params": group} for group in groups], lr=lr)


class Reversed(torch.optim.Optimizer):
    """SGD from the last parameter to the first, each with a rate of its own, which it keeps in a list of that order."""

    def __init__(self, params: Any) -> None:
        params = list(params)[::-1]
        super().__init__(params, {})
        self.rates = [0.1 / (i + 1) for i in range(len(params))]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for each, rate in zip(self.param_groups[0]["params"], self.rates, strict=True):
            each -= rate * each.grad


class Alike(nn.Sequential):
    """[n, 8] -> [n, 2]; its layers have weights of one shape, but for the last."""

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 2))


class Raising(torch.optim.SGD):
    """Its step raises, if `always` also on the meta device."""

    def __init__(self, params: Any, always: bool) -> None:
        self.always = always
        super().__init__(params, lr=0.1)

    def step(self, closure: Any = None) -> Any:
        if self.always or not self.param_groups[0]["params"][0].is_meta:
            raise KeyError("momentum")
        return super().step()


class Transposed(nn.Module):
    """[n, 8] -> [n, 2]; two parameters are one memory, as in an autoencoder that ties its weights by a transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 2)
        self.second.weight = nn.Parameter(self.first.weight.t())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(x))))


class _Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).double()


class InFloat64(nn.Sequential):
    """Digits in float64, where the order of a sum changes a digit that no other rounding reaches."""

    def __init__(self) -> None:
        layers = [nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10)]
        super().__init__(_Doubled(), *layers)
        self.double()


class Unseeded(nn.Module):
    """[n, 8] -> [n, 2]; its first weights, frozen ones and a buffer do not follow from the seed."""

    mask: Tensor

    def __init__(self, sizes: bool = False) -> None:
        super().__init__()
        drawn = torch.Generator().manual_seed(secrets.randbits(62))
        width = int(torch.randint(2, 1000, (), generator=drawn)) if sizes else 4
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 2)
        self.first.requires_grad_(False)
        self.register_buffer("mask", torch.rand(width, generator=drawn))
        for each in self.parameters():
            nn.init.normal_(each, std=0.5, generator=drawn)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)) * self.mask)


OUTSIDE = nn.Parameter(torch.ones(8, 2))
newest: nn.Parameter


class Outside(nn.Module):
    """[n, 8] -> [n, 2]; forward uses a parameter that a global of this module names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        global newest
        self.kind, self.layer, newest = kind, nn.Linear(8, 8), nn.Parameter(torch.randn(8, 2))
        if kind != "alone":
            self.weight = OUTSIDE if kind == "shared" else newest
        OUTSIDE.requires_grad_(kind != "frozen")

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ (newest if self.kind == "newest" else OUTSIDE)


class Apart(nn.Module):
    """[n, 8] -> [n, 2]; forward changes weights by its own batch, in the way that `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.begun = kind, False
        self.table = nn.Embedding(64, 8, max_norm=0.5 if kind == "max_norm" else None)
        self.head, self.scale = nn.Linear(8, 2), nn.Parameter(torch.ones(8), requires_grad=kind != "frozen")
        self.own = torch.optim.SGD([self.scale], lr=0.1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not x.is_meta:
            self.change(x)
        return self.head(self.table((x[:, 0] * 16 + 32).long().clamp(0, 63)) + x * self.scale)

    def change(self, x: Tensor) -> None:
        if self.kind == "own_optimizer":
            with torch.enable_grad():
                (self.scale * x.mean(0)).sum().backward()
            self.own.step()
            self.own.zero_grad()
        elif self.kind in ("from_batch", "frozen") and not self.begun:
            self.scale.data.copy_(1 / x.std(0))
            self.begun = True


class _Spread(nn.Module):
    """[n, 16] -> [n, 16]; has no weights, and keeps much for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.repeat(1, 200)).view(len(x), 200, -1).mean(1)


class Lopsided(nn.Sequential):
    """Digits: the first layers have the weights, the last ones the activations."""

    def __init__(self) -> None:
        first = [nn.Flatten(), nn.Linear(64, 200), nn.Linear(200, 64), nn.Linear(64, 16), _Spread()]
        super().__init__(*first, nn.Linear(16, 16), _Spread(), nn.Linear(16, 16), _Spread(), nn.Linear(16, 10))


class Falling(torch.optim.Optimizer):
    """SGD whose rate falls with its steps, which it counts in its groups, under a name, or under its first parameter;
    or with the last two gradients of each parameter, which it keeps in a list.
    """

    def __init__(self, params: Any, kind: str) -> None:
        self.kind = kind
        super().__init__(params, {"lr": 0.1, "count": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        match self.kind:
            case "name":
                place = self.state["all"]  # pyright: ignore[reportArgumentType]
            case "first":
                place = self.state[group["params"][0]]
            case _:
                place = group if self.kind == "group" else {}
        place["count"] = place.get("count", 0) + 1
        for each in group["params"]:
            last = [each.grad]
            if self.kind == "list":
                last = self.state[each]["last"] = [*self.state[each].get("last", []), each.grad.clone()][-2:]
            each -= group["lr"] / place["count"] * sum(last)


class Saving(Falling):
    """Counts its steps in an attribute, and saves that under keys of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, "group")
        self.seen, self.sum = 0, torch.zeros(())

    def step(self, closure: Any = None) -> Any:
        self.seen, self.sum = self.seen + 1, self.sum + 1
        self.param_groups[0]["count"] = (self.seen + int(self.sum)) // 2
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": self.seen, "sum": self.sum}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rest = dict(state_dict)
        self.seen, self.sum = rest.pop("seen"), rest.pop("sum")
        super().load_state_dict(rest)


class RunningNorm(nn.Module):
    """[n, 8] -> [n, 8], less a running mean, in training too."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return x - self.mean


class RunningNorms(nn.Sequential):
    """[n, 8] -> [n, 2]."""

    def __init__(self) -> None:
        super().__init__(RunningNorm(), nn.Linear(8, 8), nn.ReLU(), RunningNorm(), nn.Linear(8, 2))


class Named(nn.Linear):
    """[n, 8] -> [n, 2], with the bias that its `name` says."""

    def __init__(self, name: str = "plain") -> None:
        super().__init__(8, 2, bias=name == "biased")


class Columns(nn.Linear):
    """[n, 8] -> [n, 2]; its weights stand in memory column by column, as after a transposition."""

    def __init__(self) -> None:
        super().__init__(8, 2)
        self.weight.data = self.weight.detach().t().contiguous().t()


class Bounded(nn.Module):
    """[n, 8] -> [n, 2]; bounds a weight in each pass, as CLIP does its scale."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 2), nn.Parameter(torch.full((1,), 3.0), requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale.clamp_(0, 2)
        return self.layer(x) * self.scale


class Ungraded(nn.Linear):
    """[n, 8] -> [n, 2]; its forward is under no_grad, or detaches its outputs."""

    def __init__(self, detaches: bool = False) -> None:
        super().__init__(8, 2)
        self.detaches = detaches

    def forward(self, input: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.detaches):
            return super().forward(input).detach()


class OfIntegers(nn.Module):
    """[n, 1, 8, 8] -> [n, 10]; its forward makes integers of its inputs, or detaches them."""

    def __init__(self, detaches: bool = False) -> None:
        super().__init__()
        self.detaches = detaches
        self.embedding, self.layer = nn.Embedding(32, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x.detach() if self.detaches else self.embedding((16 * x).long()).mean(1))
