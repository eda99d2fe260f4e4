"""The file beside a trace that has a GPU's streams; a CPU stands in for the GPU."""

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity

from paceline.engine.training import trace as module
from paceline.engine.training.trace import streams_beside

CPU = torch.device("cpu")


def train(trace: Path | None, steps: int) -> None:
    done: list[int] = []
    with streams_beside(trace, 1, CPU, done.append) as after_step:
        for step in range(steps):
            _ = torch.ones(2, 2) @ torch.ones(2, 2)
            after_step(step)
    assert done == [*range(steps)]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "kept"), [(9, 3), (4, 1)])
def test_a_few_steps_of_a_gpu_are_kept_beside_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, kept: int
) -> None:
    monkeypatch.setattr(module, "_ACTIVITIES", {"cpu": [ProfilerActivity.CPU]})
    train(tmp_path / "trace.json", steps)
    events = json.loads((tmp_path / "trace-streams-1.json").read_text())["traceEvents"]
    assert [event.get("name") for event in events].count("aten::mm") == kept


def test_without_a_trace_or_a_gpu_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "trace.json", 9)
    monkeypatch.setattr(module, "_ACTIVITIES", {"cpu": [ProfilerActivity.CPU]})
    train(None, 9)
    assert list(tmp_path.iterdir()) == []
