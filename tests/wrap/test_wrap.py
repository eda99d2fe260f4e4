"""A person's own loop, loader and Hugging Face style model on replicas: the same training, a run like all others."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from process_table import MARK, marked, until
from safetensors.torch import load_file
from scripts import Sentences, Stream, distance, identical, joined, loop, parts, serially, train, unmasked, weights_of
from torch import nn
from torch.utils.data import DataLoader

from paceline.comm import Comm
from paceline.conf.errors import ConfigError
from paceline.engine.base import checkpoint
from paceline.engine.base.errors import ChangedModelError, DivergedError
from paceline.engine.base.failures import exit_code_of
from paceline.testing.fabrics import run_virtual
from paceline.tracking.columns import METRICS
from paceline.tracking.compare import render, rows
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.summaries import is_taken
from paceline.wrap import Run, ScriptError, workers, wrap
from paceline.wrap.shares import on_device, share_of
from paceline.wrap.stopping import CtrlC

EXACT = 1e-12  # float64: sums in another order


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


def test_alone_it_is_the_loop_itself_bit_for_bit(root: str) -> None:
    assert identical(train(None, root)["weights"], serially())
    (run,) = Path(root).iterdir()
    assert RunDirectory(run).is_of_script()


@pytest.mark.parametrize("option", ["name", "root"])
def test_an_option_of_another_kind_is_refused(option: str) -> None:
    given: dict[str, Any] = {option: 3}
    with pytest.raises(ConfigError, match=f"{option}=3: is of type int. Choose a text or "):
        wrap(*parts(), **given)


@pytest.mark.slow  # tracing takes seconds
@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_the_script_compiled_trains_as_it_does_without(root: str, in_place: bool) -> None:
    torch._dynamo.reset()
    model, optimizer, loader = parts()
    if in_place:
        model.compile(backend="aot_eager")
    compiled = model if in_place else torch.compile(model, backend="aot_eager")
    run = wrap(cast("nn.Module", compiled), optimizer, loader, name="mine", root=root, epochs=2)
    with run:
        loop(run, epochs=2)
    ours, theirs = weights_of(model), serially()
    assert distance(ours, theirs) < EXACT
    assert load_file(run.path / "model.safetensors").keys() == model.state_dict().keys()
    assert f'"model": "{type(model).__name__}"' in (run.path / "summary.json").read_text()


@pytest.mark.parametrize("size", [2, 3, 4])  # of three, one has no sample of the last batch of two
def test_workers_share_out_the_loaders_batches_and_train_as_one(root: str, size: int) -> None:
    results = run_virtual(size, train, root)
    for result in results:
        assert distance(result["weights"], serially()) < EXACT
        assert identical(result["weights"], results[0]["weights"])
        assert sum(result["bytes"].values()) > 0


@pytest.mark.parametrize("shard", ["optimizer", "gradients"])
def test_a_worker_without_samples_takes_part_where_state_is_sharded(root: str, shard: str) -> None:
    for result in run_virtual(3, train, root, "sync=bsp", f"sync.shard={shard}"):
        assert distance(result["weights"], serially()) < EXACT


def test_accumulated_gradients_are_those_of_all_batches_of_the_step(root: str) -> None:
    results = run_virtual(2, partial(train, accumulate=2, samples=16), root)
    assert distance(results[0]["weights"], serially(accumulate=2, samples=16)) < EXACT


def test_batches_of_one_step_that_are_shared_unevenly_are_refused(root: str) -> None:
    with pytest.raises(ScriptError, match="no one weight; use drop_last=True"):
        run_virtual(3, partial(train, accumulate=2, samples=6), root)
    x = torch.ones(1, requires_grad=True)
    (x * x).sum().backward()  # no hook of the step that was left is there any more


def test_a_loss_that_is_a_mean_over_unmasked_words_is_weighed_by_them(root: str) -> None:
    serial = serially(masks=True)
    counted = run_virtual(2, partial(train, masks=True, count=unmasked), root)
    assert distance(counted[0]["weights"], serial) < EXACT
    by_sample = run_virtual(2, partial(train, masks=True), root + "2")
    assert distance(by_sample[0]["weights"], serial) > 1e-6  # the mean of means is another loss


def test_modes_whose_replicas_differ_leave_their_consensus_in_the_model(root: str) -> None:
    results = run_virtual(2, train, root, "sync=local_sgd", "sync.period=3")
    assert identical(results[0]["weights"], results[1]["weights"])
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert distance(results[0]["weights"], serially()) > 1e-6


def test_what_a_sync_mode_is_given_is_chosen_as_on_the_command_line(root: str) -> None:
    plain = run_virtual(2, train, root)
    ring = run_virtual(2, train, root + "2", "collective=ring")
    halved = run_virtual(2, train, root + "3", "compress=bf16")
    assert distance(ring[0]["weights"], plain[0]["weights"]) < EXACT
    assert sum(halved[0]["bytes"].values()) < sum(plain[0]["bytes"].values())


def test_the_run_directory_is_that_of_any_run_and_compare_shows_it(root: str) -> None:
    train(None, root)
    directory = RunDirectory.open(root, "mine")
    summary = directory.read_summary()
    assert summary is not None
    assert (summary["status"], summary["steps"], summary["workers"]) == ("completed", 12, 1)
    assert (summary["model"], summary["data"], summary["sync"]) == ("Tagger", "Sentences", "bsp")
    assert summary["batch_size"] == 4 and 0 <= summary["accuracy"] <= 1
    assert summary["memory"]["parameters"] > 0 and summary["memory"]["activations"] > 0
    kinds = [record["kind"] for record in directory.records()]
    assert kinds == ["start", *["step"] * 12, "evaluation", "end"]
    assert render(rows([summary])).splitlines()[1].split()[:4] == ["mine", "data_parallel", "bsp", "1"]


def test_a_script_that_fails_leaves_a_run_that_says_so(root: str) -> None:
    model, optimizer, loader = parts()
    with pytest.raises(KeyError), wrap(model, optimizer, loader, name="broken", root=root):
        raise KeyError("mine")
    assert RunDirectory.open(root, "broken").records()[-1] == {
        "kind": "end",
        "status": "failed",
        "reason": "KeyError: 'mine'",
    }


def test_a_layer_that_is_thawed_in_mid_run_ends_the_script_with_the_reason(root: str) -> None:
    def thaw(comm: Comm) -> None:
        model, optimizer, loader = parts()
        first = next(model.parameters()).requires_grad_(False)
        with joined(comm, root, model, optimizer, loader) as run:
            for i, batch in enumerate(run.loader):
                first.requires_grad_(i > 0)
                run.backward(model(**batch).loss)
                run.optimizer.step()

    with pytest.raises(ChangedModelError, match=r"since step 1, and did not when the run began.*after wrap"):
        run_virtual(2, thaw)


def test_a_group_of_parameters_that_no_replica_knows_of_is_refused(root: str) -> None:
    model, optimizer, loader = parts()
    with (
        pytest.raises(ChangedModelError, match=r"a parameter of shape \[3\] since step 0"),
        wrap(model, optimizer, loader, name="grown", root=root) as run,
    ):
        run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
        run.backward(model(**next(iter(run.loader))).loss)
        run.optimizer.step()


def test_a_parameter_of_the_optimizer_that_the_model_lacks_is_refused_by_wrap(root: str) -> None:
    model, _, loader = parts()
    optimizer = torch.optim.SGD([*model.parameters(), torch.nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(ConfigError, match=r"^optimizer: has a parameter of shape \[3\] that the model lacks"):
        wrap(model, optimizer, loader, root=root)


def test_a_run_whose_weights_cannot_be_written_has_an_end(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "export", full)
    model, optimizer, loader = parts()
    with pytest.raises(OSError, match="No space"), wrap(model, optimizer, loader, name="full", root=root) as run:
        run.backward(model(**next(iter(run.loader))).loss)
        run.optimizer.step()
    records = RunDirectory.open(root, "full").records()
    assert [record["status"] for record in records if record["kind"] == "end"] == ["failed"]


@pytest.mark.parametrize("told", [{"value": float("nan")}, {"value": 0.5, "loss": float("inf")}])
def test_an_evaluation_that_is_not_finite_is_a_run_that_diverged(root: str, told: dict[str, Any]) -> None:
    model, optimizer, loader = parts()
    with (
        pytest.raises(DivergedError, match="evaluated after step 0"),
        wrap(model, optimizer, loader, name="far", root=root) as run,
    ):
        run.evaluated(**told)
    records = RunDirectory.open(root, "far").records()
    assert [record["kind"] for record in records] == ["start", "end"] and records[-1]["status"] == "diverged"


def test_the_summary_has_the_last_value_of_each_metric(root: str) -> None:
    model, optimizer, loader = parts()
    with wrap(model, optimizer, loader, name="mine", root=root) as run:
        run.evaluated(0.2, metric="f1")
        run.evaluated(0.6, loss=0.5)
        run.evaluated(0.3, metric="f1")
        run.evaluated(9.0, metric="perplexity")
    summary = RunDirectory.open(root, "mine").read_summary() or {}
    assert (summary["accuracy"], summary["loss"]) == (0.6, 0.5)
    assert summary["metrics"] == {"f1": 0.3, "perplexity": 9.0}


@pytest.mark.parametrize(("metric", "reached"), [("accuracy", True), ("r2", True), ("perplexity", False)])
def test_only_accuracy_and_r2_reach_the_target(root: str, metric: str, reached: bool) -> None:
    model, optimizer, loader = parts()
    with wrap(model, optimizer, loader, "target_accuracy=0.5", name="mine", root=root) as run:
        run.backward(model(**next(iter(run.loader))).loss)
        run.optimizer.step()
        run.evaluated(0.6, metric=metric)
    summary = RunDirectory.open(root, "mine").read_summary()
    assert summary is not None and (summary["time_to_accuracy"] is not None) == reached


def test_a_loss_that_is_not_finite_is_a_run_that_diverged(root: str) -> None:
    model, optimizer, loader = parts()
    with pytest.raises(DivergedError, match="step 0"), wrap(model, optimizer, loader, name="far", root=root) as run:
        batch = next(iter(run.loader))
        run.backward(run.model(**batch).loss * float("nan"))
    assert RunDirectory.open(root, "far").records()[-1]["status"] == "diverged"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("sync=asp",), "sync=asp: has servers"),
        (("sync=parameter_server",), "sync=parameter_server: has servers"),
        (("sync=gossip_async",), "sync=gossip_async: lets replicas take steps at paces of their own"),
        (("sync=routed",), "sync=routed: each replica is the expert of samples of its own.*paceline train"),
        (("strategy=pipeline",), "strategy=pipeline: lays out the model.*paceline train"),
        (("strategy.batch_norm=all",), "swaps layers of the model"),
        (("hardware=virtual",), "leave it out"),
        (("model=cnn",), "a script says that itself"),
        (("compress=dgc",), "compress=dgc"),
        (("foo=1",), "foo: there is no such key"),
        (("privacy=dp_sgd",), "privacy=dp_sgd: needs the gradient of each sample.*paceline train"),
        (("hardware=a100_8",), "hardware=a100_8: .* wrap takes hardware.timeout and hardware.device"),
        (("hardware.workers=3",), "hardware.workers=3: the launcher chooses"),
        (("hardware/network=infiniband",), "hardware/network=infiniband: the launcher chooses"),
    ],
)
def test_what_a_script_cannot_have_is_refused_by_name(overrides: tuple[str, ...], said: str, root: str) -> None:
    with pytest.raises(ConfigError, match=said):
        wrap(*parts(), *overrides, root=root)
    assert not Path(root).exists()


def test_arguments_that_are_no_model_optimizer_or_loader_are_refused_by_name(root: str) -> None:
    model, optimizer, loader = parts()
    wrong: Any = [(optimizer, model, loader), (model, "sgd", loader), (model, optimizer, list(loader))]
    for arguments, said in zip(wrong, ("model is a AdamW", "optimizer is a str", "loader is a list"), strict=True):
        with pytest.raises(ConfigError, match=f"wrap: the {said}. Give a torch.s "):
            wrap(*arguments, root=root)


@pytest.mark.parametrize("count", [-1, 2.5, float("nan"), "3", torch.tensor(2.0)])
def test_a_count_that_is_no_number_of_items_is_refused(count: Any, root: str) -> None:
    said = r"count: gave .* of a batch; must be a whole number, 0 or more"
    with pytest.raises(ScriptError, match=said), wrap(*parts(), count=lambda _: count, root=root) as run:
        next(iter(run.loader))


def test_a_count_may_be_a_tensor(root: str) -> None:
    model, optimizer, loader = parts(masks=True)
    with wrap(model, optimizer, loader, count=lambda batch: (batch["labels"] != -100).sum(), root=root) as run:
        batch = next(iter(run.loader))
        run.backward(run.model(**batch).loss)
        run.optimizer.step()
        assert run.steps == 1


class _Plain(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            torch._foreach_add_(group["params"], [p.grad for p in group["params"]], alpha=-group["lr"])


def test_an_optimizer_whose_step_takes_no_closure_trains(root: str) -> None:
    model, _, loader = parts()
    before = deepcopy(model.state_dict())
    with wrap(model, _Plain(model.parameters()), loader, root=root) as run:
        batch = next(iter(run.loader))
        run.backward(run.model(**batch).loss)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        run.optimizer.step()
    for old, new, gradient in zip(before.values(), model.state_dict().values(), gradients, strict=True):
        assert torch.equal(new, old.add(gradient, alpha=-0.1))


def test_a_name_that_is_taken_is_refused_with_the_two_ways_on(root: str) -> None:
    wrap(*parts(), name="mine", root=root).close()
    with pytest.raises(ConfigError, match=r"^name=mine: .*runs/mine is a run already. Choose another name, or go on"):
        wrap(*parts(), name="mine", root=root)


def test_of_several_workers_all_refuse_a_taken_name_for_the_chiefs_reason(root: str) -> None:
    wrap(*parts(), name="mine", root=root).close()
    said = run_virtual(3, named, root)
    assert said == [["ConfigError", 2], ["ElsewhereError", 2], ["ElsewhereError", 2]]


def named(comm, root: str) -> list[str | int | None]:
    with pytest.raises(Exception, match=r"name=mine: .*runs/mine is a run already") as refused:
        joined(comm, root, *parts())
    return [refused.typename, exit_code_of(refused.value)]


def test_a_refusal_that_nobody_catches_is_its_message_and_its_exit_status(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: others.append(error))
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:  # caught, it is an exception as any other
            wrap(*parts(), "sync=asp", root=root)
    with pytest.raises(SystemExit) as end:  # as the interpreter does with what was not caught
        sys.excepthook(refused.type, refused.value, refused.tb)
    assert end.value.code == 2 and capsys.readouterr().err == f"{refused.value}\n"
    mine = KeyError("mine")
    sys.excepthook(KeyError, mine, None)
    assert others == [mine]


def test_an_interactive_interpreter_shows_a_refusal_as_any_exception(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shows(*_: object) -> None: ...

    monkeypatch.setattr(sys, "excepthook", shows)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(ConfigError):
        wrap(*parts(), "sync=asp", root=root)
    assert sys.excepthook is shows


@pytest.mark.slow  # a process
def test_a_script_that_is_refused_ends_with_one_line_and_2(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT.replace('name="mine"', '"sync=asp"'))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (2, "") and ended.stderr.startswith("sync=asp: has servers")
    assert ended.stderr.count("\n") == 1


SCRIPT = """
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), name="mine") as run:
    for batch in run.loader:
        run.backward(run.model(**batch).loss)
        run.optimizer.step()
