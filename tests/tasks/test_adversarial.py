"""FGSM and PGD: closed forms on linear models, balls and ranges, random starts, targets; plain loops in torch."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.batches import lone
from paceline.tasks.adversarial.attacks import default_step, evaluating, fgsm, pgd
from paceline.tasks.adversarial.noise import normal, uniform
from paceline.tasks.adversarial.robust import InputAttack, Method, Signs, robustness, zero_gradients
from paceline.tasks.adversarial.threat import L2, NORMS, LInf, NormName, Threat
from paceline.tasks.base import Split
from paceline.tasks.data.digits import Digits
from paceline.tasks.errors import SampleError
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.losses.hinge import Hinge
from paceline.tasks.models.mlp import MLP

FAR = 1e6  # a range that nothing leaves
BOTH = pytest.mark.parametrize("norm", NORMS)


def threat(norm: NormName, eps: float, low: float = -FAR, high: float = FAR) -> Threat:
    """`eps` in the units of what the model is given."""
    return Threat(NORMS[norm], eps / (high - low), low, high)


def linear(seed: int = 0, features: int = 12) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(features, 2).double()


def small() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.Tanh(), nn.Linear(20, 4))


def batch(n: int = 9) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(n, 1, 4, 4), torch.randint(4, (n,))


# -- on a linear model


@pytest.mark.parametrize("loss", [CrossEntropy().loss, Hinge().loss])
@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_the_margin_of_a_linear_model_drops_by_eps_times_the_dual_norm_of_its_weights(norm, dual, loss) -> None:
    model, x, y = linear(), torch.randn(30, 12, dtype=torch.float64), torch.arange(30) % 2
    w = (model.weight[1] - model.weight[0]).detach()

    def margin(x: Tensor) -> Tensor:
        outputs = model(x).detach()
        return (outputs[:, 1] - outputs[:, 0]) * (2 * y - 1)

    with torch.no_grad():
        model.weight.mul_(1e-3)  # so that no sample is beyond the hinge
        w = w * 1e-3
    eps = 0.3
    for changed in (
        fgsm(model, loss, x, y, threat(norm, eps)),
        pgd(model, loss, x, y, threat(norm, eps), 7, 0.25 * eps / (2 * FAR)),
    ):
        dropped = margin(x) - margin(changed)
        assert torch.allclose(dropped, (eps * w.norm(dual)).expand(30), rtol=1e-9)


@BOTH
def test_one_step_of_pgd_of_size_eps_from_the_sample_is_fgsm_to_the_bit(norm: NormName) -> None:
    (x, y), model, of = batch(), small(), Threat(NORMS[norm], 0.2, 0.0, 1.0)
    one = fgsm(model, F.cross_entropy, x, y, of)
    other = pgd(model, F.cross_entropy, x, y, of, steps=1, step_size=0.2)
    assert torch.equal(one, other) and not torch.equal(one, x)


def test_fgsm_is_the_papers_line_and_pgd_a_loop_of_it_in_plain_torch() -> None:
    (x, y), model, eps, a = batch(), small(), 0.1, 0.03
    of = Threat(LInf(), eps, 0.0, 1.0)

    def plain(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        F.cross_entropy(model(x), y).backward()
        return x.grad.sign()

    torch.testing.assert_close(fgsm(model, F.cross_entropy, x, y, of), (x + eps * plain(x)).clamp(0, 1))
    wanted = (x + eps * (2 * torch.rand(x.shape) - 1)).clamp(0, 1)
    start = (wanted - x) / eps
    for _ in range(5):
        wanted = wanted + a * plain(wanted)
        wanted = (x + (wanted - x).clamp(-eps, eps)).clamp(0, 1)
    found = pgd(model, F.cross_entropy, x, y, of, 5, a, start)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_pgd_in_l2_is_a_loop_in_plain_torch() -> None:
    (x, y), model, eps, a = batch(), small(), 0.7, 0.2
    wanted = x.clone()
    for _ in range(6):
        leaf = wanted.clone().requires_grad_()
        F.cross_entropy(model(leaf), y).backward()
        g = leaf.grad
        assert g is not None
        d = wanted + a * g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1) - x
        d = d * (eps / d.flatten(1).norm(dim=1)).clamp(max=1).view(-1, 1, 1, 1)
        wanted = (x + d).clamp(0, 1)
    found = pgd(model, F.cross_entropy, x, y, Threat(L2(), eps, 0.0, 1.0), 6, a)
    torch.testing.assert_close(found, wanted)


# -- balls and ranges


def test_projections_are_exact() -> None:
    d = torch.tensor([[3.0, -4.0, 0.5], [0.25, -0.5, 0.0]], dtype=torch.float64)
    assert LInf().project(d, 0.75).tolist() == [[0.75, -0.75, 0.5], [0.25, -0.5, 0.0]]
    d = torch.tensor([[3.0, -4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    assert L2().project(d, 2.5).tolist() == [[1.5, -2.0], [0.3, 0.4], [0.0, 0.0]]
    assert L2().project(d, 0.0).tolist() == [[0.0, 0.0]] * 3 and LInf().project(d, 0.0).abs().max() == 0


def test_the_l2_direction_of_gradients_whose_squares_are_no_numbers_any_more_is_of_length_1() -> None:
    g = torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [0.0, 0.0]])
    torch.testing.assert_close(L2().direction(g), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))


@BOTH
@pytest.mark.parametrize("towards", [False, True])
def test_what_an_attack_gives_is_within_eps_and_within_the_range(norm: NormName, towards: bool) -> None:
    (x, y), model = batch(), small()
    x = (x * 1.4 - 0.2).clamp(0, 1)  # some on the edge of the range
    scaled = x * 3 - 1  # a data set that standardises: the range is -1 to 2
    of = Threat(NORMS[norm], 0.3, -1.0, 2.0)
    start = of.norm.start(torch.arange(len(x)), x.shape[1:], "a place")
    for changed in (
        fgsm(model, F.cross_entropy, scaled, y, of, towards),
        pgd(model, F.cross_entropy, scaled, y, of, 9, 0.2, start, towards),
    ):
        assert changed.min() >= -1 and changed.max() <= 2
        length = of.norm.of((changed - scaled).double()) / 3
        assert 0.2 < length.max() <= 0.3 * (1 + 1e-6) and length.min() > 0.05


@BOTH
def test_eps_0_leaves_samples_as_they_are(norm: NormName) -> None:
    (x, y), model, of = batch(), small(), Threat(NORMS[norm], 0.0, 0.0, 1.0)
    start = of.norm.start(torch.arange(len(x)), x.shape[1:], "a place")
    assert torch.equal(pgd(model, F.cross_entropy, x, y, of, 3, 0.1, start), x)
    assert torch.equal(fgsm(model, F.cross_entropy, x, y, of), x)


def test_the_range_of_the_digits_is_that_of_their_pixels_to_the_bit() -> None:
    train, test = Digits().load()
    pixels = torch.cat([lone(train.samples), lone(test.samples)])
    assert Digits().spec.range == (pixels.min().item(), pixels.max().item())


# -- where attacks begin


def test_noise_follows_from_the_samples_number_alone() -> None:
    all_at_once = uniform(torch.arange(100), (3, 5), 7, "x")
    assert torch.equal(uniform(torch.tensor([41, 7]), (3, 5), 7, "x"), all_at_once[[41, 7]])
    assert not torch.equal(uniform(torch.arange(100), (3, 5), 8, "x"), all_at_once)
    assert all_at_once.min() >= 0 and all_at_once.max() < 1


def test_noise_is_spread_evenly_and_independent() -> None:
    u = uniform(torch.arange(2000), (50,), "u").double()
    counts = (u.flatten() * 20).long().bincount(minlength=20)
    chi_square = ((counts - 5000.0).square() / 5000).sum().item()
    assert chi_square < 43.8  # 19 degrees of freedom, 1 in 1,000
    neighbours = [(u[:, :-1], u[:, 1:]), (u[:-1], u[1:])]
    assert all(abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.012 for a, b in neighbours)
    n = normal(torch.arange(2000), (50,), "n").double()
    assert abs(n.mean()) < 0.013 and abs(n.var() - 1) < 0.02 and abs((n**4).mean() - 3) < 0.15


def test_starts_fill_the_ball() -> None:
    samples = torch.arange(4000)
    distance = L2().of(L2().start(samples, (6,), "d"))
    for r in (0.5, 0.8, 1.0):
        assert abs((distance <= r * (1 + 1e-6)).double().mean() - r**6) < 0.025
    start = LInf().start(samples, (6,), "d")
    assert start.abs().max() <= 1 and abs(start.mean()) < 0.01 and abs(start.var() - 1 / 3) < 0.01


# -- the model is left as it was


def test_an_attack_is_on_the_model_in_evaluation_and_leaves_it_as_it_was() -> None:
    (x, y), of = batch(), Threat(LInf(), 0.1, 0.0, 1.0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    model[2].eval()  # a user's frozen norm
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    drawn = torch.random.get_rng_state()
    one = pgd(model, F.cross_entropy, x, y, of, 3, 0.05)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert [each.training for each in model] == [True, True, False, True, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    with evaluating(model):
        assert torch.equal(pgd(model, F.cross_entropy, x, y, of, 3, 0.05), one)


# -- accuracy that is left


def trained() -> tuple[nn.Module, Split]:
    """Digits, to some 90 %."""
    train, test = Digits(limit=600).load()
    torch.manual_seed(0)
    model = MLP(Digits().spec, hidden=[32])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(train.inputs), train.targets).backward()
        optimizer.step()
    return model, test


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Split]:
    return trained()


def attack(method: Method, eps: float, **knobs: Any) -> InputAttack:
    bounds = Digits().spec.range
    assert bounds is not None
    low, high = bounds
    steps = knobs.pop("steps", 10)
    return InputAttack(method, Threat(LInf(), eps, low, high), steps, default_step(eps, steps), **knobs)


def accuracy(model: nn.Module, test: Split, each: InputAttack, batch_size: int = 512) -> float:
    return robustness(CrossEntropy(), model, test, each, batch_size).accuracy


class Shifting(nn.Module):
    """Shifts its inputs, `in_place` or not, and asks a model."""

    def __init__(self, model: nn.Module, in_place: bool) -> None:
        super().__init__()
        self.model, self.in_place = model, in_place

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.sub_(0.5) if self.in_place else x - 0.5)


@pytest.mark.parametrize("method", ["noise", "fgsm", "pgd"])
def test_a_model_may_change_what_it_is_given(digits, method: Method) -> None:
    model, test = digits
    kinds = (Shifting(model, in_place) for in_place in (True, False))
    found = [robustness(CrossEntropy(), each, test, attack(method, 0.05), most=60) for each in kinds]
    assert found[0] == found[1] and 0 < found[0].accuracy < 1


def test_robust_accuracy_is_the_share_that_no_restart_misleads(digits) -> None:
    model, test = digits
    each = attack("pgd", 0.1, restarts=2, seed=4)
    with torch.no_grad():
        right = model(test.inputs).argmax(1) == test.targets
    for changed in each.points(model, CrossEntropy(), test.inputs, test.targets, torch.arange(len(test))):
        right &= model(changed).argmax(1) == test.targets
    assert accuracy(model, test, each) == pytest.approx(right.double().mean().item(), abs=1e-12)


def test_robust_accuracy_is_that_of_the_sample_whatever_the_batch_and_falls_with_eps_to_none(digits) -> None:
    model, test = digits
    assert accuracy(model, test, attack("pgd", 0.1), 512) == accuracy(model, test, attack("pgd", 0.1), 100)
    with torch.no_grad():
        clean = (model(test.inputs).argmax(1) == test.targets).double().mean().item()
    falling = [accuracy(model, test, attack("pgd", eps)) for eps in (0.0, 0.05, 0.1, 0.2, 0.5)]
    assert falling[0] == pytest.approx(clean) and falling == sorted(falling, reverse=True) and falling[-1] < 0.02


def test_pgd_does_more_harm_than_fgsm_and_that_more_than_noise(digits) -> None:
    model, test = digits
    found = [accuracy(model, test, attack(method, 0.1)) for method in ("pgd", "fgsm", "noise")]
    assert found == sorted(found) and found[0] < found[2] - 0.2


def test_more_restarts_never_raise_it(digits) -> None:
    model, test = digits
    found = [accuracy(model, test, attack("pgd", 0.08, restarts=n, steps=2)) for n in (1, 2, 5)]
    assert found == sorted(found, reverse=True) and found[-1] < found[0], "each restart begins in a place of its own"


@pytest.mark.parametrize("target", ["next", "least_likely", 3])
def test_a_targeted_attack_leads_to_its_target(digits, target) -> None:
    model, test = digits
    near, far = (robustness(CrossEntropy(), model, test, attack("pgd", eps, target=target)) for eps in (0.02, 0.3))
    assert near.reached is not None and far.reached is not None
    assert (
        near.reached < 0.3
        and far.reached > 0.7
        and robustness(CrossEntropy(), model, test, attack("pgd", 0.1)).reached is None
    )
    x, y = test.inputs[:50], test.targets[:50]
    each = attack("pgd", 0.1, target=target, random_start=False)
    wanted = each.targets_of(model(x).detach(), y)
    [changed] = each.points(model, CrossEntropy(), x, wanted, torch.arange(50))
    before, after = (F.cross_entropy(model(inputs), wanted, reduction="none") for inputs in (x, changed))
    assert (after <= before + 1e-6).all()


def test_samples_count_by_their_weights_and_images_by_their_pixels() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(1, 2, 1)  # two classes for each pixel
    x, y = torch.rand(6, 1, 3, 3), torch.randint(2, (6, 3, 3))
    weights = torch.rand(6, 3, 3)

    class Pixels(CrossEntropy):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(x).permute(0, 2, 3, 1)

    each = InputAttack("fgsm", Threat(LInf(), 0.1, 0.0, 1.0))
    found = robustness(Pixels(), Last(), Split(x, y, weights), each)
    [changed] = each.points(Last(), Pixels(), x, y, torch.arange(6))
    counts = [((Last()(inputs).argmax(-1) == y) * weights).flatten(1).sum(1) for inputs in (x, changed)]
    assert found.accuracy == pytest.approx((torch.minimum(*counts).sum() / weights.sum()).item(), rel=1e-6)


def test_data_that_leave_their_range_are_refused(digits) -> None:
    model, test = digits
    outside = Split(test.inputs[:4] + 9, test.targets[:4])
    with pytest.raises(SampleError, match=r"values from .* and the data's spec\.range is"):
        accuracy(model, outside, attack("fgsm", 0.1))


# -- masked gradients


def test_a_model_that_hides_its_gradient_is_doubted_and_an_honest_one_is_not(digits) -> None:
    model, test = digits

    class Stairs(nn.Module):
        """Inputs are rounded, of which the gradient is 0."""

        def forward(self, x: Tensor) -> Tensor:
            return model(torch.round(x * 2) / 2)

    honest, hidden = (zero_gradients(CrossEntropy(), each, test, 512, "cpu") for each in (model, Stairs()))
    assert honest == 0 and hidden == 1
    for judged, zero, doubted in ((model, honest, False), (Stairs(), hidden, True)):
        ways: list[tuple[Method, float]] = [("pgd", 0.1), ("fgsm", 0.1), ("noise", 0.1), ("pgd", 0.5)]
        pgd_, fgsm_, noise, half = (accuracy(judged, test, attack(*of)) for of in ways)
        doubts = Signs(zero, half, noise).doubts(pgd_, fgsm_, "pgd", 0.1, len(test))
        assert bool(doubts) == doubted, doubts
    assert any("the gradient by the input is exactly 0 for 100%" in doubt for doubt in doubts)
    assert any("half the range" in doubt for doubt in doubts)


def test_steps_reach_the_edge_from_anywhere() -> None:
    assert default_step(0.1, 20) * 20 >= 2 * 0.1 and math.isclose(default_step(8 / 255, 10), 2 / 255)


def test_a_model_and_a_loss_that_change_what_they_are_given_are_attacked_as_others_are() -> None:
    (x, y), model, of = batch(), small(), Threat(LInf(), 0.1, 0.0, 1.0)

    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return model(x.mul_(0.5))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets.add_(1).remainder_(4))

    wanted = pgd(nn.Sequential(Half(), model), lambda o, t: F.cross_entropy(o, (t + 1) % 4), x, y, of, 3, 0.05)
    given = x.clone(), y.clone()
    assert torch.equal(pgd(InPlace(), loss, x, y, of, 3, 0.05), wanted)
    assert torch.equal(x, given[0]) and torch.equal(y, given[1])


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5
