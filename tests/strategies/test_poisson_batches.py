"""privacy=dp_sgd on batches that are drawn by chance (partition=poisson), against Algorithm 1 of Abadi et al. 2016 in
plain torch: sums are divided by the size that is expected, and a step without samples has its noise.
"""

import math
from functools import partial

import pytest
import safetensors.torch
import torch
from oracles import (
    ROUNDING,
    Case,
    Plan,
    Weights,
    clipped_sums,
    distance,
    identical,
    replica_batch,
    train,
    weights_of,
    workers_of,
)
from scipy import stats

from paceline.conf.errors import ConfigError
from paceline.engine import plan, prepare, run
from paceline.exchange.privacy import DPSGD, Budget
from paceline.exchange.privacy.accountant import epsilon_as_dealt, epsilon_of
from paceline.exchange.privacy.per_sample import PerSample
from paceline.exchange.seeded import generator
from paceline.strategies import Strategy
from paceline.strategies.core.cost import payload
from paceline.strategies.core.setting import Setting
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.single import Single
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.bsp_naive import NaiveBSP
from paceline.tasks.poisson import PoissonPartition
from paceline.testing.fabrics import FABRICS
from paceline.tracking.summaries import row_of

slow = pytest.mark.slow
C = 0.5
ALONE = [[5], [0], [2], [7]]  # samples of one replica, where 4 are expected
TWO = [[3, 2], [1, 0], [0, 0], [4, 4]]  # of two replicas, where 4 are expected of both


def loop(case: Case, sigma: float) -> Weights:
    """w <- w - eta 1/L (sum_i clip(g_i) + N(0, sigma^2 C^2 I)), with the noise as the replicas draw their shares."""
    model, replicas = case.start(), len(case.sizes[0])
    optimizer = case.optimizer(model.parameters())
    for step in range(len(case.sizes)):
        inputs, targets = case.step(step)
        sums = clipped_sums(case, model, inputs, targets, C)
        for replica in range(replicas):
            draws = generator("dp_sgd", 0, step, replica)
            for total in sums:
                drawn = torch.randn(total.shape, generator=draws, dtype=total.dtype)
                total += sigma * C / math.sqrt(replicas) * drawn
        assert case.expected is not None
        for parameter, total in zip(model.parameters(), sums, strict=True):
            parameter.grad = total / case.expected
        optimizer.step()
    return weights_of(model)


def trained(strategy: Strategy, sync: BSP | NaiveBSP, case: Case, privacy: DPSGD, accumulate: int = 1) -> list[Weights]:
    """By each replica, on the virtual cluster."""
    strategy.configure(Setting(privacy=privacy))
    planned = Plan(strategy, sync, case, accumulate=accumulate)
    return [each["weights"] for each in FABRICS["virtual"](workers_of(planned), train, planned)]


@pytest.mark.parametrize("at_once", [None, 1])
def test_one_replica_is_the_plain_loop_with_noise(at_once: int | None) -> None:
    case = Case(ALONE, expected=4)
    [got] = trained(Single(), BSP(), case, DPSGD(C, 1.5, at_once=at_once))
    assert distance(got, loop(case, 1.5)) < ROUNDING
    assert distance(got, loop(case, 0.0)) > 1e-2, "there is noise"


@pytest.mark.parametrize("sync", [BSP(), BSP(shard="gradients"), NaiveBSP(), BSP(find_unused=True)])
def test_two_replicas_are_the_plain_loop_with_the_noise_of_both(sync: BSP | NaiveBSP) -> None:
    case = Case(TWO, expected=4)
    one, other = trained(DataParallel(), sync, case, DPSGD(C, 1.5))
    assert distance(one, loop(case, 1.5)) < ROUNDING and identical(one, other)


@pytest.mark.parametrize("sizes", [ALONE, TWO])
@pytest.mark.parametrize("micro_batches", [2, 3])
def test_micro_batches_add_up_to_the_plain_loop(sizes: list[list[int]], micro_batches: int) -> None:
    case = Case(sizes, expected=4)
    strategy = Single() if sizes is ALONE else DataParallel()
    got = trained(strategy, BSP(), case, DPSGD(C, 0.0), micro_batches)[0]
    assert distance(got, loop(case, 0.0)) < ROUNDING