"""


@pytest.mark.slow  # two runs of two processes
def test_a_launched_script_that_is_refused_says_so_once_and_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    first, again = (
        subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        for _ in range(2)
    )
    assert first.returncode == 0 and first.stderr.endswith("completed\n")
    assert (again.returncode, again.stdout) == (2, "") and again.stderr.startswith("name=mine: ")
    assert again.stderr.count("\n") == 1 and "Choose another name" in again.stderr


def test_workers_that_are_asked_to_stop_leave_before_the_same_step_with_a_summary(root: str) -> None:
    ended = run_virtual(3, stopped, root)
    steps, exports = {each[0] for each in ended}, [each[1] for each in ended]
    assert len(steps) == 1 and 2 < min(steps) < 500
    assert identical(exports[0], exports[1]) and identical(exports[0], exports[2])
    directory = RunDirectory.open(root, "mine")
    summary, last = directory.read_summary(), directory.records()[-1]
    assert summary is not None and (summary["status"], summary["steps"]) == ("interrupted", min(steps))
    reason = f"was asked to stop, after step {min(steps)}"
    assert last == {"kind": "end", "status": "interrupted", "reason": reason} and summary["reason"] == reason
    assert (directory.path / "model.safetensors").exists()


def stopped(comm, root: str):
    model, optimizer, loader = parts()
    run = joined(comm, root, model, optimizer, loader, epochs=100)
    with pytest.raises(KeyboardInterrupt), run:  # a script that handles Ctrl-C sees it as ever
        for _ in range(100):
            for batch in run.loader:
                comm.elapse(0.01)
                run.backward(run.model(**batch).loss)
                run.optimizer.step()
                if run.steps == 2 and comm.rank == 1:
                    comm.key_values.request_stop()
    return run.steps, weights_of(model)


@pytest.fixture
def usual_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_ctrl_c")
def test_the_first_ctrl_c_asks_to_stop_and_the_second_raises(capfd: pytest.CaptureFixture[str]) -> None:
    asked: list[int] = []
    ctrl_c = CtrlC(lambda: asked.append(1), says=True)
    signal.raise_signal(signal.SIGINT)
    assert asked == [1] and "once more to leave at once" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    ctrl_c.let_go()
    assert asked == [1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("usual_ctrl_c")
def test_a_script_that_handles_ctrl_c_itself_goes_on_doing_so() -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGINT, mine)
    CtrlC(lambda: None, says=True)
    assert signal.getsignal(signal.SIGINT) is mine


def test_a_script_that_is_interrupted_all_the_same_leaves_a_run_that_says_so(root: str) -> None:
    with pytest.raises(KeyboardInterrupt), wrap(*parts(), name="mine", root=root):
        raise KeyboardInterrupt
    last = RunDirectory.open(root, "mine").records()[-1]
    assert last == {"kind": "end", "status": "interrupted", "reason": "KeyboardInterrupt"}


LONG = """
import signal
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), name="mine", epochs=100000) as run:
    for epoch in range(100000):
        for batch in run.loader:
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            if run.steps == 3 and run.is_chief:
                print("trains", flush=True)
