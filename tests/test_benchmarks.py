"""The benchmarks go with the code that they time. What they print is looked at, not tested."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PEERS = {"flower_rounds", "deepspeed_script", "hydra_app"}  # scripts of peers, run as they are


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in (ROOT / "benchmarks").glob("*.py")} - PEERS - {"__init__", "__main__"})
)
def test_a_benchmark_finds_what_it_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.slow
def test_a_short_look_at_the_harness_has_its_rows(tmp_path: Path) -> None:
    """Which calls the loop with everything that a worker gives it."""
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "harness", "--json", str(found)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(found.read_text())["results"]) == 3
