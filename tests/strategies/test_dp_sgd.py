"""privacy=dp_sgd against a plain loop over samples: what is clipped, what noise is added, and what that spends."""

import math
import re
from dataclasses import replace

import pytest
import torch
from oracles import (
    ROUNDING,
    Case,
    Plan,
    Weights,
    clipped_sums,
    distance,
    identical,
    images64,
    mlp,
    mlp64,
    momentum,
    train,
    weights_of,
    workers_of,
)
from scipy import stats
from scipy.special import gammaln
from torch import nn

from paceline.compat import opacus
from paceline.conf.errors import ConfigError
from paceline.engine import plan, prepare, run
from paceline.exchange.privacy import DPSGD, Budget
from paceline.exchange.privacy.accountant import ORDERS, epsilon_as_dealt, epsilon_of, noise_for
from paceline.exchange.privacy.clipping import ROUNDING as SLACK
from paceline.exchange.privacy.clipping import factors
from paceline.exchange.privacy.per_sample import PerSample
from paceline.strategies import Strategy
from paceline.strategies.core.batch import Batch
from paceline.strategies.core.errors import MissingToolError, NotFiniteError
from paceline.strategies.core.setting import Setting
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.single import Single
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.testing.fabrics import FABRICS
from paceline.tracking.summaries import row_of

slow = pytest.mark.slow
C = 0.5  # gradients of the cases' samples are from 0.3 to 3 long
UNEVEN = [[3, 2], [1, 1], [2, 0]]  # samples of two replicas
IMAGES = (1, 8, 8)


def loop(case: Case, clip: float) -> Weights:
    """Plain torch, one sample after another, without noise."""
    model = case.start()
    optimizer = case.optimizer(model.parameters())
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        sums = clipped_sums(case, model, inputs, targets, clip)
        for parameter, total in zip(model.parameters(), sums, strict=True):
            parameter.grad = total / len(targets)
        optimizer.step()
    return weights_of(model)


def trained(
    strategy: Strategy, sync: BSP | NaiveBSP, case: Case, privacy: DPSGD | None, accumulate: int = 1
) -> Weights:
    """By all replicas, on the virtual cluster; what the first has."""
    strategy.configure(Setting(privacy=privacy))
    planned = Plan(strategy, sync, case, accumulate=accumulate)
    return FABRICS["virtual"](workers_of(planned), train, planned)[0]["weights"]


@pytest.mark.parametrize("at_once", [None, 1, pytest.param(2, marks=slow)])
@pytest.mark.parametrize(("model", "shape"), [(mlp64, (6,)), (images64, IMAGES)])
def test_without_noise_it_is_a_plain_loop_over_samples(model, shape, at_once) -> None:
    case = Case([[5], [1], [4]], model, shape=shape)
    got = trained(Single(), BSP(), case, DPSGD(clip=C, noise=0.0, at_once=at_once))
    assert distance(got, loop(case, C)) < ROUNDING
    assert distance(got, loop(case, 2 * C)) > 1e-3, "something is clipped"


@pytest.mark.parametrize("sync", [BSP(), BSP(shard="gradients"), NaiveBSP(), BSP(find_unused=True)])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_replicas_together_are_the_loop_over_all_samples(sync, accumulate) -> None:
    case = Case(UNEVEN)
    got = trained(DataParallel(), sync, case, DPSGD(clip=C, noise=0.0), accumulate)
    assert distance(got, loop(case, C)) < ROUNDING