@pytest.mark.parametrize("at_once", [None, 8])
def test_no_more_gradients_are_held_than_are_expected_at_once(at_once: int | None) -> None:
    case = Case([[11], [3]], expected=4)
    model = case.start()
    own = PerSample(model, case.loss, DPSGD(C, 1.0, at_once=at_once), 0)
    for step in range(2):
        own.loss(model, replica_batch(case, step, 0)).backward()
    assert own.held == 4 * payload(list(model.parameters()))


# -- noise


def noise_of(sizes: list[int], expected: int, micro_batches: int, sigma: float = 2.0) -> torch.Tensor:
    """What noise made of expected * the gradient of one step, from the weights that plain SGD has after it."""

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 400).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    case = Case([sizes], Linear, partial(torch.optim.SGD, lr=1.0), expected=expected)
    weights = [trained(DataParallel(), BSP(), case, DPSGD(C, each, seed=3), micro_batches)[0] for each in (sigma, 0.0)]
    return expected * torch.cat([(weights[1][name] - weights[0][name]).flatten() for name in weights[0]])


@pytest.mark.parametrize(("sizes", "micro_batches"), [([0], 1), ([0, 0], 3), ([9, 2], 1), ([1, 0], 1), ([5, 4], 2)])
def test_the_noise_of_a_sum_is_normal_with_sigma_clip_whatever_was_drawn(sizes: list[int], micro_batches: int) -> None:
    drawn = noise_of(sizes, 6, micro_batches)
    n, std = len(drawn), 2.0 * C
    assert n == 2800 and abs(float(drawn.mean())) < 4 * std / math.sqrt(n)
    assert float(drawn.var()) == pytest.approx(std**2, rel=4 * math.sqrt(2 / n))
    assert stats.kstest(drawn.numpy() / std, "norm").pvalue > 1e-3


# -- the accountant


def test_of_drawn_batches_there_is_one_epsilon() -> None:
    privacy = DPSGD(noise=1.1, delta=1e-5)
    drawn, dealt = Budget(60_000, 0.004, 1000, None), Budget(60_000, 0.004, 1000, 4)
    assert epsilon_as_dealt(privacy, drawn) == epsilon_of(privacy, drawn) == epsilon_of(privacy, dealt)
    assert epsilon_as_dealt(privacy, dealt) > epsilon_of(privacy, dealt)


@slow
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.0891, 3.1, 360), (0.004, 1.1, 14_000), (1.0, 20.0, 50)])
def test_it_is_the_one_that_opacus_computes(q: float, sigma: float, steps: int) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [(sigma, q, steps)]
    ours = epsilon_as_dealt(DPSGD(noise=sigma, delta=1e-5), Budget(1000, q, steps, None))
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)


# -- runs

SHORT = ["tracking=none", "model.hidden=[16]", "data.limit=200", "batch_size=8", "epochs=2"]
DRAWN = [*SHORT, "privacy=dp_sgd", "partition=poisson"]
VIRTUAL = ["hardware=virtual", "hardware.workers=2"]


@pytest.mark.parametrize("changes", [[], pytest.param(["accumulate=2"], marks=slow)])
def test_a_run_spends_and_holds_and_sends_what_its_plan_says(tmp_path, changes: list[str]) -> None:
    planned = plan([*VIRTUAL, *DRAWN, *changes])
    result = run([*VIRTUAL, *DRAWN, *changes], root=tmp_path, quiet=True)
    assert result is not None and planned.privacy is not None
    summary, spent = result.summary, planned.privacy
    assert summary["epsilon"] == summary["epsilon_as_dealt"] == spent.epsilon == spent.epsilon_as_dealt
    assert row_of(summary)["epsilon"] == spent.epsilon
    assert spent.in_words().endswith("with noise 1, as batches are dealt")
    dealt = PoissonPartition(200, 2, 8, 0)
    largest = max(dealt.size(step, 0) for step in range(summary["steps"]))
    held = planned.peak_memory()
    held["activations"] += (largest - 8) * 64 * 4  # of inputs, which are there for the whole batch
    assert largest > 8 and {kind: summary["memory"][kind] for kind in held} == held
    assert summary["wire"]["bytes_per_step"] == planned.bytes_per_step()
    assert summary["steps"] == planned.steps and summary["effective_batch"] == 8
    assert any("by chance fewer or more" in note for note in planned.notes)