"""


@pytest.mark.slow  # two processes
@pytest.mark.fault
@pytest.mark.parametrize(
    "command", [["-m", "paceline.cli.main", "launch", "--workers", "2"], []], ids=["launched", "alone"]
)
def test_ctrl_c_ends_a_script_as_it_ends_a_run(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LONG)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        [sys.executable, *command, "mine.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "trains\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in said, said
    summary = RunDirectory.open(tmp_path / "runs", "mine").read_summary()
    assert summary is not None and summary["status"] == "interrupted" and summary["steps"] >= 3
    assert said.splitlines()[-1].startswith(f"the run was asked to stop, after step {summary['steps']}; its summary")
    assert said.count("once more to leave at once") == 1


IMPORTS = "import os, time, torch\nprint('starts', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"


@pytest.mark.slow  # two processes
@pytest.mark.fault
@pytest.mark.parametrize(("before", "line"), [("", "trains\n"), (IMPORTS, "starts\n")], ids=["training", "importing"])
def test_workers_of_a_script_die_with_their_launcher(before: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(before + LONG)
    mark = str(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), MARK: mark}
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    with subprocess.Popen(launch, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2 if before else 1):
            assert process.stdout.readline() == line
        process.kill()
        (tmp_path / "go").touch()
        until(lambda: not marked(mark), 60, "workers outlive their launcher")


def ahead(run: Run, batches: Iterator[Any]) -> None:
    batch = next(batches)
    while batch is not None:
        following = next(batches, None)
        run.backward(run.model(**batch).loss)
        run.optimizer.step()
        batch = following


def amid(run: Run, batches: Iterator[Any]) -> None:
    batch = next(batches)
    while batch is not None:
        run.backward(run.model(**batch).loss)
        batch = next(batches, None)
        run.optimizer.step()


def in_a_thread(run: Run, batches: Iterator[Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        run.backward(run.model(**pool.submit(next, batches).result()).loss)


def refused_at(comm: Any, root: str, does: Callable[[Run, Iterator[Any]], None]) -> tuple[str, int]:
    run = joined(comm, root, *parts(), epochs=2)
    with pytest.raises(ScriptError) as caught:
        does(run, iter(run.loader))
    return str(caught.value), run.steps


@pytest.mark.parametrize(
    ("does", "steps", "told"),
    [
        (ahead, 0, "backward: a batch was fetched before the step with the one before. Fetch each batch after run.opt"),
        (amid, 1, r"optimizer.step: a batch was fetched after run.backward\(loss\), which left out the step. Fetch it"),
        (in_a_thread, 0, "backward: another thread fetched the batch, .* Fetch it in the thread that trains"),
    ],
)
def test_a_batch_that_is_fetched_ahead_is_refused_in_the_first_step(
    does: Callable[[Run, Iterator[Any]], None], steps: int, told: str, tmp_path: Path
) -> None:
    for said, made in run_virtual(2, partial(refused_at, does=does), str(tmp_path)):
        assert re.match(told, said) and made == steps


def holds(comm: Any, root: str) -> dict[str, torch.Tensor]:
    model, optimizer, loader = parts()
    run = joined(comm, root, model, optimizer, loader, epochs=2)
    shown = next(iter(run.loader))
    assert shown is not None
    loop(run, epochs=2)
    return weights_of(model)


def test_a_batch_of_an_earlier_pass_may_be_held(tmp_path: Path) -> None:
    ours = run_virtual(2, holds, str(tmp_path / "runs"))
    assert all(distance(each, ours[0]) == 0 for each in ours)


def test_a_loader_without_batches_is_refused(root: str) -> None:
    with pytest.raises(ConfigError, match="no batches of its 3 samples"):
        wrap(*parts(samples=3, drop_last=True), root=root)


def test_a_launched_worker_wraps_one_run(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def meets(*_: Any) -> Comm:
        raise ConnectionError

    monkeypatch.setattr(workers, "was_started", lambda: True)
    monkeypatch.setattr(workers, "place", lambda: (0, 2))
    monkeypatch.setattr(workers, "connect_env", meets)
    monkeypatch.setattr(workers, "_wrapping", [])
    with pytest.raises(ConnectionError):
        wrap(*parts(), name="one", root=root)
    with pytest.raises(ConfigError, match="has wrapped a run before"):
        wrap(*parts(), name="two", root=root)


def test_a_loader_whose_samples_nobody_can_name_is_refused(root: str) -> None:
    model, optimizer, _ = parts()
    for loader in (DataLoader(Stream()), DataLoader(Sentences(), batch_size=None)):
        with pytest.raises(ConfigError, match="IterableDataset"):
            wrap(model, optimizer, loader, root=root)


class Doubled(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {key: torch.cat([each, each]) for key, each in batch.items()}


def test_a_loader_that_changes_batches_by_itself_is_refused(root: str) -> None:
    model, optimizer, _ = parts()
    with pytest.raises(ConfigError, match=r"class Doubled has an __iter__ of its own.*collate_fn"):
        wrap(model, optimizer, Doubled(Sentences(), batch_size=4), root=root)


def test_a_loop_in_another_order_is_told_what_to_do(root: str) -> None:
    model, optimizer, loader = parts()
    run = wrap(model, optimizer, loader, name="order", root=root)
    with pytest.raises(ScriptError, match=r"needs run\.backward"):
        run.optimizer.step()
    loss = run.model(**next(iter(run.loader))).loss
    run.backward(loss)
    with pytest.raises(ScriptError, match="last=False"):
        run.backward(loss)
    run.optimizer.step()
    run.close()
    run.close()  # once is enough


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_a_step_that_a_script_begins_last_and_does_not_make_is_left_out(
    size: int, last: bool, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrapped(comm: Comm, root: str) -> dict[str, torch.Tensor]:
        model, optimizer, loader = parts(samples=8, shuffle=False)
        with joined(comm, root, model, optimizer, loader) as run:
            for i, batch in enumerate(run.loader):
                comm.elapse(0.01)
                run.backward(run.model(**batch).loss, last=last or i == 0)
                if i == 0:
                    run.optimizer.step()
        return weights_of(model)

    model, optimizer, loader = parts(samples=8, shuffle=False)
    model(**next(iter(loader))).loss.backward()
    optimizer.step()
    for result in run_virtual(size, wrapped, root):
        assert distance(result, weights_of(model)) < 1e-12
    assert "note: the last step, 2, has gradients and was not made" in capsys.readouterr().err


def test_the_loader_of_a_run_has_the_attributes_of_the_scripts(root: str) -> None:
    model, optimizer, loader = parts()
    with wrap(model, optimizer, loader, name="mine", root=root) as run:
        assert run.loader.dataset is loader.dataset and run.loader.batch_size == loader.batch_size
        assert not hasattr(run.loader, "none") and not hasattr(run.loader, "_none")


def test_workers_that_draw_different_orders_are_found_before_they_train(root: str) -> None:
    with pytest.raises(ScriptError, match="different orders"):
        run_virtual(2, disordered, root)


def disordered(comm, root: str) -> None:
    model, optimizer, loader = parts()
    loader.sampler.generator = torch.Generator().manual_seed(comm.rank)  # type: ignore[union-attr]
    loop(joined(comm, root, model, optimizer, loader), 1)


def test_shares_follow_one_another_and_larger_ones_come_first() -> None:
    assert [share_of(list(range(7)), rank, 3) for rank in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert share_of([4], 1, 2) == []


def test_a_batch_goes_to_the_device_whatever_it_is_made_of() -> None:
    class Encoding(dict[str, torch.Tensor]):
        def to(self, device: torch.device) -> "Encoding":
            return Encoding({key: value.to(device) for key, value in self.items()})

    meta = torch.device("meta")
    batch = on_device({"a": torch.ones(1), "b": [torch.ones(1), "word"], "c": Encoding(d=torch.ones(1))}, meta)
    assert batch["a"].device == batch["b"][0].device == batch["c"]["d"].device == meta
    assert batch["b"][1] == "word" and isinstance(batch["c"], Encoding)


def test_a_view_of_a_parameter_that_the_sync_mode_moves_is_refused(root: str) -> None:
    def wrapped(comm: Comm, root: str) -> None:
        model, optimizer, loader = parts()
        vars(model)["kept"] = [model.head.weight.t()]
        joined(comm, root, model, optimizer, loader, "sync=local_sgd")

    with pytest.raises(ConfigError, match=r"sync=local_sgd: the model keeps a view of its parameter head\.weight"):
        run_virtual(2, wrapped, root)


def test_a_step_that_accumulates_has_the_samples_of_all_its_batches(tmp_path: Path) -> None:
    run_virtual(2, partial(train, accumulate=2, samples=16), str(tmp_path))  # two passes over 4 batches of 4
    directory = RunDirectory.open(tmp_path, "mine")
    summary, records = directory.read_summary(), list(directory.records())
    assert summary is not None and (summary["steps"], summary["epochs"], summary["effective_batch"]) == (4, 2.0, 4)
    steps = [each for each in records if each["kind"] == "step"]
    assert [each["epoch"] for each in steps] == [0.5, 1.0, 1.5, 2.0]
    assert [each["samples_per_second"] * each["step_time"] for each in steps] == pytest.approx([8] * 4)
    assert [each["epoch"] for each in records if each["kind"] == "evaluation"] == [2.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value": torch.tensor(0.5, requires_grad=True), "loss": np.float32(0.25)}, None),
        ({"value": torch.tensor([0.5]), "loss": torch.tensor(0.25)}, None),
        ({"value": torch.zeros(2)}, "accuracy is a Tensor: must be one number"),
        ({"value": None}, "accuracy is a NoneType: must be one number"),
        ({"value": 87.5}, "accuracy=87.5: must be from 0 to 1"),
        ({"value": 2.5, "metric": "loss"}, "metric=loss: a loss stands beside"),
        ({"value": 2.5, "metric": "time"}, "metric=time: a run has something else under it"),
        ({"value": 2.5, "metric": "memory"}, "metric=memory: a run has something else under it"),
        ({"value": 2.5, "metric": ""}, "metric=: a run has something else under it"),
    ],
)
def test_an_evaluation_may_be_a_tensor_of_one_number(given: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    def evaluates(comm: Comm) -> None:
        run = joined(comm, str(tmp_path), *parts())
        with pytest.raises(ScriptError, match=said) if said else nullcontext():
            run.evaluated(**given)

    run_virtual(1, evaluates)
    found = [each for each in RunDirectory.open(tmp_path, "mine").records() if each["kind"] == "evaluation"]
    assert [(each["accuracy"], each["loss"]) for each in found] == ([] if said else [(0.5, 0.25)])


def test_no_metric_takes_the_place_of_what_a_run_records(tmp_path: Path) -> None:
    run_virtual(1, train, str(tmp_path))
    directory = RunDirectory.open(tmp_path, "mine")
    summary = directory.read_summary()
    assert summary is not None
    evaluations = [each for each in directory.records() if each["kind"] == "evaluation"]
    written = {*summary, *evaluations[0]} - {*METRICS}
    assert len(written) > 40 and {name for name in written if not is_taken(name)} == set()
    assert not any(map(is_taken, (*METRICS, "f1", "error", "score", "perplexity")))
