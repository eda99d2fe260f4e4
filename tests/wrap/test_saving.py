"""A wrapped script that is stopped and goes on trains as if it had never stopped."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scripts import SAMPLES, identical, joined, parts, weights_of
from torch import nn
from torch.utils.data import Sampler

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine.base.started import DRY_RUN
from paceline.testing.fabrics import run_virtual
from paceline.tracking.errors import RunNameError
from paceline.tracking.run_directory import RunDirectory
from paceline.wrap import Run, ScriptError, wrap
from paceline.wrap.errors import ElsewhereError
from paceline.wrap.order import ParameterOrder
from paceline.wrap.shares import ShardedLoader

pytestmark = pytest.mark.dist

EPOCHS, STEPS = 3, 6  # of a pass: 22 samples in batches of 4
MODES = [
    ("sync=bsp",),
    ("sync=bsp", "sync.shard=optimizer"),
    ("sync=bsp", "compress=topk"),
    ("sync=local_sgd", "sync.period=4"),
    ("sync=diloco", "sync.period=4"),
    ("sync=gossip",),
    ("sync=easgd",),
    ("sync=noloco",),
    ("sync=sparta",),
    ("sync=streaming_diloco",),
]


Draws = Callable[[], list[int]]


class Stop(Exception):
    """The script is killed here."""


class Drawing(Sampler[int]):
    """Has no generator of its own."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(self.draws())


