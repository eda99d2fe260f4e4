"""The benchmarks go with the code that they time. What they print is looked at, not tested."""

import functools
import importlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[1]
PEERS = {"flower_rounds", "deepspeed_script", "hydra_app"}  # scripts of peers, run as they are


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in (ROOT / "benchmarks").glob("*.py")} - PEERS - {"__init__", "__main__"})
)
def test_a_benchmark_finds_what_it_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    importlib.import_module(f"benchmarks.{name}")


def test_wheels_for_a_card_are_what_is_required_without_torch_and_what_it_requires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    wheels = importlib.import_module("benchmarks.gpu_wheels")
    there = wheels.closure(wheels.THERE, set())
    wanted = wheels.closure(wheels.NEEDED, there)
    assert {"torch", "sympy", "numpy", "pytest"} <= there
    assert {"hydra-core", "antlr4-python3-runtime", "deepspeed", "wandb", "greenlet", "opacus"} <= wanted
    assert not wanted & there


def test_without_a_card_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    gpu = importlib.import_module("benchmarks.gpu")
    with pytest.raises(typer.Exit) as ended:
        gpu.main()
    assert ended.value.exit_code == 3
    assert capsys.readouterr() == ("", "make gpu: torch finds no CUDA device here\n")


def test_a_row_that_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    gpu = importlib.import_module("benchmarks.gpu")

    def fails(card: Any) -> Iterator[Any]:
        yield gpu.GPURow("first", "1 ms")
        raise ValueError("no | such\nkernel")

    def late(card: Any) -> Iterator[Any]:
        yield gpu.GPURow("never", card.train("late", "steps=1"))

    finds = {"fails": fails, "late": late, "sound": lambda _: iter([gpu.GPURow("last", "2 ms", "of 3")])}
    card = gpu.Card("cuda", True, time.monotonic(), tmp_path)
    found = [str(row) for row in gpu.rows(dict.fromkeys(finds, 1.0), card, finds)]
    assert found == [
        "| first | 1 ms |  |",
        "| fails | ValueError: kernel |  |",
        "| late | left out: no time of its share was left |  |",
        "| last | 2 ms | of 3 |",
    ]


@pytest.mark.parametrize("part", [1, 2])
def test_a_row_takes_no_time_of_those_after_it(part: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each program that a row starts takes all the time that it may."""
    monkeypatch.syspath_prepend(str(ROOT))
    gpu = importlib.import_module("benchmarks.gpu")
    now, started = [0.0], []

    def run(command: list[str], timeout: float, **_: Any) -> None:
        started.append((" ".join(command), timeout))
        now[0] += timeout
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(gpu, "bare_step", lambda *_: 1.0)
    monkeypatch.setattr(gpu, "product_teraflops", lambda _: 400.0)
    plan = gpu.PLAN[part]
    found = list(gpu.rows(plan, gpu.Card("cuda", False, gpu.SLICE, tmp_path)))
    assert sum(plan.values()) == gpu.SLICE and now[0] <= gpu.SLICE + 1e-6
    assert len(found) == (8 if part == 1 else 11)
    for row in found:
        assert "did not end in the" in row.figure or row.what.startswith("a product of"), row
    if part == 2:
        assert "model=gpt_10b" in started[0][0] and "strategy.offload=all" in started[0][0]
        assert started[0][1] == plan["goal"] == max(plan.values())


def test_time_that_a_row_leaves_is_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    gpu = importlib.import_module("benchmarks.gpu")
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: 0.0))
    had: dict[str, list[float]] = {"first": [], "second": []}

    def note(name: str, card: Any) -> Iterator[Any]:
        had[name] = [card.part(left).left for left, _ in gpu.counted_down("ab")]
        return iter(())

    finds = {name: functools.partial(note, name) for name in had}
    list(gpu.rows({"first": 30.0, "second": 10.0}, gpu.Card("cuda", False, 80.0, tmp_path), finds))
    assert had == {"first": [30.0, 60.0], "second": [40.0, 80.0]}


def test_the_peak_of_a_card_is_not_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    gpu = importlib.import_module("benchmarks.gpu")
    held = {"process_peak": 4 * 2**20}
    assert gpu.peak({"memory": held}) == "the process's peak 4 MiB"
    card = {"device_peak": 2 * 2**20, "device_reserved": 3 * 2**20}
    assert gpu.peak({"memory": held | card}) == "the allocator's peak 2 of 3 MiB reserved, the process's peak 4 MiB"


@pytest.mark.timeout(1800)  # some ten minutes for each of the two slices
@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 2])
def test_every_row_of_a_card_has_a_figure_in_short_on_the_cpu(part: int) -> None:
    if part == 2 and shutil.which("g++") is None:
        pytest.skip("DeepSpeed compiles its CPU Adam with g++")
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--short", "--slice", str(part)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= (12 if part == 1 else 10)
    for row in rows:
        assert re.match(r"[\d,.]+|the same bits|parameters", row[1]), row


@pytest.mark.slow
def test_a_short_look_at_the_harness_has_its_rows(tmp_path: Path) -> None:
    """Which calls the loop with everything that a worker gives it."""
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "harness", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(found.read_text())["results"]) == 3


def test_figures_that_are_not_measured_anew_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    bench = importlib.import_module("benchmarks.__main__")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    file, speed = tmp_path / "results.json", iter([1.0, 2.0, 3.0, 4.0])
    measured = {name: (lambda _, name=name: [bench.Outcome(name, next(speed))], 1, 1) for name in ("bsp", "zero")}
    monkeypatch.setattr(bench, "COMPARISONS", measured)

    def found() -> dict[str, float]:
        return {row["name"]: row["ours"] for row in json.loads(file.read_text())["results"]}

    bench.main(only=["bsp", "zero"], json_file=file)
    bench.main(only=["bsp"], json_file=file)
    assert found() == {"bsp": 3.0, "zero": 2.0}
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": {"cpus": 96}}))
    bench.main(only=["bsp"], json_file=file)
    assert found() == {"bsp": 4.0}
