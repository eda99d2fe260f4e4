"""privacy=dp_fedavg: what the server makes of clients' ways, on its own and in whole runs."""

import math

import pytest
import torch
from scipy import stats

from paceline.conf.errors import ConfigError
from paceline.engine import plan, prepare, run
from paceline.exchange.privacy import Budget, DPFedAvg
from paceline.exchange.privacy.accountant import epsilon_of
from paceline.exchange.privacy.clipping import ROUNDING as SLACK
from paceline.strategies.core.errors import NotFiniteError

slow = pytest.mark.slow


def ways(clients: int, entries: int = 5) -> dict[int, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return {k: (k + 1) * torch.randn(entries, generator=drawn, dtype=torch.float64) for k in range(clients)}


def test_without_noise_it_is_the_sum_of_clipped_ways_over_those_sampled() -> None:
    expected = torch.zeros(5, dtype=torch.float64)
    for way in ways(4).values():
        expected += way * min(1.0, 3.0 / (1 + SLACK) / float(way.norm()))
    got = DPFedAvg(clip=3.0, noise=0.0).mean(ways(4), 6, 0)  # two of six have died
    torch.testing.assert_close(got, expected / 6, rtol=1e-14, atol=0)


def test_whoever_brings_what_moves_the_mean_by_no_more_than_clip_over_m() -> None:
    rule, without = DPFedAvg(clip=2.0, noise=0.0), ways(3)
    with_liar = {**ways(3), 3: torch.full((5,), 1e12, dtype=torch.float64)}
    assert float((rule.mean(with_liar, 4, 0) - rule.mean(without, 4, 0)).norm()) <= 2.0 / 4 * (1 + 1e-12)
    with pytest.raises(NotFiniteError, match="what client 1 brought in round 7 is not finite"):
        rule.mean({0: torch.ones(2), 1: torch.tensor([1.0, math.inf])}, 2, 7)


def test_its_noise_is_normal_seeded_and_another_one_in_each_round() -> None:
    rule, n = DPFedAvg(clip=2.0, noise=1.5), 4000
    drawn = 10 * rule.mean({0: torch.zeros(n, dtype=torch.float64)}, 10, 3)
    assert float(drawn.var()) == pytest.approx(9.0, rel=4 * math.sqrt(2 / n))
    assert stats.kstest(drawn.numpy() / 3.0, "norm").pvalue > 1e-3
    assert torch.equal(drawn, 10 * rule.mean({0: torch.zeros(n, dtype=torch.float64)}, 10, 3))
    assert not torch.equal(drawn, 10 * rule.mean({0: torch.zeros(n, dtype=torch.float64)}, 10, 4))


VIRTUAL = [
    "hardware=virtual",
    "hardware.workers=6",
    "tracking=none",
    "model.hidden=[16]",
    "data.limit=240",
    "batch_size=8",
    "epochs=4",
    "sync=fedavg",
    "sync.fraction=0.5",
]


def test_a_run_spends_what_its_plan_says_by_rounds_and_clients(tmp_path) -> None:
    how = [*VIRTUAL, "privacy=dp_fedavg", "sync.epochs=2", "privacy.delta=1e-5", "privacy.noise=2"]
    planned, result = plan(how), run(how, root=tmp_path, quiet=True)
    assert result is not None and planned.privacy is not None
    assert (planned.privacy.of, planned.privacy.units) == ("client", 6)
    assert result.summary["epsilon"] == planned.privacy.epsilon
    assert result.summary["epsilon_as_dealt"] == planned.privacy.epsilon_as_dealt
    spent = Budget(units=6, rate=3 / 6, steps=2, passes=2)
    assert planned.privacy.epsilon == epsilon_of(DPFedAvg(noise=2.0, delta=1e-5), spent)
    assert result.summary["server"] == "plain"
    assert result.summary["wire"]["bytes_per_step"] == pytest.approx(planned.bytes_per_step(), rel=1e-6)


def test_a_round_that_training_ends_inside_of_is_spent_too() -> None:
    planned = plan([*VIRTUAL, "epochs=3", "privacy=dp_fedavg", "sync.epochs=2", "privacy.delta=1e-5"]).privacy
    assert planned is not None
    assert planned.epsilon == epsilon_of(DPFedAvg(noise=1.0, delta=1e-5), Budget(6, 3 / 6, steps=2, passes=2))


@pytest.mark.parametrize(("delta", "said"), [("null", True), ("0.0011", True), ("0.001", False)])
def test_where_few_are_there_to_hide_among_it_is_said(delta: str, said: bool) -> None:
    notes = plan([*VIRTUAL, "privacy=dp_fedavg", f"privacy.delta={delta}"]).notes
    assert any(note.startswith("privacy.delta=") and "epsilon does not hold" in note for note in notes) == said


@pytest.mark.slow
def test_no_clipping_and_no_noise_is_plain_fedavg_bit_for_bit(tmp_path) -> None:
    found = [
        run([*VIRTUAL, *more], root=tmp_path / str(i), quiet=True)
        for i, more in enumerate((["privacy=dp_fedavg", "privacy.clip=null", "privacy.noise=0"], []))
    ]
    losses = {result.summary["loss"] for result in found if result is not None}
    assert len(losses) == 1 and all(result is not None and "epsilon" not in result.summary for result in found)


def test_ways_that_none_exceed_are_joined_as_fedavg_joins_those_of_equal_clients(tmp_path) -> None:
    """Each client has as many samples, so that the mean by samples is that over clients."""
    one = run([*VIRTUAL, "privacy=dp_fedavg", "privacy.clip=1e6", "privacy.noise=0"], root=tmp_path / "a", quiet=True)
    other = run(VIRTUAL, root=tmp_path / "b", quiet=True)
    assert one is not None and other is not None
    assert one.summary["loss"] == pytest.approx(other.summary["loss"], rel=1e-4)


@slow
def test_a_servers_rule_steps_with_it_and_liars_have_no_larger_part(tmp_path) -> None:
    how = [*VIRTUAL, "privacy=dp_fedavg", "privacy.noise=0.01", "server=momentum", "attack=gaussian"]
    result = run([*how, "attack.std=1000"], root=tmp_path, quiet=True)
    assert result is not None and result.summary["loss"] < 10


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["aggregate=median"],
            "privacy=dp_fedavg: hides a client in the sum of all changes, and aggregate=median",
        ),
        (["attack=alie"], "privacy=dp_fedavg: hides a client in the sum of all changes, and"),
        (["strategy=pipeline", "strategy.stages=2"], "privacy=dp_fedavg: clips each client's change as a whole"),
        (["partition=dirichlet", "privacy.epsilon=3"], "the noise follows from how many steps are made"),
        (["privacy.clip=null"], "privacy.clip=null: noise hides what one can change"),
    ],
)
def test_what_it_cannot_go_with_is_refused_by_name(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare([*VIRTUAL, "privacy=dp_fedavg", *overrides]).plan()
    assert says in str(caught.value) and caught.value.exit_code == 2