def test_what_no_sample_exceeds_changes_nothing_but_rounding() -> None:
    case = Case(UNEVEN)
    plain = trained(DataParallel(), BSP(), case, None)
    assert distance(trained(DataParallel(), BSP(), case, DPSGD(clip=1e6, noise=0.0)), plain) < ROUNDING


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
def test_no_clipped_gradient_is_longer_than_clip_to_the_last_bit(scale: float) -> None:
    drawn = torch.Generator().manual_seed(0)
    pieces = [scale * torch.randn(200, *shape, generator=drawn) for shape in ((40, 3), (7,), ())]
    for clip in (0.1 * scale, 11.0 * scale, 100 * scale):
        kept = factors(pieces, clip, "it").float()
        rows = torch.cat(
            [(piece * kept.view(-1, *[1] * (piece.dim() - 1))).view(200, -1) for piece in pieces], 1
        ).double()
        norms, before = rows.norm(dim=1), torch.cat([piece.view(200, -1) for piece in pieces], 1).double().norm(dim=1)
        assert bool((norms <= clip).all())
        assert bool((norms >= torch.minimum(before, torch.tensor(clip)) * (1 - 2 * SLACK)).all()), "and no shorter"
        assert bool((kept[before < clip * (1 - SLACK)] == 1).all()), "what is short enough is left alone"


def test_a_gradient_of_zeros_stays_and_one_that_is_not_finite_ends_the_run() -> None:
    assert factors([torch.zeros(2, 3)], 1.0, "it").tolist() == [1, 1]
    with pytest.raises(NotFiniteError, match="the gradient of a sample of worker 3 is not finite") as caught:
        factors([torch.tensor([[1.0], [math.nan]])], 1.0, "the gradient of a sample of worker 3")
    assert caught.value.exit_code == 6


# -- noise


def noise_of(sizes: list[int], pieces: int = 1, seed: int = 0, step: int = 0, sigma: float = 2.0) -> torch.Tensor:
    """Of the sum over all samples of replicas with so many: what noise made of it."""
    torch.manual_seed(0)
    model, found = nn.Linear(40, 50).double(), []
    inputs, targets = torch.randn(sum(sizes), 40, dtype=torch.float64), torch.randint(0, 50, (sum(sizes),))
    for noise in (sigma, 0.0):
        total = torch.zeros(2050, dtype=torch.float64)
        for replica, (x, y) in enumerate(zip(inputs.split(sizes), targets.split(sizes), strict=True)):
            own = PerSample(model, nn.functional.cross_entropy, DPSGD(C, noise, seed=seed), replica)
            for a, b in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
                model.zero_grad()
                own.loss(model, Batch(a, b, sum(sizes), step)).backward()
                total += len(a) * torch.cat(
                    [each.grad.flatten() for each in model.parameters() if each.grad is not None]
                )
        found.append(total)
    return found[0] - found[1]


@pytest.mark.parametrize(("sizes", "pieces"), [([4], 1), ([3, 2, 1], 1), ([4, 4], 2)])
def test_the_noise_of_a_steps_sum_is_normal_with_sigma_clip_however_many_share_it(sizes, pieces) -> None:
    drawn = noise_of(sizes, pieces)
    n, std = len(drawn), 2.0 * C
    assert abs(float(drawn.mean())) < 4 * std / math.sqrt(n)
    assert float(drawn.var()) == pytest.approx(std**2, rel=4 * math.sqrt(2 / n))
    assert stats.kstest(drawn.numpy() / std, "norm").pvalue > 1e-3


def test_noise_repeats_with_its_seed_and_step_and_with_no_other() -> None:
    first = noise_of([4])
    assert torch.equal(first, noise_of([4]))
    for other in (noise_of([4], seed=1), noise_of([4], step=1)):
        assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 4 / math.sqrt(len(first))


def test_replicas_draw_noise_of_their_own_and_stay_alike() -> None:
    case = replace(Case([[2, 2]]), optimizer=momentum)
    strategy = DataParallel()
    strategy.configure(Setting(privacy=DPSGD(clip=C, noise=1.0)))
    planned = Plan(strategy, BSP(), case)
    one, other = (each["weights"] for each in FABRICS["virtual"](2, train, planned))
    assert identical(one, other)


# -- the accountant


