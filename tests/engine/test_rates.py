"""The rates that runs step with, by the step, by pushes and after a resume; what is refused."""

from pathlib import Path

import pytest
import torch
from short_runs import weights

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.config.compose import compose
from paceline.engine.features.rates import rate_of
from paceline.engine.planning.build import assemble
from paceline.strategies.schedules import Horizon
from paceline.strategies.schedules.cosine import Cosine
from paceline.verify.carry import carry_out

SMALL = ("tracking=none", "data.limit=96", "batch_size=16", "model.hidden=[8]", "epochs=1000", "evaluate.every=1000")
COSINE = ("schedule=cosine", "schedule.warmup=2", "schedule.end=0.1")
STEPS = 6
FACTORS = [Cosine(warmup=2, end=0.1).factor(step, Horizon(STEPS, 3, 32)) for step in range(STEPS)]
LR = 0.1
OFFLOAD = ["strategy=offload", "strategy.delayed_update=true", "hardware.workers=1"]
PIPEDREAM = ["strategy=pipeline", "strategy.schedule=pipedream", "hardware.workers=2"]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of each step of SGD in this process."""
    found: list[float] = []
    step = torch.optim.SGD.step

    def noted(self, closure=None):
        if not self.param_groups[0]["params"][0].is_meta:
            found.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    return found


def virtual(root: Path, *overrides: str) -> None:
    """In this process."""
    how = [*SMALL, *COSINE, "hardware=virtual", f"optimizer.lr={LR}", f"steps={STEPS}", *overrides]
    prepared = prepare(how, root=root)
    carry_out(prepared, prepared.plan(), assemble(prepared.experiment, ()), root, "rates")


def test_a_run_steps_with_the_schedules_rates(tmp_path: Path, rates: list[float]) -> None:
    virtual(tmp_path, "hardware.workers=1")
    assert rates == [LR * factor for factor in FACTORS]


@pytest.mark.parametrize("sync", ["parameter_server", "backup_workers"])
def test_a_server_that_steps_once_a_step_has_the_rates_of_serial_training(tmp_path, rates, sync) -> None:
    virtual(tmp_path, "hardware.workers=2", f"sync={sync}", *(["sync.backups=0"] if sync == "backup_workers" else []))
    assert rates == [LR * factor for factor in FACTORS]


@pytest.mark.parametrize("more", [["sync=asp", "sync.servers=2", "sync.lock=false"], ["sync=asp"], ["sync=ssp"]])
def test_a_server_is_as_far_in_the_schedule_as_it_has_seen_samples(tmp_path, rates, more) -> None:
    virtual(tmp_path, "hardware.workers=2", *more)
    assert rates == [LR * (0.5 * FACTORS[push // 2]) for push in range(2 * STEPS)]


@pytest.mark.slow
@pytest.mark.parametrize("way", [OFFLOAD, PIPEDREAM])
def test_an_update_that_comes_later_has_the_rate_of_its_batch(tmp_path, rates, way) -> None:
    virtual(tmp_path, *way)
    stages = 2 if way is PIPEDREAM else 1
    assert sorted(rates) == sorted(LR * factor for factor in FACTORS for _ in range(stages))


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", ["sync=bsp", "sync=local_sgd", "sync=parameter_server", "sync=dion", "sync.shard=optimizer"]
)
def test_a_resumed_run_equals_the_uninterrupted_one(train, chosen) -> None:
    more = (chosen, "hardware.workers=2", *COSINE, "checkpoint.every_steps=2", "checkpoint.keep=9")
    before = train(*more, name="run")
    straight = weights(before.path)
    oldest = sorted(path.name for path in (before.path / "checkpoints").iterdir())[0]
    assert weights(train(resume=f"run@{oldest}").path) == straight
    records = (before.path / "metrics.jsonl").read_text()
    assert '"kind":"resume","step":2' in records


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["schedule=cosine", "schedule.warmup=-1"], "schedule.warmup"),
        (["schedule=cosine", "schedule.warmup=100", "steps=6"], "longer than the run, which has 6"),
        (["schedule=cosine", "schedule.base_batch=256"], "Choose schedule.scale=linear or sqrt"),
        (["schedule=cosine", "schedule.end=2"], "schedule.end"),
        (["schedule=cosine", "sync=easgd_async", "sync.rho=0.1"], "with sync.rho=0.1 takes its rate on the server"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        prepare(overrides).plan()
    assert refused.value.exit_code == 2


def test_the_scaling_rule_counts_all_replicas_where_they_make_one_update() -> None:
    rule = [
        "schedule=constant",
        "schedule.scale=linear",
        "schedule.base_batch=32",
        "batch_size=32",
        f"optimizer.lr={LR}",
    ]
    for sync, times in (("bsp", 4), ("parameter_server", 4), ("local_sgd", 1), ("asp", 1)):
        plan = prepare([*rule, f"sync={sync}", "hardware.workers=4"]).plan()
        assert plan.rate[0].lr == [LR * times]


FULL = ["hardware=virtual", "tracking=none", "data.limit=96", "batch_size=96", "model.hidden=[8]", "steps=4"]
SCALED = ["schedule=constant", "schedule.scale=linear", "schedule.base_batch=32", "optimizer.lr=0.01"]


@pytest.mark.parametrize(
    ("how", "samples"),
    [
        ("sync=bsp", 96),
        ("sync=bsp partition=by_label", 96),
        ("sync=parameter_server", 96),
        ("sync=local_sgd", 24),
        ("sync=local_sgd partition=by_label", 96),  # whoever owns most may own nearly all
        ("sync=bsp batch_size=20", 80),
    ],
)
def test_the_scaling_rule_counts_no_more_samples_than_there_are(how: str, samples: int) -> None:
    experiment = compose([*FULL, *SCALED, "hardware.workers=4", *how.split()])
    assert rate_of(experiment, assemble(experiment, ()), 1, 96).factor(0) == samples / 32


def test_full_batches_have_one_rate_on_any_number_of_workers(tmp_path: Path) -> None:
    """Whoever owns the samples: the mean over all of them is one gradient."""
    one, four, owned = (
        run([*FULL, *SCALED, *how.split()], root=tmp_path, quiet=True)
        for how in ("hardware.workers=1", "hardware.workers=4", "hardware.workers=4 partition=by_label")
    )
    assert one is not None and four is not None and owned is not None
    assert four.loss == pytest.approx(one.loss, rel=1e-4) == owned.loss