def script(
    comm: Comm,
    root: str,
    overrides: tuple[str, ...],
    save: int | None,
    stop: int | None,
    resume: bool,
    draws: Draws | None = None,
    inside: bool = False,
    turn: int = 0,
) -> dict[str, Any]:
    """Draws random numbers where it is alone: virtual workers are threads, and share the generators of their process.

    `save`, `stop`: after so many steps; save=-1: after the first pass. `draws`: the loader's order.
    `inside`: of `run.consensus()` it saves. `turn`: the optimizer's parameters have other places on each worker.
    """
    model, optimizer, loader = parts(**({} if draws is None else {"shuffle": False, "sampler": Drawing(draws)}))
    if turn:
        every, first = [*model.parameters()], (turn + comm.rank) % 5
        optimizer = torch.optim.AdamW([*every[first:], *every[:first]], lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    drop = nn.Dropout(0.5)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that scripts share
    torch.manual_seed(0)
    run = joined(comm, root, model, optimizer, loader, *overrides, epochs=EPOCHS, resume=resume)
    drawn = []
    with run:
        if run.saved:
            schedule.load_state_dict(run.saved["schedule"])
        for epoch in range(run.saved.get("epoch", 0), EPOCHS):
            for batch in run.loader:
                comm.elapse(0.01)
                if comm.size == 1:
                    drawn.append(float(drop(torch.ones(()))) + random.random() + np.random.rand())  # noqa: NPY002
                run.backward(run.model(**batch).loss * (drawn[-1] if drawn else 1))
                run.optimizer.step()
                schedule.step()
                if run.steps == save:
                    with run.consensus() if inside else nullcontext():
                        run.save(epoch=epoch, schedule=schedule.state_dict())
                if run.steps == stop:
                    raise Stop
            if run.steps == STEPS and save == -1:
                run.save(epoch=epoch + 1, schedule=schedule.state_dict())
    return {"weights": weights_of(model), "steps": run.steps, "drawn": drawn, "seconds": run._meter.seconds}


@pytest.mark.parametrize("save", [8, 12, -1], ids=["amid a pass", "at its last batch", "between two"])
def test_alone_it_draws_what_it_would_have_drawn(save: int, tmp_path: Path) -> None:
    check(1, ("sync=bsp",), save, tmp_path)


@pytest.mark.parametrize("overrides", MODES, ids=" ".join)
def test_several_go_on_bit_for_bit(overrides: tuple[str, ...], tmp_path: Path) -> None:
    check(3, overrides, 9, tmp_path)  # amid a round: replicas have weights of their own


def test_saved_inside_of_the_consensus_each_goes_on_from_its_own_weights(tmp_path: Path) -> None:
    check(2, ("sync=local_sgd", "sync.period=4"), 9, tmp_path, inside=True)


def test_each_worker_has_what_it_saved_of_its_own(tmp_path: Path) -> None:
    def saved(comm: Comm, resume: bool) -> int:
        with joined(comm, str(tmp_path), *parts(), resume=resume) as run:
            if resume:
                return run.saved["rank"]
            run.save(rank=comm.rank)
            raise Stop

    with pytest.raises(Stop):
        run_virtual(2, saved, False)
    assert run_virtual(2, saved, True) == [0, 1]


def made_and_saved(run: Run, comm: Comm, stops: bool) -> None:
    """Trains, and saves after step 4."""
    for batch in run.loader:
        comm.elapse(0.01)
        run.backward(run.model(**batch).loss)
        run.optimizer.step()
        if run.steps == 4:
            run.save()
            if stops:
                raise Stop


def test_each_worker_goes_on_with_its_own_buffers(tmp_path: Path) -> None:
    def count(model: nn.Module, args: object, batch: dict[str, Any]) -> None:
        model.get_buffer("seen").add_(batch["input_ids"].sum())

    def counts(comm: Comm, folder: str, stops: bool, resume: bool) -> float:
        model, optimizer, loader = parts()
        model.register_buffer("seen", torch.zeros(()))
        model.register_forward_pre_hook(count, with_kwargs=True)
        with joined(comm, folder, model, optimizer, loader, resume=resume) as run:
            made_and_saved(run, comm, stops)
        return float(model.get_buffer("seen"))

    whole = run_virtual(2, counts, str(tmp_path / "whole"), False, False)
    with pytest.raises(Stop):
        run_virtual(2, counts, str(tmp_path / "parts"), True, False)
    rest = run_virtual(2, counts, str(tmp_path / "parts"), False, True)
    assert rest == whole and whole[0] != whole[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_state_of_weights_that_stand_in_columns_is_loaded_in_columns(workers: int, tmp_path: Path) -> None:
    def trained(comm: Comm, folder: str, stops: bool, resume: bool) -> dict[str, Any]:
        model, _, loader = parts()
        model.embedding.weight.data = model.embedding.weight.detach().t().contiguous().t()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
        with joined(comm, folder, model, optimizer, loader, resume=resume) as run:
            made_and_saved(run, comm, stops)
        return weights_of(model)

    whole = run_virtual(workers, trained, str(tmp_path / "whole"), False, False)
    with pytest.raises(Stop):
        run_virtual(workers, trained, str(tmp_path / "parts"), True, False)
    assert identical(run_virtual(workers, trained, str(tmp_path / "parts"), False, True)[0], whole[0])


GLOBAL: dict[str, Draws] = {
    "torch": lambda: torch.randperm(SAMPLES).tolist(),
    "python": lambda: random.sample(range(SAMPLES), SAMPLES),
    "numpy": lambda: np.random.permutation(SAMPLES).tolist(),  # noqa: NPY002 - the generator that scripts share
}
OTHER = "draws other batches in this pass than before the checkpoint"


@pytest.mark.parametrize("draws", GLOBAL)
def test_a_sampler_that_draws_from_a_global_generator_goes_on_amid_its_pass(
    draws: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check(1, ("sync=bsp",), 8, tmp_path, GLOBAL[draws])
    assert OTHER not in capfd.readouterr().err


def test_a_sampler_that_draws_another_order_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hidden = random.Random(0)
    with pytest.raises(AssertionError):
        check(1, ("sync=bsp",), 8, tmp_path, lambda: hidden.sample(range(SAMPLES), SAMPLES))
    assert capfd.readouterr().err.count(OTHER) == 1


@pytest.mark.parametrize("passed", [0, 2], ids=["between two passes", "amid one"])
def test_processes_that_stay_draw_their_seed_in_the_first_pass_alone(passed: int) -> None:
    """The loader's generator draws the order of each pass, too."""

    def sharded() -> ShardedLoader:
        drawn = torch.Generator().manual_seed(0)
        how: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "generator": drawn}
        return ShardedLoader(parts(shuffle=True, **how)[2], 0, 1, 0)

    def words(loader: ShardedLoader) -> Iterator[list[list[int]]]:
        return (batch["input_ids"].tolist() for batch, _, _ in loader.passes())

    whole, rest = sharded(), sharded()
    assert len(list(words(whole))) == STEPS
    third = words(whole)
    for _ in range(passed):
        next(third)
    rest.go_on(whole.place(), lambda: None)
    assert list(words(rest)) == (list(third) if passed else list(words(whole)))


@pytest.mark.parametrize("is_before", [True, False], ids=["before wrap", "after it"])
def test_a_schedule_that_begins_anew_is_told(
    is_before: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def scheduled(comm: Comm, resume: bool) -> list[float]:
        def made(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))

        model, optimizer, loader = parts()
        first, rates = made(optimizer) if is_before else None, []
        with joined(comm, str(tmp_path), model, optimizer, loader, resume=resume) as run:
            schedule = first or made(run.optimizer)
            if resume:
                schedule.load_state_dict(run.saved["schedule"])
            for batch in run.loader:
                comm.elapse(0.01)
                rates.append(run.optimizer.param_groups[0]["lr"])
                run.backward(run.model(**batch).loss)
                run.optimizer.step()
                schedule.step()
                if run.steps == 2 and not resume:
                    run.save(schedule=schedule.state_dict())
                    raise Stop
        return rates

    with pytest.raises(Stop):
        run_virtual(2, scheduled, False)
    [rates, _] = run_virtual(2, scheduled, True)
    said = capfd.readouterr().err
    assert rates[0] / rates[1] == pytest.approx(4 / 3 if is_before else 4)
    assert said.count("at the checkpoint lr was") == (not is_before)


class Counting(torch.optim.SGD):
    """Counts its steps where no checkpoint looks."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure)


def test_what_an_optimizer_keeps_and_no_checkpoint_has_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def saved(comm: Comm) -> None:
        model, _, loader = parts()
        with joined(comm, str(tmp_path), model, Counting(model.parameters()), loader) as run:
            for batch in run.loader:
                comm.elapse(0.01)
                run.backward(run.model(**batch).loss)
                run.optimizer.step()
                run.save()

    run_virtual(2, saved)
    said = capfd.readouterr().err
    assert said.count("note: optimizer=Counting: steps change count, which no checkpoint has") == 1


def check(
    workers: int,
    overrides: tuple[str, ...],
    save: int,
    folder: Path,
    draws: Draws | None = None,
    inside: bool = False,
) -> None:
    whole = run_virtual(workers, script, str(folder / "whole"), overrides, save, None, False, draws)
    with pytest.raises(Stop):
        run_virtual(workers, script, str(folder / "parts"), overrides, save, 13, False, draws, inside)
    rest = run_virtual(workers, script, str(folder / "parts"), overrides, None, None, True, draws)
    for before, after in zip(whole, rest, strict=True):
        assert identical(before["weights"], after["weights"]) and before["steps"] == after["steps"] == EPOCHS * STEPS
        assert after["drawn"] == before["drawn"][len(before["drawn"]) - len(after["drawn"]) :]
    directory = RunDirectory.open(folder / "parts", "mine")
    summary, first = directory.read_summary(), STEPS if save == -1 else save
    assert summary is not None and (summary["steps"], summary["resumed_at"]) == (18, first)
    assert [record["step"] for record in directory.records() if record["kind"] == "resume"] == [first]


@pytest.mark.parametrize(
    "overrides",
    [("sync=bsp",), ("sync=bsp", "sync.shard=optimizer"), ("sync=diloco", "sync.period=4")],
    ids=" ".join,
)
def test_an_optimizer_whose_parameters_have_no_order_goes_on_by_their_names(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    whole = run_virtual(2, script, str(tmp_path / "whole"), overrides, None, None, False)
    with pytest.raises(Stop):
        run_virtual(2, script, str(tmp_path / "parts"), overrides, 8, 9, False, None, False, 1)
    rest = run_virtual(2, script, str(tmp_path / "parts"), overrides, None, None, True, None, False, 2)
    assert all(identical(before["weights"], after["weights"]) for before, after in zip(whole, rest, strict=True))


@pytest.mark.budget(1)
@pytest.mark.parametrize(("then", "overrides"), [(True, ("sync=diloco", "sync.period=4")), (False, ("sync=bsp",))])
def test_a_model_that_is_compiled_only_then_or_only_now_goes_on(
    then: bool, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    def trains(comm: Comm, folder: str, compiles: bool, stops: bool, resume: bool) -> torch.Tensor:
        model, optimizer, loader = parts()
        model: Any = torch.compile(model, backend="eager") if compiles else model
        with joined(comm, folder, model, optimizer, loader, *overrides, resume=resume) as run:
            for _ in run.loader:
                comm.elapse(0.01)
                run.backward(sum((each.square().sum() for each in model.parameters()), torch.zeros(())))
                run.optimizer.step()
                if stops and run.steps == 2:
                    run.save(compiles="_orig_mod.")
                    raise Stop
            assert run.saved == ({"compiles": "_orig_mod."} if resume else {})
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    whole = run_virtual(2, trains, str(tmp_path / "whole"), False, False, False)
    with pytest.raises(Stop):
        run_virtual(2, trains, str(tmp_path / "parts"), then, True, False)
    rest = run_virtual(2, trains, str(tmp_path / "parts"), not then, False, True)
    assert all(map(torch.equal, whole, rest))


def saved_by(workers: int, folder: Path) -> None:
    with pytest.raises(Stop):
        run_virtual(workers, script, str(folder), ("sync=bsp",), 8, 9, False)


@pytest.mark.parametrize(
    ("workers", "overrides", "said"),
    [
        (3, ("sync=bsp",), "made by 2 workers, and 3 would go on. Start 2, or choose another name"),
        (2, ("sync=local_sgd",), "sync=local_sgd: the run mine has sync=bsp, and goes on as it began. Choose sync=bsp"),
        (2, ("sync=bsp", "sync.shard=optimizer"), "sync.shard=optimizer: the run mine has sync.shard=none"),
        (2, ("sync=bsp", "seed=3"), "seed=3: the run mine has seed=0"),
    ],
)
def test_another_run_than_that_which_was_saved_is_refused(
    workers: int, overrides: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    saved_by(2, tmp_path)
    with pytest.raises((ConfigError, ElsewhereError), match=said):
        run_virtual(workers, script, str(tmp_path), overrides, None, None, True)


def test_a_run_that_is_complete_or_kept_nothing_or_is_not_there_cannot_go_on(tmp_path: Path) -> None:
    for folder, save in ((tmp_path / "complete", 8), (tmp_path / "bare", None)):
        run_virtual(1, script, str(folder), ("sync=bsp",), save, None, False)
    (tmp_path / "bare" / "mine" / "summary.json").unlink()
    for folder, said in (
        ("complete", "the run is complete.*Choose another name"),
        ("bare", r"no checkpoint.*run.save\(\)\. Leave out resume and.*: paceline rm mine"),
        ("none", "no run 'mine'"),
    ):
        with pytest.raises((ConfigError, RunNameError), match=said):
            run_virtual(1, script, str(tmp_path / folder), ("sync=bsp",), None, None, True)


def test_a_configuration_that_somebody_changed_is_refused(tmp_path: Path) -> None:
    saved_by(1, tmp_path)
    config = tmp_path / "mine" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(ConfigError, match="is not as paceline wrote it"):
        run_virtual(1, script, str(tmp_path), ("sync=bsp", "seed=1"), None, None, True)


def test_other_groups_of_the_optimizer_are_refused(tmp_path: Path) -> None:
    saved_by(1, tmp_path)

    def other(comm: Comm) -> None:
        model, _, loader = parts()
        optimizer = torch.optim.AdamW([{"params": [each]} for each in model.parameters()])
        joined(comm, str(tmp_path), model, optimizer, loader, "sync=bsp", resume=True)

    with pytest.raises(ConfigError, match=r"optimizer: is another one than the checkpoint's: .* before wrap"):
        run_virtual(1, other)


def test_a_group_that_holds_other_parameters_is_refused_with_their_names(tmp_path: Path) -> None:
    def grouped(comm: Comm, first: str, resume: bool) -> None:
        model, _, loader = parts()
        groups = [[each for name, each in model.named_parameters() if (name == first) is of] for of in (True, False)]
        optimizer = torch.optim.AdamW([{"params": each} for each in groups])
        with joined(comm, str(tmp_path), model, optimizer, loader, "sync=bsp", resume=resume) as run:
            run.save()
            raise Stop

    with pytest.raises(Stop):
        run_virtual(1, grouped, "norm.weight", False)
    said = r"optimizer: group 0 is another one than the checkpoint's: norm.bias, norm.weight are in one"
    with pytest.raises(ConfigError, match=said):
        run_virtual(1, grouped, "norm.bias", True)


def test_the_state_of_an_earlier_version_goes_on_by_place() -> None:
    model = nn.Linear(2, 3)
    kept = {"state": {0: {"step": torch.ones(()), "m": torch.ones(3, 2)}, 1: {"m": torch.ones(3)}}}
    assert ParameterOrder(model, torch.optim.SGD(model.parameters())).renumbered(kept, None) is kept
    turned = ParameterOrder(model, torch.optim.SGD([model.bias, model.weight]))
    with pytest.raises(ConfigError, match="in another order than at the checkpoint, and an earlier version saved m"):
        turned.renumbered(kept, None)


def test_one_state_of_all_parameters_cannot_take_another_order() -> None:
    model = nn.Linear(2, 3)
    turned = ParameterOrder(model, torch.optim.LBFGS([model.bias, model.weight]))
    with pytest.raises(ConfigError, match="keeps one state of all parameters"):
        turned.renumbered({"state": {0: {"d": torch.ones(9)}}}, [["weight", "bias"]])


def test_another_model_is_refused(tmp_path: Path) -> None:
    saved_by(1, tmp_path)

    def other(comm: Comm) -> None:
        model, _, loader = parts()
        model.head = nn.Linear(8, 3).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        joined(comm, str(tmp_path), model, optimizer, loader, "sync=bsp", resume=True)

    with pytest.raises(ConfigError, match="model: is another one than the checkpoint's"):
        run_virtual(1, other)


def test_a_loader_of_other_data_cannot_go_on(tmp_path: Path) -> None:
    saved_by(1, tmp_path)
    with pytest.raises(ConfigError, match=r"wrap: the loader has 20 samples, and had 22.*choose another name"):
        run_virtual(1, lambda comm: joined(comm, str(tmp_path), *parts(samples=20), resume=True) and None)
    assert all(each["kind"] != "resume" for each in RunDirectory.open(tmp_path, "mine").records())


def test_a_target_that_was_reached_after_the_checkpoint_stays_reached(tmp_path: Path) -> None:
    def evaluates(comm: Comm, resume: bool) -> None:
        with joined(comm, str(tmp_path), *parts(), "target_accuracy=0.5", epochs=EPOCHS, resume=resume) as run:
            for batch in run.loader:
                comm.elapse(0.01)
                run.backward(run.model(**batch).loss)
                run.optimizer.step()
            run.save()
            run.evaluated(0.75)
            if not resume:
                raise Stop

    with pytest.raises(Stop):
        run_virtual(2, evaluates, False)
    run_virtual(2, evaluates, True)
    directory = RunDirectory.open(tmp_path, "mine")
    times = [record["time"] for record in directory.records() if record["kind"] == "evaluation"]
    summary = directory.read_summary()
    assert summary is not None and summary["time_to_accuracy"] == times[0] < times[1]


def test_a_run_that_is_resumed_after_its_last_evaluation_keeps_the_scores(tmp_path: Path) -> None:
    def evaluates(comm: Comm, folder: str, stops: bool, resume: bool) -> None:
        with joined(comm, folder, *parts(), epochs=1, resume=resume) as run:
            for batch in [] if resume else run.loader:
                comm.elapse(0.01)
                run.backward(run.model(**batch).loss)
                run.optimizer.step()
                if run.steps == 2:
                    run.evaluated(0.25, "early")
            if not resume:
                run.evaluated(0.75, loss=0.5)
                run.evaluated(0.125, "f1")
                run.save()
                run.evaluated(0.25, "f1")  # at the same step: the run goes on after it
            if stops:
                raise Stop

    run_virtual(2, evaluates, str(tmp_path / "whole"), False, False)
    with pytest.raises(Stop):
        run_virtual(2, evaluates, str(tmp_path / "parts"), True, False)
    run_virtual(2, evaluates, str(tmp_path / "parts"), False, True)
    whole, rest = (RunDirectory.open(tmp_path / folder, "mine").read_summary() for folder in ("whole", "parts"))
    assert whole is not None and rest is not None and whole["metrics"] == {"early": 0.25, "f1": 0.25}
    for key in ("accuracy", "loss", "metrics", "seconds", "batch_size", "effective_batch"):
        assert rest[key] == whole[key] != 0, key


def saves(comm: Comm, root: str, state: Any, amid: bool) -> None:
    model, optimizer, loader = parts()
    with joined(comm, root, model, optimizer, loader, "sync=bsp") as run:
        for batch in run.loader:
            comm.elapse(0.01)
            run.backward(run.model(**batch).loss)
            if amid:
                run.save()
            run.optimizer.step()
            run.save(own=state)


@pytest.mark.parametrize(
    ("state", "amid", "said"),
    [
        (object(), False, "save: own is a object; states hold tensors"),
        ({"a": {(1, 2): 3}}, False, "save: own.a has a tuple as key; use texts or numbers"),
        ({"best": np.float32(1)}, False, r"save: own.best is a float32; .*\. Choose \.item\(\)"),
        ({"done": [np.True_]}, False, r"save: own.done.0 is a bool.*\. Choose \.item\(\)"),
        ({np.int64(1): 2}, False, r"save: own has a int64 as key; use texts or numbers\. Choose \.item\(\)"),
        ([np.ones(2)], False, r"save: own.0 is a ndarray; .*\. Choose torch\.from_numpy\(\.\.\.\) or \.tolist\(\)"),
        (1, True, r"Call it after run.optimizer.step\(\)"),
    ],
)
def test_what_cannot_be_kept_and_a_step_that_has_begun_are_told(
    state: Any, amid: bool, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ScriptError, match=said):
        run_virtual(1, saves, str(tmp_path), state, amid)


def saves_in_spite(comm: Comm, root: str, who: int, resume: bool) -> list[Any]:
    """Goes on after a checkpoint that worker `who` cannot write."""
    model, optimizer, loader = parts()
    caught: list[str] = []
    run = joined(comm, root, model, optimizer, loader, "sync=local_sgd", resume=resume)
    begun = run.steps
    with suppress(Stop), run:
        for batch in run.loader:
            comm.elapse(0.01)
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            try:
                run.save(own=object() if run.steps == 2 and comm.rank == who else 1)
            except (ScriptError, ElsewhereError) as error:
                caught.append(str(error))
            if run.steps == 4:
                raise Stop
    return [begun, caught]


@pytest.mark.parametrize("who", [0, 1])
def test_a_checkpoint_that_one_worker_cannot_write_is_none_of_any(who: int, tmp_path: Path) -> None:
    said = "save: own is a object; states hold tensors, numbers and strings"
    ended = run_virtual(2, saves_in_spite, str(tmp_path), who, False)
    told = [[said] if rank == who else [f"worker {who}: {said}"] for rank in range(2)]
    assert ended == [[0, each] for each in told]
    directory = RunDirectory.open(tmp_path, "mine")
    assert [each["step"] for each in directory.records() if each["kind"] == "checkpoint"] == [1, 3, 4]
    assert run_virtual(2, saves_in_spite, str(tmp_path), who, True) == [[4, []]] * 2


SCRIPT = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader
from paceline.wrap import wrap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(torch.randn(24, 4, generator=torch.Generator().manual_seed(1)), batch_size=8, shuffle=True)
with wrap(model, optimizer, loader, name=sys.argv[1], epochs=4) as run:
    for epoch in range(run.saved.get("epoch", 0), 4):
        for batch in run.loader:
            run.backward(run.model(batch).square().mean())
            run.optimizer.step()
        if sys.argv[2:] == ["first"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(9)
        run.save(epoch=epoch + 1)
        if sys.argv[2:] == [str(epoch)]:
            os._exit(9)
"""


@pytest.mark.slow  # four launches of two processes
def test_launched_workers_that_are_killed_go_on(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)

    def launched(*given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "paceline.cli.main", "launch", *given]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert launched("own.py", "whole").returncode == 0
    assert launched("own.py", "parts", "1").returncode != 0
    again = launched("own.py", "parts")
    assert again.returncode == 2 and "paceline launch --resume" in again.stderr
    resumed = launched("--resume", "own.py", "parts")
    assert resumed.returncode == 0, resumed.stderr
    whole, rest = (load_file(tmp_path / "runs" / name / "model.safetensors") for name in ("whole", "parts"))
    assert identical(whole, rest)


@pytest.mark.slow  # launches of two processes
@pytest.mark.parametrize(
    ("dies", "says"), [("1", "goes on from step-00000006"), ("first", "begins anew, with no checkpoint")]
)
def test_a_script_that_torchrun_starts_again_goes_on(dies: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)

    def started(*given: str) -> str:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *given]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    started("own.py", "whole")
    assert f"run parts: {says}" in started("--max-restarts=1", "own.py", "parts", dies)
    whole, parts = (load_file(tmp_path / "runs" / name / "model.safetensors") for name in ("whole", "parts"))
    assert identical(whole, parts)


def test_a_script_that_is_started_again_with_other_settings_removes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("paceline.wrap.run", "paceline.engine.base.generations"):
        monkeypatch.setattr(f"{module}.job_of_torchrun", lambda: "ours")

    def stopped(comm: Comm, *overrides: str) -> None:
        with joined(comm, str(tmp_path), *parts(), *overrides, resume=None):
            raise Stop

    with pytest.raises(Stop):
        run_virtual(1, stopped)
    with pytest.raises(ConfigError, match="goes on as it began"):
        run_virtual(1, stopped, "seed=3")
    assert RunDirectory.open(tmp_path, "mine").path.exists()
    with pytest.raises(Stop):
        run_virtual(1, stopped)


def test_a_dry_run_ends_at_wrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DRY_RUN, "3")
    with pytest.raises(SystemExit) as ended:
        wrap(*parts(), "sync=bsp", name="mine", root=tmp_path, epochs=2)
    assert ended.value.code == 0 and not list(tmp_path.iterdir())
    said = capsys.readouterr().out
    assert "22 samples, 6 batches a pass; each worker has 1 or 2 of 4" in said
    assert "steps: not known: the script's loop decides. One for each batch of 2 passes" in said
    with pytest.raises(SystemExit):
        wrap(*parts(), "sync=bsp", root=tmp_path, epochs=2, steps=7)
    assert "\nsteps: 7, in 2 passes\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):  # a run of two steps has no third, at which replicas would be averaged
        wrap(*parts(), "sync=local_sgd", "sync.period=3", root=tmp_path, steps=2)
    assert "a worker sends in a step: 0 B\n" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"steps=-1: must be a whole number, and not negative"):
        wrap(*parts(), root=tmp_path, steps=-1)
    with pytest.raises(ConfigError, match="sync=asp"):
        wrap(*parts(), "sync=asp", root=tmp_path)


@pytest.mark.slow  # two launches
def test_a_dry_run_says_what_a_script_would_train_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    (tmp_path / "other.py").write_text("print('no call')")
    command = [sys.executable, "-m", "paceline.cli.main", "launch", "--dry-run", "--workers", "3"]
    ended = subprocess.run([*command, "own.py", "mine"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Sequential on Tensor, sync=bsp: 3 workers" in ended.stdout and not (tmp_path / "runs").exists()
    assert "24 samples, 3 batches a pass; each worker has 2 or 3 of 8 samples" in ended.stdout
    assert "25 entries are trained by SGD" in ended.stdout and "nothing was written" in ended.stdout
    other = subprocess.run([*command, "other.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert other.returncode == 2 and "other.py: ended without a call of wrap" in other.stderr