def renyi(alpha: int, q: float, sigma: float) -> float:
    """Mironov, Talwar and Zhang 2019, section 3.3, of a whole order alpha: of one step."""
    k = torch.arange(alpha + 1, dtype=torch.float64).numpy()
    binomials = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
    terms = binomials + k * math.log(q) + (alpha - k) * math.log1p(-q) + (k * k - k) / (2 * sigma**2)
    return float(torch.logsumexp(torch.from_numpy(terms), 0)) / (alpha - 1)


MNIST = Budget(60_000, 256 / 60_000, 60 * 60_000 // 256, 60)  # of the DP-SGD tutorial of TensorFlow Privacy


def test_the_spent_epsilon_is_that_of_the_published_tutorial() -> None:
    spent = {alpha: MNIST.steps * renyi(alpha, MNIST.rate, 1.1) for alpha in range(2, 64)}
    by_mironov = min(rdp + math.log(1e5) / (alpha - 1) for alpha, rdp in spent.items())
    assert 2.9 < by_mironov < 3.01, "the conversion of the time when 2.92 to 3.0 were published"
    by_balle = min(
        rdp + math.log1p(-1 / alpha) - (math.log(1e-5) + math.log(alpha)) / (alpha - 1) for alpha, rdp in spent.items()
    )
    ours = epsilon_of(DPSGD(noise=1.1, delta=1e-5), MNIST)
    assert ours == pytest.approx(by_balle, abs=0.01) and ours <= by_balle, "ours has orders between whole ones"


def test_as_dealt_it_is_the_gaussian_mechanism_once_an_epoch() -> None:
    sigma, delta = 30.0, 1e-5
    ours = epsilon_as_dealt(DPSGD(noise=sigma, delta=delta), MNIST)
    assert MNIST.passes is not None
    assert ours == min(
        MNIST.passes * alpha / (2 * sigma**2)
        + math.log1p(-1 / alpha)
        - (math.log(delta) + math.log(alpha)) / (alpha - 1)
        for alpha in ORDERS
    )


def test_without_noise_nothing_is_promised_and_before_a_step_nothing_is_spent() -> None:
    assert epsilon_of(DPSGD(noise=0.0), MNIST) == math.inf
    assert epsilon_of(DPSGD(noise=1.0), Budget(100, 0.1, 0, 0)) == 0


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_noise_for_an_epsilon_spends_it_and_less_noise_spends_more(epsilon: float) -> None:
    noise = noise_for(DPSGD(epsilon=epsilon, delta=1e-5), MNIST)
    assert epsilon * 0.99 < epsilon_of(DPSGD(noise=noise, delta=1e-5), MNIST) <= epsilon
    assert epsilon_of(DPSGD(noise=0.999 * noise, delta=1e-5), MNIST) > epsilon


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.epsilon=1e-06: no noise up to"):
        noise_for(DPSGD(epsilon=1e-6), MNIST)


@slow
def test_the_accountant_is_opacuss_own() -> None:
    from opacus.accountants.analysis import rdp

    ours = opacus.accountant()
    assert ours is not None
    both = [each.compute_rdp(q=0.01, noise_multiplier=1.2, steps=7, orders=ORDERS) for each in (ours, rdp)]
    assert list(both[0]) == list(both[1])


def test_where_opacus_is_missing_it_is_said_with_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(opacus, "accountant", lambda: None)
    with pytest.raises(MissingToolError, match=r"pip install 'paceline\[privacy\]'") as caught:
        epsilon_of(DPSGD(noise=1.2345), MNIST)
    assert caught.value.exit_code == 3


# -- runs

SHORT = ["tracking=none", "model.hidden=[16]", "data.limit=200", "batch_size=16", "epochs=2", "privacy=dp_sgd"]
VIRTUAL = ["hardware=virtual", "hardware.workers=2", *SHORT]


@pytest.mark.parametrize("changes", [["privacy.at_once=5"], pytest.param(["accumulate=2", "model=cnn"], marks=slow)])
def test_a_run_spends_and_holds_and_sends_what_its_plan_says(tmp_path, changes: list[str]) -> None:
    how = [each for each in VIRTUAL if not (each.startswith("model.") and "model=cnn" in changes)] + changes
    planned, result = plan(how), run(how, root=tmp_path, quiet=True)
    assert result is not None and planned.privacy is not None
    summary, spent = result.summary, planned.privacy
    told = [summary[key] for key in ("epsilon", "epsilon_as_dealt", "delta")]
    assert told == [spent.epsilon, spent.epsilon_as_dealt, spent.delta]
    row = row_of(summary)
    assert [row["epsilon"], row["epsilon_as_dealt"]] == [spent.epsilon, spent.epsilon_as_dealt]
    assert (spent.units, spent.delta) == (200, 200**-1.1)
    budget = Budget(units=200, rate=2 * 16 / 200, steps=2 * 7, passes=2)
    assert spent.epsilon == epsilon_of(DPSGD(noise=1.0), budget)
    assert spent.epsilon_as_dealt == epsilon_as_dealt(DPSGD(noise=1.0), budget)
    held = planned.peak_memory()
    assert {kind: summary["memory"][kind] for kind in held} == held
    assert summary["wire"]["bytes_per_step"] == planned.bytes_per_step()
    assert any("who knows the seed" in note for note in planned.notes)


@pytest.mark.slow
def test_a_plan_finds_the_noise_for_what_may_be_spent() -> None:
    planned = plan([*VIRTUAL, "privacy.epsilon=3"])
    assert planned.privacy is not None and planned.privacy.epsilon == pytest.approx(3, rel=0.01)
    assert planned.privacy.in_words().startswith(f"hides each sample of {planned.privacy.units}: epsilon 3 at delta")


@pytest.mark.parametrize("name", ["dp_sgd", "dp_fedavg"])
def test_noise_beside_an_epsilon_that_finds_it_is_refused(name: str) -> None:
    sync = ["sync=fedavg"] if name == "dp_fedavg" else []
    with pytest.raises(ConfigError, match=r"^privacy\.noise=0\.1: privacy\.epsilon=3 finds the noise"):
        plan([*VIRTUAL, *sync, f"privacy={name}", "privacy.noise=0.1", "privacy.epsilon=3"])


def test_without_a_word_of_noise_it_is_1() -> None:
    one, other = plan(VIRTUAL), plan([*VIRTUAL, "privacy.noise=1"])
    assert one.privacy is not None and one.privacy.noise == 1 and one.privacy == other.privacy


def test_no_clipping_and_no_noise_is_plain_training_bit_for_bit(tmp_path) -> None:
    runs = [
        run([*VIRTUAL, *more], root=tmp_path / str(i), quiet=True)
        for i, more in enumerate((["privacy.clip=null", "privacy.noise=0"], ["privacy=none"]))
    ]
    assert len({result.summary["model_sha256"] or result.summary["loss"] for result in runs if result is not None}) == 1
    assert all(result is not None and "epsilon" not in result.summary for result in runs)


@slow
@pytest.mark.dist
@pytest.mark.timeout(240)
def test_processes_are_the_virtual_cluster_and_a_resumed_run_the_whole_one(tmp_path) -> None:
    real = [*SHORT, "hardware.workers=2", "hardware.threads=1", "checkpoint.every=1"]
    whole = run(real, root=tmp_path, name="whole", quiet=True)
    run([*real, "epochs=1"], root=tmp_path, name="half", quiet=True)
    resumed = run(["epochs=2"], root=tmp_path, resume="half", quiet=True)
    modelled = run(VIRTUAL, root=tmp_path, name="modelled", quiet=True)
    assert whole is not None and resumed is not None and modelled is not None
    assert whole.summary["model_sha256"] == resumed.summary["model_sha256"]
    assert whole.summary["loss"] == modelled.summary["loss"] == resumed.summary["loss"]
    assert whole.summary["epsilon"] == resumed.summary["epsilon"] == modelled.summary["epsilon"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["privacy.noise=0"], "privacy.noise=0: nothing is hidden, as there is no noise"),
        (["privacy.delta=0.5"], r"privacy.delta=0.5: .*does not hold. Choose less than 1 / \d+, .* null does"),
    ],
)
def test_what_hides_nothing_is_said(overrides: list[str], says: str) -> None:
    assert [note for note in prepare([*VIRTUAL, *overrides]).plan().notes if re.search(says, note)]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["sync=asp"], "privacy=dp_sgd: sync=asp takes no privacy. Choose sync=bsp or bsp_naive"),
        (["strategy=pipeline"], "privacy=dp_sgd: clips the gradient of each sample, and"),
        (["strategy=torch_ddp", "hardware=local"], "privacy=dp_sgd: strategy=torch_ddp owns its update, and takes no"),
        (["sync=fedavg"], "privacy=dp_sgd: hides a sample in the sum of all gradients, to which"),
        (["privacy=dp_fedavg"], "privacy=dp_fedavg: hides a client in the sum of all changes, and"),
        (["compress=topk"], "privacy=dp_sgd: hides a sample in the sum of all gradients, to which"),
        (["aggregate=median"], "privacy=dp_sgd: hides a sample in the sum of all gradients, to which"),
        (["attack=alie"], "privacy=dp_sgd: hides a sample in the sum of all gradients, to which each replica adds"),
        (["precision=bf16"], "privacy=dp_sgd: gradients of single samples are computed in float32 alone"),
        (["partition=dirichlet"], "and partition=dirichlet deals replicas samples of their own"),
        (["adapt=pruned"], "privacy=dp_sgd: adapt=pruned makes the model another one by its"),
        (["privacy.clip=null"], "privacy.clip=null: noise hides what one can change"),
        (["privacy.noise=-1"], "privacy.noise=-1: must be"),
        (["model=resnet", "data=digits"], "privacy=dp_sgd: norm is a BatchNorm2d, which mixes the samples of a batch"),
    ],
)
def test_what_it_cannot_go_with_is_refused_by_name(overrides: list[str], says: str) -> None:
    chosen = [each for each in VIRTUAL if not (each.startswith("model.") and "model=resnet" in overrides)]
    with pytest.raises(ConfigError) as caught:
        prepare([*chosen, *overrides]).plan()
    assert says in str(caught.value) and caught.value.exit_code == 2


