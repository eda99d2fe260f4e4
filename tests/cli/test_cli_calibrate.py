"""`paceline calibrate`: what it writes, and when it writes nothing."""

import json
import resource
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from measured_machines import machine

from paceline.comm.errors import PeerLostError
from paceline.comm.store import StoreGoneError
from paceline.cost.calibration import Calibration, read
from paceline.cost.kernels import KernelTable
from paceline.engine.calibration import session, worker


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Calibration:
    """As if it had been measured in no time."""
    spread, differing = getattr(request, "param", (0.01, 0.02))
    told = yaml.safe_load((machine(tmp_path / "made") / "hardware" / "lab.yaml").read_text())["calibration"]
    found = read(told)
    tables = found.rates[0].tables
    streams = dict.fromkeys(("relu", "gelu", "_log_softmax", "native_layer_norm", "native_batch_norm", "copy_", "adam"))
    product = KernelTable(((1.0, 8.0, 8.0, 8.0, 1e-5), (1.0, 64.0, 64.0, 64.0, 1e-4)))
    whole = {"product": product, **tables, **{name: tables["mul"] for name in streams}}
    calibration = replace(found, rates=[replace(found.rates[0], tables=whole)], spread=spread, differing=differing)
    points = {"links": [[link.operation, 2, [[1e3, 1e-5], [1e6, 1e-3]]] for link in calibration.links]}

    def instead(quick: bool, told: Any) -> tuple[Calibration, dict[str, Any]]:
        told("links", 0.5)
        return calibration, points

    monkeypatch.setattr(session, "calibrate", instead)
    return calibration


def test_it_writes_a_choice_and_a_picture_that_plan_can_use(paceline, here: Path, measured: Calibration) -> None:
    ended = paceline("calibrate", "--out", "mine/hardware/lab.yaml")
    assert ended.status == 0 and "50%  measuring links" in ended.err
    assert "use it: paceline plan --config-dir mine hardware=lab" in ended.out
    assert "cases that took another time in the second pass: 2.0%" in ended.out
    assert read(yaml.safe_load((here / "mine/hardware/lab.yaml").read_text())["calibration"]).host == measured.host
    titles = [each.text for each in ET.fromstring((here / "mine/hardware/lab.svg").read_text()).iter()]
    assert any("2 workers: alpha + S beta" in (title or "") for title in titles)
    plan = paceline("plan", "--config-dir", "mine", "hardware=lab", "--format", "json")
    assert json.loads(plan.out)["step"]["seconds"] > 0
    shown = paceline("plan", "--config-dir", "mine", "hardware=lab").out
    assert "predicted step: " in shown and "processes of this CPU" in shown and "tables" not in shown
    refused = paceline("plan", "--config-dir", "mine", "hardware=lab", "--tokens", "1e9")
    assert (
        refused.status == 2 and "--tokens: a step's time is not predicted: samples of these data have no" in refused.err
    )


@pytest.mark.parametrize(
    ("measured", "said"),
    [((0.4, 0.02), "spread by 40%"), ((0.03, 0.31), "31% of what was measured twice took times that differ")],
    indirect=["measured"],
)
@pytest.mark.usefixtures("measured")
def test_a_machine_that_was_not_left_alone_is_exit_code_3(paceline, here: Path, said: str) -> None:
    ended = paceline("calibrate")
    assert ended.status == 3 and said in ended.last and "--force" in ended.last
    assert not (here / "conf-of-mine").exists()
    forced = paceline("calibrate", "--force", "--format", "json")
    assert forced.status == 0 and "was not left alone" in forced.err
    assert Path(json.loads(forced.out)["file"]).parent == Path("conf-of-mine/hardware")


def test_a_launcher_is_refused(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    ended = paceline("calibrate")
    assert ended.status == 2 and "SLURM_PROCID=0: a launcher started this process" in ended.err


@pytest.mark.usefixtures("measured")
def test_a_disk_without_room_is_told_before_minutes_of_measuring(paceline, here: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        ended = paceline("calibrate", "--out", "mine/hardware/lab.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ended.status == 3 and "cannot write mine/hardware/lab.yaml: File too large" in ended.last
    assert "measuring" not in ended.err and not (here / "mine").exists()


def test_a_file_that_is_no_choice_is_refused(paceline) -> None:
    ended = paceline("calibrate", "--out", "lab.json")
    assert ended.status == 2 and "--out lab.json: a choice of hardware is a file DIR/hardware/NAME.yaml" in ended.err


@pytest.mark.parametrize("end", [StoreGoneError("hung up"), BrokenPipeError(), PeerLostError("worker 1 hung up")])
def test_a_process_whose_work_breaks_waits_before_it_says_so(
    end: Exception, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends it meanwhile where the command was killed."""
    waited: list[float] = []

    def breaks(*_: object) -> NoReturn:
        raise end

    monkeypatch.setattr(worker, "tie_to_launcher", lambda: None)
    monkeypatch.setattr(worker, "_measure", breaks)
    monkeypatch.setattr(worker.time, "sleep", waited.append)
    given: Any = None
    with pytest.raises(type(end)):
        worker.main(0, 2, given, [], True, given)
    assert waited == [worker.ENDED]


@pytest.mark.slow  # five processes
@pytest.mark.fault
def test_a_command_that_is_killed_leaves_no_process_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "calibrate", "--quick", "--out", "mine/hardware/lab.yaml"]
    said = ""
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as it:
        assert it.stdout is not None
        while "measuring" not in said:
            said += it.stdout.readline()
            assert it.poll() is None, said
        it.kill()
        said += it.stdout.read()  # until the last of its processes has ended
    assert "Traceback" not in said and "lost" not in said, said


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_quick_look_at_this_machine_measures_all_that_there_is(paceline, here: Path) -> None:
    assert paceline("calibrate", "--quick", "--force", "--out", "mine/hardware/lab.yaml").status == 0
    found = read(yaml.safe_load((here / "mine/hardware/lab.yaml").read_text())["calibration"])
    assert {link.workers for link in found.links} >= {2, 3, 4}
    assert {(rates.threads, rates.processes) for rates in found.rates} == {*session.conditions(found.cores)}
    for rates in found.rates:
        assert {"product", "product_bfloat16", "convolution_backward", "attention", "index", "adam"} <= {*rates.tables}
    assert paceline("plan", "--config-dir", "mine", "hardware=lab", "model=gpt", "data=text").status == 0


@pytest.mark.parametrize(
    ("cores", "expected"), [(1, [(1, 1)]), (2, [(1, 1), (2, 1), (1, 2)]), (8, [(1, 1), (8, 1), (4, 2), (2, 4), (1, 8)])]
)
def test_cores_are_shared_out_to_more_and_more_processes(cores: int, expected: list[tuple[int, int]]) -> None:
    assert session.conditions(cores) == expected