@pytest.mark.slow
def test_epsilon_asks_for_the_noise_with_which_no_more_is_proven() -> None:
    planned = plan([*VIRTUAL, *DRAWN, "privacy.epsilon=3"])
    assert planned.privacy is not None and planned.privacy.epsilon_as_dealt is not None
    assert 2.99 < planned.privacy.epsilon_as_dealt <= 3


def test_batches_of_all_samples_are_dp_sgd_on_the_full_batch(tmp_path) -> None:
    made = []
    for partition in ("poisson", "shuffled"):
        how = [*VIRTUAL, *DRAWN, "batch_size=100", "epochs=5", f"partition={partition}"]
        result = run(how, root=tmp_path, name=partition, quiet=True)
        assert result is not None
        made.append((safetensors.torch.load_file(tmp_path / partition / "model.safetensors"), result.summary))
    (one, of_one), (other, of_other) = made
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-6
    assert of_one["epsilon_as_dealt"] == of_other["epsilon_as_dealt"] and of_one["steps"] == 5


def test_steps_without_samples_are_made_and_counted(tmp_path) -> None:
    how = [*VIRTUAL, *DRAWN, "batch_size=1", "steps=40", "epochs=1"]
    result = run(how, root=tmp_path, quiet=True)
    assert result is not None and result.summary["steps"] == 40
    longer = plan([*VIRTUAL, *DRAWN, "batch_size=1", "steps=80", "epochs=1"])
    assert longer.privacy is not None and longer.privacy.epsilon is not None
    assert 0 < result.summary["epsilon"] < longer.privacy.epsilon


@slow
@pytest.mark.dist
@pytest.mark.timeout(240)
def test_processes_are_the_virtual_cluster_and_a_run_goes_on_in_mid_epoch_to_the_bit(tmp_path) -> None:
    few = [*DRAWN, "hardware.workers=2", "batch_size=2", "steps=14"]
    real = [*few, "hardware.threads=1", "checkpoint.every_steps=7"]
    whole = run(real, root=tmp_path, name="whole", quiet=True)
    run([*real, "steps=7"], root=tmp_path, name="half", quiet=True)
    resumed = run(["steps=14"], root=tmp_path, resume="half", quiet=True)
    modelled = run([*few, *VIRTUAL], root=tmp_path, name="modelled", quiet=True)
    assert whole is not None and resumed is not None and modelled is not None
    assert whole.summary["model_sha256"] == resumed.summary["model_sha256"] == modelled.summary["model_sha256"]
    assert whole.summary["epsilon"] == resumed.summary["epsilon"] == modelled.summary["epsilon"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["privacy=none"], "partition=poisson: draws batches of no fixed size, sums over which privacy=dp_sgd divides"),
        (["sync=fedavg", "privacy=dp_fedavg"], "Choose privacy=dp_sgd with a privacy.clip, or partition=shuffled"),
        (["privacy.clip=null", "privacy.noise=0"], "partition=poisson: draws batches of no fixed size"),
        (["sync=local_sgd"], "privacy=dp_sgd: sync=local_sgd takes no privacy"),
        (["+callbacks=noise_scale"], "callbacks.noise_scale: compares means over as many samples as batches have"),
    ],
)
def test_what_it_cannot_go_with_is_refused_by_name(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare([*VIRTUAL, *DRAWN, *overrides]).plan()
    assert says in str(caught.value) and caught.value.exit_code == 2