def test_samples_that_count_by_weights_are_refused_as_one_would_change_what_others_count(tmp_path) -> None:
    (tmp_path / "table.csv").write_text("x,target,w\n" + "".join(f"{i},{i % 2},{i}\n" for i in range(1, 41)))
    given = ["tracking=none", "data=table", f"data.path={tmp_path}/table.csv", "privacy=dp_sgd"]
    prepare(given).plan()
    with pytest.raises(ConfigError, match=r"privacy=dp_sgd: samples of data=table have weights") as caught:
        prepare([*given, "data.weights=w"]).plan()
    assert caught.value.exit_code == 2


class Counts(nn.Module):
    """Looks at its inputs, which vmap has none of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if not x.is_meta and float(x.sum()) > 1e9 else self.layer(x).tanh()


def test_a_model_that_vmap_refuses_is_trained_sample_by_sample() -> None:
    case = Case([[3], [2]], Counts)
    got = trained(Single(), BSP(), case, DPSGD(clip=C, noise=0.0, at_once=1))
    assert distance(got, loop(case, C)) < ROUNDING


@slow
@pytest.mark.parametrize("model", ["model=gpt data=text", "model=vit", "model=cnn data=digits"])
def test_our_own_models_without_batch_norm_take_it(model: str) -> None:
    overrides = [each for each in VIRTUAL if not each.startswith(("model.", "data."))]
    assert plan([*overrides, *model.split()]).privacy is not None


def test_float32_is_close_to_the_loop_too() -> None:
    case = Case(UNEVEN, mlp)
    assert distance(trained(DataParallel(), BSP(), case, DPSGD(clip=C, noise=0.0)), loop(case, C)) < 1e-5
