"""compile=true: what is refused, what reaches the module, and that the time to compile is counted apart."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import nn

from paceline.conf.errors import ConfigError
from paceline.engine import plan, run
from paceline.engine.base.errors import MachineError
from paceline.engine.config.compose import compose
from paceline.engine.features import compiling
from paceline.engine.features.compiling import Compiler, check_machine
from paceline.engine.planning.build import assemble
from paceline.engine.training.meters import Meter
from paceline.strategies.core.state import state_of

slow = pytest.mark.slow
CPU = torch.device("cpu")
HERE = ("tracking=none", "compile=true")
REAL = (*HERE, "hardware.device=cpu")


@pytest.mark.parametrize(
    "asked, said",
    [
        ("hardware=virtual", "compile=true: hardware=virtual models the time of passes"),
        ("strategy=offload", "compile=true: compiles each pass as a whole, and strategy=offload "),
        (
            "strategy=pipeline strategy.schedule=zb_h1",
            "compile=true: compiles each pass as a whole, and strategy=pipeline with strategy.schedule=zb_h1 ",
        ),
        ("strategy=domain model=cnn", "compile=true: compiles each pass as a whole, and strategy=domain "),
        (
            "privacy=dp_sgd privacy.clip=1 privacy.noise=1",
            "compile=true: compiles each pass as a whole, and privacy=dp_sgd takes",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(asked: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        assemble(compose([*HERE, *asked.split()]), ())
    assert str(refused.value).startswith(said) and "compile=false" in str(refused.value)


class Clock:
    """Stands in for the clock that torch tells of compilations."""

    seconds = 0.0


class Doubles(nn.Module):
    """Counts its batches, as batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * self.weight


@pytest.fixture
def compiled(monkeypatch) -> list[nn.Module]:
    found: list[nn.Module] = []
    monkeypatch.setattr(compiling, "CompileClock", Clock)
    monkeypatch.setattr(compiling, "compile_in_place", lambda module, *_: found.append(module))
    monkeypatch.setattr(compiling, "use_private_folders", lambda: None)
    return found


def test_the_module_is_compiled_for_each_size_of_a_batch_from_the_largest_and_is_left_as_it_was(compiled) -> None:
    """1,437 samples: an epoch of three replicas ends with batches of 7, 7 and 7 samples, here in micro-batches."""
    parts = assemble(compose([*HERE, "hardware.workers=3", "batch_size=59", "accumulate=2"]), ())
    module, sizes = Doubles(), list[int]()
    module.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    Compiler().compile(cast("Any", SimpleNamespace(module=module)), parts, CPU)
    assert compiled == [module] and sizes == [30, 29, 4, 3]
    assert module.weight.grad is None and module.seen == 0
    assert state_of(module).keys() == {"weight", "seen"}


def test_partitions_name_every_size_that_a_step_has() -> None:
    for asked in (
        "",
        "partition=dirichlet",
        "partition=by_label",
        "sync=fedavg sync.clients=7 sync.momentum=reset partition=dirichlet",
    ):
        dealt = assemble(compose(["hardware.workers=3", "batch_size=59", *asked.split()]), ()).deal()
        met = {dealt.size(step, replica) for step in range(dealt.steps_per_epoch) for replica in range(dealt.replicas)}
        assert met <= dealt.sizes() | {0}, asked
        assert dealt.sizes() - {0} <= met or "clients" in asked, asked


def test_what_is_compiled_in_a_step_takes_no_time_of_the_step() -> None:
    now, clock = [0.0], Clock()
    timeline = SimpleNamespace(blocked=0.0, kept=10, operations=[], passes=None)
    comm = cast("Any", SimpleNamespace(mark=lambda: now[0], times=lambda *marks: marks, timeline=timeline))
    meter = Meter(comm, 0, False, compiler=cast("Any", clock))
    with meter.step(8):
        now[0] += 5.0
        clock.seconds += 4.0
    with meter.step(8):
        now[0] += 1.0
    assert meter.seconds == 2.0 and [end - start for start, end, _ in meter.steps] == [1.0, 1.0]


def lacks(said: str, device: torch.device = CPU) -> None:
    with pytest.raises(MachineError, match=said):
        check_machine(compose([*HERE]), device)


def test_a_machine_that_cannot_compile_is_refused_with_what_to_install(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(compiling, "unsupported", lambda: "Python 3.15+ not yet supported")
    lacks("^compile=true: Python 3.15.* Choose compile=false")
    monkeypatch.setattr(compiling, "unsupported", lambda: "")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    lacks("no g[+][+] here. .*apt-get install g[+][+]")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda _: str(tmp_path))
    lacks("no Python.h here. .*python3-dev")
    (tmp_path / "Python.h").touch()
    check_machine(compose([*HERE]), CPU)
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    lacks("package triton is not installed", torch.device("cuda"))
    check_machine(compose([*HERE]), CPU)


def test_code_is_loaded_from_folders_that_nobody_else_can_write(monkeypatch, tmp_path: Path) -> None:
    for name in compiling.FOLDERS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "usual_folder", lambda: str(tmp_path / "usual"))
    monkeypatch.setenv(compiling.FOLDERS[0], str(tmp_path / "usual"))  # torch put it there
    compiling.use_private_folders()
    own = Path(compiling.os.environ[compiling.FOLDERS[0]])
    assert own == tmp_path / "paceline" / "inductor" and own.stat().st_mode & 0o777 == 0o700
    others = tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    for name in compiling.FOLDERS:
        with monkeypatch.context() as within:
            within.setenv(name, str(others))
            with pytest.raises(MachineError, match=f"{name}=.*can be written by other users"):
                compiling.use_private_folders()


def test_a_plan_says_that_a_run_compiles_and_which_statement_does_not_hold() -> None:
    said = next(note for note in plan([*HERE]).notes if note.startswith("compile=true"))
    assert "before the first step" in said and "activations is stated as without" in said


# -- with torch's own compiler

MLP = ("model.hidden=[16]", "data.limit=120", "batch_size=25", "optimizer.momentum=0.9", "checkpoint.every_steps=3")


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path / "model.safetensors")


@slow
@pytest.mark.timeout(900)  # a C++ compiler takes up to a minute for each kernel, where others use the cores
@pytest.mark.parametrize(
    "asked", ["strategy=single", "sync=bsp hardware.workers=2", "strategy=pipeline hardware.workers=2"]
)
def test_compiled_runs_have_the_weights_of_eager_ones_and_resume_bit_for_bit(tmp_path, monkeypatch, asked: str) -> None:
    monkeypatch.chdir(tmp_path)
    how = (*REAL, *MLP, *asked.split())
    whole = run([*how, "steps=8"], name="whole", quiet=True)
    eager = run([*how, "steps=8", "compile=false"], name="eager", quiet=True)
    run([*how, "steps=4"], name="halved", quiet=True)
    again = run(["steps=8"], resume="halved", quiet=True)
    assert whole is not None and eager is not None and again is not None
    assert whole.summary["model_sha256"] == again.summary["model_sha256"]
    ours, theirs = weights_of(whole.path), weights_of(eager.path)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)
    assert whole.compile_s is not None and whole.compile_s > 0 and eager.compile_s is None
    records = map(json.loads, (whole.path / "metrics.jsonl").read_text().splitlines())
    steps = [record["step_time"] for record in records if record["kind"] == "step"]
    assert len(steps) == 8 and max(steps) < whole.compile_s
