"""average=ema and swa: torch's own averages, on every layout, resumed, evaluated and saved; what is refused."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from short_runs import weights
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn, update_bn

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.base.checkpoint import read_parameters
from paceline.engine.features.averaging import Averaging, check_model
from paceline.engine.planning.build import assemble
from paceline.strategies import Sync
from paceline.strategies.averages import EMA, SWA, Average, Trained
from paceline.strategies.core.state import load_state, state_of
from paceline.strategies.core.terms import SYNC_AVERAGED
from paceline.strategies.single import LocalUpdate
from paceline.tasks.data.digits import Digits
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.resnet import ResNet
from paceline.tasks.running_statistics import renew
from paceline.tracking.run_directory import RunDirectory
from paceline.verify.carry import carry_out
from paceline.verify.check import verify

slow = pytest.mark.slow
SMALL = ("tracking=none", "data.limit=96", "batch_size=16", "model.hidden=[8]", "epochs=1000", "evaluate.every=1000")
VIRTUAL = (*SMALL, "hardware=virtual", "hardware.workers=2", "steps=9")
STEPS = 7


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def prepared(model: nn.Module, nothing: object = None) -> Sync:
    """A lone worker's."""
    sync = LocalUpdate()
    sync.configure(replace(sync.setting, steps_per_epoch=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    sync.prepare(dict(model.named_parameters()), optimizer, nothing)  # type: ignore[arg-type] it talks to nobody
    return sync


def both(average: Average, theirs: Callable[[nn.Module], AveragedModel], steps: int = STEPS) -> tuple[dict, dict]:
    """Ours and torch's, of one training of a model with batch norm; what counts is for ours to say."""
    model = normed()
    sync, torchs = prepared(model), theirs(model)
    ours = Averaging(average, sync, lambda state, judged: state)
    ours.begin(model)
    for step in range(steps):
        sync.optimizer.zero_grad()
        model(torch.randn(8, 5)).square().mean().backward()
        sync.update()
        ours.after_update(step, took=True)
        if average.counts(step + 1, 2):
            torchs.update_parameters(model)
    return state_of(model) | ours.weights(sync.consensus), state_of(torchs.module)


def warmed_up(average: Tensor, weights: Tensor, count: Tensor | int) -> Tensor:
    decay = min(0.9, (1 + int(count)) / (10 + int(count)))
    return average.lerp(weights, 1 - decay) if average.is_floating_point() else weights


AGAINST = {
    "ema": (EMA(decay=0.9), lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)),
    "ema of weights": (
        EMA(decay=0.9, buffers=False),
        lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    ),
    "ema with a warm-up": (
        EMA(decay=0.9, warmup=True),
        lambda m: AveragedModel(m, avg_fn=warmed_up, use_buffers=True),
    ),
    "swa": (SWA(start=1), lambda m: AveragedModel(m, multi_avg_fn=get_swa_multi_avg_fn())),
    "swa by steps": (
        SWA(start=3, every=2, unit="steps"),
        lambda m: AveragedModel(m, multi_avg_fn=get_swa_multi_avg_fn()),
    ),
}


@pytest.mark.parametrize("name", AGAINST)
def test_on_one_worker_it_is_torchs_average_bit_for_bit(name: str) -> None:
    average, theirs = AGAINST[name]
    ours, torchs = both(average, theirs, STEPS if name != "swa" else 6)
    floats = [key for key, tensor in ours.items() if tensor.is_floating_point()]
    if not average.buffers:  # torch's are those of the last weights that counted, ours of training
        floats = [key for key in floats if "running" not in key] if name.startswith("swa") else floats
    assert floats and all(torch.equal(ours[key], torchs[key]) for key in floats)
    assert int(ours["1.num_batches_tracked"]) == (6 if name == "swa" else STEPS), "whole numbers are those of training"


def test_which_weights_count() -> None:
    counted = [done for done in range(1, 13) if SWA(start=2, every=2, unit="epochs").counts(done, 2)]
    assert counted == [4, 8, 12]
    assert [done for done in range(1, 8) if SWA(start=0, every=3, unit="steps").counts(done, 9)] == [3, 6]
    assert all(EMA().counts(done, 9) for done in range(1, 5)) and not any(Trained().counts(done, 1) for done in (1, 2))


def test_statistics_made_anew_are_those_of_torchs_update_bn() -> None:
    train = Digits(limit=96).load()[0]
    torch.manual_seed(1)
    ours = ResNet(Digits().spec, depth=8, width=4)
    theirs = deepcopy(ours)
    renew(ours, train, batch_size=32)
    update_bn([train.take(slice(i, i + 32)).inputs for i in range(0, 96, 32)], theirs)
    assert all(torch.equal(tensor, state_of(theirs)[name]) for name, tensor in state_of(ours).items())
    assert ours.training and all(each.momentum is not None for each in ours.modules() if hasattr(each, "momentum"))
    renew(ours, Digits(limit=97).load()[0], batch_size=32)  # no batch is of one sample, which has no variance


# -- whole runs, each held to torch's average of serial training


def verified(*overrides: str, only: list[str], **how: object) -> set[str]:
    """The verdicts of ways whose averages were compared."""
    found = verify(["hardware=virtual", *overrides], steps=4, only=only, **how)  # type: ignore[arg-type]
    assert not [row for row in found.rows if row.word == "fail"], [row.why for row in found.rows]
    return {row.word for row in found.rows}


@slow
def test_replicas_that_agree_are_evaluated_by_the_average_of_serial_training() -> None:
    assert "pass" in verified(
        "average=ema", "average.decay=0.8", "model.hidden=[8]", only=["sync=bsp_naive"], workers=2
    )


@slow
@pytest.mark.parametrize("average", [["average=ema", "average.warmup=true"], ["average=swa", "average.start=2"]])
@pytest.mark.parametrize(
    "only", ["pipeline", "tensor", "hybrid", "shard", "asp", "parameter_server", "local_sgd", "domain"]
)
def test_every_layout_keeps_the_average_of_serial_training(average: list[str], only: str) -> None:
    model = ["model=cnn"] if only == "domain" else []
    chosen = ["sync.shard=optimizer", "sync.shard=gradients"] if only == "shard" else [only]
    unit = ["average.unit=steps"] if "average=swa" in average else []
    asked = [*average, *unit, *(model or ["model.hidden=[12,12]"])]
    assert "pass" in verified(*asked, only=chosen)


@pytest.fixture
def averages(monkeypatch: pytest.MonkeyPatch) -> dict[int, Averaging]:
    """Of the workers of a virtual run, in the order in which they were made."""
    found: dict[int, Averaging] = {}
    init = Averaging.__init__

    def noted(self, *args) -> None:
        init(self, *args)
        found[len(found)] = self

    monkeypatch.setattr(Averaging, "__init__", noted)
    return found


def seen_by(
    averages: dict[int, Averaging], monkeypatch: pytest.MonkeyPatch, what: Callable[[Sync], dict[str, Tensor]]
) -> dict[int, list[dict[str, Tensor]]]:
    """What the sync mode had when each took its weights, by the worker."""
    taken: dict[int, list[dict[str, Tensor]]] = {}
    take = Averaging._take

    def noted(self, done: int) -> None:
        place = next(i for i, each in averages.items() if each is self)
        taken.setdefault(place, []).append({name: each.clone() for name, each in what(self._sync).items()})
        take(self, done)

    monkeypatch.setattr(Averaging, "_take", noted)
    return taken


def averaged(root: Path, *overrides: str) -> dict[str, Tensor]:
    """What a virtual run in this process would evaluate at its end."""
    prepared = prepare([*VIRTUAL, *overrides], root=root)
    found = carry_out(prepared, prepared.plan(), assemble(prepared.experiment, ()), root, "averaged").averaged
    assert found is not None
    return found


@pytest.mark.parametrize("sync", ["local_sgd", *(pytest.param(each, marks=slow) for each in ("gossip", "sparta"))])
def test_where_the_mean_of_replicas_is_evaluated_it_is_the_mean_of_their_averages(
    averages, monkeypatch, tmp_path, sync: str
) -> None:
    taken = seen_by(averages, monkeypatch, lambda its: {k: v.detach() for k, v in its.parameters.items()})
    made = averaged(tmp_path, "average=swa", "average.start=2", "average.unit=steps", f"sync={sync}")
    assert len(averages) == 2 and [len(each) for each in taken.values()] == [9, 9]
    for name, tensor in made.items():  # the average over steps of the mean over replicas, which nobody ever had
        both = zip(*taken.values(), strict=True)
        means = torch.stack([(one[name].double() + other[name].double()) / 2 for one, other in both])
        torch.testing.assert_close(tensor.double(), means[1:].mean(dim=0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "sync", ["easgd", *(pytest.param(each, marks=[] if each == "asp" else slow) for each in ("asp", "bsp", "hogwild"))]
)
def test_elsewhere_the_first_replica_averages_what_the_mode_would_evaluate(
    averages, monkeypatch, tmp_path, sync: str
) -> None:
    taken = seen_by(averages, monkeypatch, lambda its: its.consensus())
    made = averaged(tmp_path, "average=ema", "average.decay=0.5", f"sync={sync}")
    assert len(averages) == 1 and len(taken[0]) == 9
    for name, tensor in made.items():
        expected = taken[0][0][name].double()
        for weights_then in taken[0][1:]:
            expected = 0.5 * expected + 0.5 * weights_then[name].double()
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-7)


def test_before_anything_counts_what_is_trained_is_evaluated_and_training_never_sees_the_average(tmp_path) -> None:
    plain = run([*VIRTUAL, "evaluate.every=1"], root=tmp_path, quiet=True, name="plain")
    late = run([*VIRTUAL, "evaluate.every=1", "average=swa", "average.start=2"], root=tmp_path, quiet=True, name="late")
    losses = [[r["loss"] for r in RunDirectory(each.path).records() if r["kind"] == "step"] for each in (plain, late)]
    scores = [
        [r["loss"] for r in RunDirectory(each.path).records() if r["kind"] == "evaluation"] for each in (plain, late)
    ]
    assert losses[0] == losses[1]
    assert plain.summary["wire"] == late.summary["wire"], "nothing more is sent"
    assert late.summary["memory"]["average"] == late.summary["predicted"]["memory"]["average"] == 4 * (65 * 8 + 90)
    assert scores[0][:2] == scores[1][:2] and scores[0][2] != scores[1][2], "one set of weights is its own average"


RESNET = ["model=resnet", "model.depth=8", "model.width=4"]


@slow
@pytest.mark.dist
@pytest.mark.parametrize("chosen", [[], ["sync=local_sgd"], ["strategy=pipeline"], ["sync.shard=gradients"], RESNET])
@pytest.mark.parametrize("average", [["average=ema"], ["average=swa", "average.start=1", "average.unit=steps"]])
def test_a_resumed_run_equals_the_uninterrupted_one(
    fork_server, tmp_path, average: list[str], chosen: list[str]
) -> None:
    how = [text for text in SMALL if chosen is not RESNET or not text.startswith("model")]
    how += ["hardware.workers=2", "steps=6", "checkpoint.every_steps=2", "checkpoint.keep=9", *average, *chosen]
    before = run(how, name="run", root=tmp_path, quiet=True)
    straight, trained = weights(before.path), read_parameters(before.path / "checkpoints" / "step-00000006")
    made = load_file(before.path / "model.safetensors")
    assert any(not torch.equal(made[name], tensor) for name, tensor in trained.items()), "checkpoints have both"
    assert weights(run(resume="run@step-00000002", root=tmp_path, quiet=True).path) == straight


@slow
def test_with_batch_norm_swa_is_judged_with_statistics_of_its_own(tmp_path: Path) -> None:
    how = ["tracking=none", "hardware=virtual", "hardware.workers=2", "data.limit=96", "batch_size=16", "steps=4"]
    how += ["model=resnet", "model.depth=8", "model.width=4", "average=swa", "average.start=1", "average.unit=steps"]
    result = run(how, root=tmp_path, quiet=True)
    state = load_file(result.path / "model.safetensors")
    model = ResNet(Digits().spec, depth=8, width=4)
    load_state(model, state)
    train, test = Digits(limit=96).load()
    assert evaluate(CrossEntropy(), model, test).loss == pytest.approx(result.summary["loss"])
    renew(model, train, batch_size=16)
    assert all(torch.allclose(tensor, state[name]) for name, tensor in state_of(model).items())


# -- what is refused


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (["average=ema", "average.decay=1"], "average.decay=1"),
        (["average=ema", "average.decy=0.5"], "average.decy"),
        (["average=swa", "average.every=0"], "average.every=0"),
        (["average=swa", "average.start=9"], "average.start=9: the first weights to average would be those after "),
        (["average=swa", "average.start=9", "average.unit=steps", "steps=8"], "after 9 steps, and the run has 8 steps"),
        (["average=ema", "sync=fedavg"], "and sync=fedavg has its weights on the server"),
        (["average=ema", "sync=diloco"], "and sync=diloco knows what is evaluated only where an outer step"),
        (["average=swa", "sync=push_sum"], "and sync=push_sum trains weights whose mean"),
        (["average=ema", "sync=independent"], "and sync=independent joins the weights of all when training"),
        (["average=ema", "sync=easgd_round_robin"], "and sync=easgd_round_robin has its centre where it was"),
        (["average=ema", "strategy=offload"], "and strategy=offload keeps weights on the host"),
        (["average=ema", "strategy=torch_fsdp"], "and strategy=torch_fsdp cuts its weights up"),
        (["average=ema", "strategy=zero"], "and strategy=zero leaves its weights to DeepSpeed"),
        (
            ["average=ema", "strategy=pipeline", "strategy.schedule=pipedream", "model.hidden=[16,12]"],
            "and strategy=pipeline has stages of different steps",
        ),
        (["average=swa", "sync=asp", "model=resnet"], "average=swa: makes running statistics of batch norm anew"),
        (["average=ema", "adapt=pruned"], "average=ema: adapt=pruned trains 6 times in one run"),
        (["average=swa", "adapt=pufferfish", "model.hidden=[16,12]"], "adapt=pufferfish makes the model another one"),
    ],
)
def test_what_cannot_be_averaged_is_refused_by_name(how: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(how).plan()
    assert says in str(refused.value) and refused.value.exit_code == 2


class Wandering(LocalUpdate):
    """A mode of a user's, whose replicas differ, and which says nothing of averages."""

    traits = replace(LocalUpdate.traits, weights_agree=False)


def test_a_mode_whose_replicas_differ_must_say_whose_weights_an_average_is_of() -> None:
    chosen = prepare(["average=ema", "hardware.workers=2"]).experiment
    assert Wandering().lacks[SYNC_AVERAGED].startswith("does not say whose weights an average is of")
    with pytest.raises(
        ConfigError, match=r"average=ema: 0 keep running statistics, which are made anew for torch's own"
    ):
        check_model(chosen, SWA(), LocalUpdate(), nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)))
    for sync in (LocalUpdate(), type("Mode", (Wandering,), {"traits": replace(Wandering.traits, averages="own")})()):
        assert SYNC_AVERAGED not in sync.lacks


@slow
def test_statistics_that_are_made_anew_are_not_verified() -> None:
    with pytest.raises(ConfigError, match="made anew by a pass over the training data, which no"):
        verify(
            ["average=swa", "average.start=1", "average.unit=steps", *RESNET, "hardware=virtual"],
            only=["tensor", "sync=bsp_naive"],
            workers=1,
        )
