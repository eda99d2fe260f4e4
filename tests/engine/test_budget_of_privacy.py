"""What a plan says is spent, by rates, releases and passes that are counted by hand, and Mironov's sum by hand."""

import math
from pathlib import Path

import pytest

from paceline.engine import plan, run

TINY = ["hardware=virtual", "tracking=none", "model.hidden=[16]", "data.limit=240", "batch_size=8", "privacy.noise=2"]


def spent(q: float, sigma: float, releases: int, delta: float) -> float:
    """Mironov, Talwar and Zhang 2019, section 3.3, of whole orders, and Balle et al. 2020, theorem 21."""

    def renyi(a: int) -> float:
        if q == 1:
            return a / (2 * sigma**2)
        terms = [
            math.log(math.comb(a, k)) + k * math.log(q) + (a - k) * math.log(1 - q) + (k * k - k) / (2 * sigma**2)
            for k in range(a + 1)
        ]
        most = max(terms)
        return (most + math.log(sum(math.exp(each - most) for each in terms))) / (a - 1)

    return min(
        releases * renyi(a) + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in range(2, 64)
    )


CLIENTS = ["sync=fedavg", "hardware.workers=6", "sync.fraction=0.5", "sync.epochs=2", "epochs=6"]


@pytest.mark.parametrize(
    ("how", "rate", "releases", "passes"),
    [
        # 240 samples in 15 steps of 2 x 8 an epoch
        (["privacy=dp_sgd", "hardware.workers=2", "epochs=3"], 16 / 240, 45, 3),
        # rounds of two epochs, of 3 of 6 clients
        (["privacy=dp_fedavg", *CLIENTS], 3 / 6, 3, 3),
    ],
    ids=["samples", "clients"],
)
def test_a_run_spends_by_how_likely_one_is_in_a_release_and_how_many_there_are(
    how: list[str], rate: float, releases: int, passes: int
) -> None:
    found = plan([*TINY, "privacy.delta=1e-5", *how]).privacy
    assert found is not None and found.delta == 1e-5
    for epsilon, expected in (
        (found.epsilon, spent(rate, 2.0, releases, 1e-5)),
        (found.epsilon_as_dealt, spent(1.0, 2.0, passes, 1e-5)),
    ):
        assert epsilon is not None and 0.98 * expected <= epsilon <= expected * (1 + 1e-9)  # orders between give less


def test_a_plan_says_that_no_epsilon_counts_what_weights_have_learnt(tmp_path: Path) -> None:
    run([*TINY[:-1], "steps=1"], root=tmp_path, name="known", quiet=True)
    notes = plan([*TINY, "privacy=dp_sgd", "weights=known"], root=tmp_path).notes
    assert any("epsilon counts the steps of this run, and nothing that these weights have learnt" in n for n in notes)
    assert not any("weights" in note for note in plan([*TINY, "privacy=dp_sgd"]).notes)
