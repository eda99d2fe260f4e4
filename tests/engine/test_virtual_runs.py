"""Whole runs on the virtual cluster: repeatable, equal to real processes, timed as modelled, and ended well."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process_table import until
from safetensors.torch import load_file
from short_runs import HERE, QUICK, Start, Train, weights
from torch import Tensor
from torch.testing import assert_close

from paceline import engine
from paceline.comm.network import ModelledNetwork
from paceline.conf.errors import ConfigError
from paceline.conf.groups import CONF
from paceline.engine import Result, prepare
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.fabrics.kinds import VirtualCluster
from paceline.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.dist

IDEAL = ("hardware.network.latency=0.0", "hardware.network.bandwidth=1e18")  # communication takes no time
SECOND = ("hardware.flops=1e18", "hardware.overhead=1.0")  # and a step's passes a second
GPT = ("model=gpt", "data=text", "model.n_layer=1", "model.n_head=2", "model.width=16", "model.dropout=0.2")

Virtual = Callable[..., Result]


@pytest.fixture
def virtual(root: Path, fork_server: None, monkeypatch: pytest.MonkeyPatch) -> Virtual:
    """A short run on a cluster of four."""

    def run(*overrides: str, name: str | None = None) -> Result:
        model = () if "model=gpt" in overrides else ("model.hidden=[32]",)
        limit = () if "model=gpt" in overrides else ("data.limit=200",)
        quick = [text for text in QUICK if not text.startswith(("model.", "data."))]
        result = engine.run(
            [*quick, "hardware=virtual", "hardware.workers=4", *model, *limit, *overrides],
            config_dir=HERE / "conf",
            allow_modules=["virtual_saboteur"],
            name=name,
            root=root,
            quiet=True,
        )
        assert result is not None
        return result

    return run


def outcome(result: Result) -> tuple[bytes, dict[str, Any]]:
    """All that a run leaves but its name and what depends on this process."""
    left = {key: value for key, value in result.summary.items() if key != "name"}
    left["memory"] = {**left["memory"], "process_peak": None}
    left["server_memory"] = None
    return weights(result.path), left


def step_time(result: Result) -> float:
    """The mean, of all steps."""
    return result.summary["seconds"] / result.summary["steps"]


@pytest.mark.slow
def test_an_exception_with_a_secret_leaves_it_in_no_file(virtual: Virtual, root: Path) -> None:
    harmful = "sync={_target_:virtual_saboteur.Harmful,act:raise,at:1,password:swordfish}"
    with pytest.raises(WorkerFailedError, match=r"the coffee machine is on fire\*\*\*"):
        virtual(harmful, name="secretive")
    files = [file for file in (root / "secretive").rglob("*") if file.is_file()]
    assert any(b"on fire***" in file.read_bytes() for file in files)
    assert not any(b"swordfish" in file.read_bytes() for file in files)


# -- the same again


@pytest.mark.parametrize(
    "overrides",
    [
        ("sync=asp", "stragglers=lognormal"),
        ("sync=bsp", "stragglers=pareto", "evaluate.every=1", "steps=10", *GPT),
        ("sync=ssp", "strategy=pipeline", "stragglers=exponential", "hardware.workers_per_host=2"),
    ],
    ids=["asp", "bsp with dropout", "ssp of pipelines"],
)
@pytest.mark.budget(2)
def test_the_same_seed_repeats_every_bit_every_time_and_every_event(
    virtual: Virtual, overrides: tuple[str, ...]
) -> None:
    first, second = outcome(virtual(*overrides)), outcome(virtual(*overrides))
    assert first == second
    assert re.fullmatch("[0-9a-f]{32}", first[1]["event_digest"])
    other = outcome(virtual(*overrides, "seed=1"))
    assert other[0] != first[0] and other[1]["seconds"] != first[1]["seconds"]
    assert other[1]["event_digest"] != first[1]["event_digest"]


@pytest.mark.slow
def test_another_process_with_other_hashes_repeats_it_too(start: Start, virtual: Virtual) -> None:
    overrides = ("hardware=virtual", "hardware.workers=4", "sync=asp", "stragglers=lognormal")
    first = outcome(virtual(*overrides))
    for seed in ("1", "2"):
        launcher = start(*overrides, name=f"hash{seed}", env={"PYTHONHASHSEED": seed})
        assert launcher.wait() == 0, launcher.said()
        summary = launcher.run.read_summary()
        assert summary is not None
        assert outcome(Result(launcher.run.path, summary)) == first


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp"])
@pytest.mark.slow
def test_evaluating_changes_no_weight_no_event_and_no_time(virtual: Virtual, sync: str) -> None:
    overrides = (f"sync={sync}", "stragglers=lognormal", "steps=12")
    rare, often = virtual(*overrides), virtual(*overrides, "evaluate.every=1")
    assert weights(rare.path) == weights(often.path)
    assert rare.summary["event_digest"] == often.summary["event_digest"]
    assert rare.summary["seconds"] == often.summary["seconds"]


@pytest.mark.budget(2)
@pytest.mark.parametrize("overrides", [("strategy=data_parallel",), ("strategy=pipeline",)], ids=lambda value: value[0])
def test_two_replicas_have_the_bits_bytes_and_memory_of_real_processes(
    virtual: Virtual, train: Train, overrides: tuple[str, ...]
) -> None:
    """A sum of two is the same in any order."""
    count = "hardware.workers=4" if "strategy=pipeline" in overrides else "hardware.workers=2"
    modelled = virtual(*overrides, count)
    real = train(*overrides, count, "hardware.threads=1")
    assert weights(modelled.path) == weights(real.path)
    for measure in ("wire", "accuracy", "loss", "steps", "workers", "predicted"):
        assert modelled.summary[measure] == real.summary[measure], measure
    for kind in ("parameters", "gradients", "optimizer", "activations", "buffers"):
        assert modelled.summary["memory"][kind] == real.summary["memory"][kind], kind
    assert modelled.summary["modelled"] and not real.summary["modelled"]
    assert real.summary["event_digest"] is None


# -- time


def test_a_step_takes_its_passes_and_its_ring_and_divides_into_them(virtual: Virtual) -> None:
    """Two workers, all of the gradient in one bucket: S bytes over the bandwidth, and two latencies, after backward."""
    result = virtual(
        "hardware.workers=2", *SECOND, "hardware.network.bandwidth=1000000.0", "hardware.network.latency=0.125"
    )
    size = 4 * (64 * 32 + 32 + 32 * 10 + 10)
    times = result.summary["step_time"]
    assert times["median"] == pytest.approx(1.0 + 2 * 0.125 + size / 1e6)
    assert times["compute"] == pytest.approx(1.0)
    assert times["communication"] == pytest.approx(2 * 0.125 + size / 1e6)
    assert times["waiting"] == pytest.approx(0.0, abs=1e-9)
    assert result.throughput == pytest.approx(32 / times["median"])


def test_a_quarter_of_the_clients_at_a_time_make_a_quarter_of_the_samples_a_second(virtual: Virtual) -> None:
    """Steps of a second, each of one client, whichever it is: one that no round takes does not make it none."""
    result = virtual(
        "hardware.workers=4", "sync=fedavg", "sync.fraction=0.25", "steps=8", "measure.after=4", *SECOND, *IDEAL
    )
    assert result.throughput == pytest.approx(200 / 4 / 4), "four steps an epoch"
    assert result.summary["step_time"]["median"] is not None


@pytest.mark.parametrize("strategy", ["single", "data_parallel"])
def test_one_worker_alone_takes_its_passes(virtual: Virtual, strategy: str) -> None:
    result = virtual(f"strategy={strategy}", "hardware.workers=1", *SECOND)
    assert step_time(result) == result.summary["step_time"]["compute"] == pytest.approx(1.0)


def test_small_buckets_overlap_with_backward(virtual: Virtual) -> None:
    slow = ("hardware.workers=2", "model.hidden=[64,64,64]", "hardware.network.bandwidth=1e6", "hardware.overhead=0.1")
    one = virtual(*slow, "hardware.network.latency=0.0")
    small = virtual(*slow, "hardware.network.latency=0.0", "sync.bucket_mb=0.015", "sync.first_bucket_mb=0.001")
    assert small.summary["seconds"] < 0.8 * one.summary["seconds"]
    assert weights(small.path) == weights(one.path)


@pytest.mark.slow
def test_a_step_of_bsp_takes_as_long_as_the_slowest_of_n_exponential_workers(virtual: Virtual) -> None:
    """base + scale H_n seconds in the mean; asynchronously each takes base + scale, whatever the others do."""
    n, steps, scale = 16, 60, 0.5
    overrides = (f"hardware.workers={n}", f"steps={steps}", "stragglers=exponential", *SECOND, *IDEAL, "batch_size=4")
    harmonic = sum(1 / k for k in range(1, n + 1))
    deviation = scale * sum(1 / k**2 for k in range(1, n + 1)) ** 0.5 / steps**0.5
    bsp = virtual(*overrides, "sync=bsp")
    assert step_time(bsp) == pytest.approx(1.0 + scale * harmonic, abs=4 * deviation)
    asp = virtual(*overrides, "sync=asp")
    assert step_time(asp) == pytest.approx(1.0 + scale, abs=4 * scale / steps**0.5)  # of worker 0
    waiting = bsp.summary["step_time"]["waiting"]
    assert waiting == pytest.approx(scale * (harmonic - 1), abs=8 * deviation)


@pytest.mark.slow
def test_one_slow_worker_holds_up_those_who_wait_for_it_alone(virtual: Virtual) -> None:
    overrides = ("stragglers=one_slow", "stragglers.worker=1", "stragglers.factor=4.0", *SECOND, *IDEAL)
    assert step_time(virtual(*overrides, "sync=bsp")) == pytest.approx(4.0)
    each = virtual(*overrides, "sync=asp", "steps=8").summary["per_worker"]
    assert [row["median"] for row in each] == pytest.approx([1.0, 4.0, 1.0, 1.0])


def test_a_recorded_trace_is_followed(virtual: Virtual, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("1 2 1 1\n1 1 3 1\n")
    result = virtual("stragglers=trace", f"stragglers.path={tmp_path / 'trace'}", *SECOND, *IDEAL, "measure.after=0")
    assert result.summary["seconds"] == pytest.approx(3 * (2.0 + 3.0))


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputing_in_a_pipeline_costs_another_forward(virtual: Virtual, recompute: bool) -> None:
    """Two stages, one micro-batch: both forward and both backward passes, of 1/3 and 2/3 s, come one after the other.

    Both also compute their forward pass again.
    """
    pipeline = ("strategy=pipeline", "strategy.schedule=naive", f"strategy.recompute={recompute}")
    result = virtual(*pipeline, "hardware.workers=2", *SECOND, *IDEAL)
    assert step_time(result) == pytest.approx(2.0 + 2 / 3 if recompute else 2.0)


@pytest.mark.slow
def test_measured_compute_is_kept_and_then_repeats_exactly(start: Start, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found = []
    for name in ("first", "second"):
        launcher = start(
            "hardware=virtual",
            "hardware.workers=3",
            "hardware.compute=measured",
            name=name,
            env={"XDG_CACHE_HOME": str(cache)},
        )
        assert launcher.wait() == 0, launcher.said()
        summary = launcher.run.read_summary()
        assert summary is not None
        found.append(outcome(Result(launcher.run.path, summary)))
    assert found[0] == found[1]
    assert 0 < found[0][1]["step_time"]["compute"] < 10
    assert (cache / "paceline" / "compute" / "seconds.json").is_file()


# -- networks


@pytest.mark.slow
def test_a_faster_network_takes_less_time_for_the_same_weights(virtual: Virtual) -> None:
    slow, fast = virtual("hardware/network=ethernet_1g"), virtual("hardware/network=infiniband")
    assert fast.summary["seconds"] < slow.summary["seconds"]
    assert weights(fast.path) == weights(slow.path)


def test_hosts_and_racks_show(virtual: Virtual) -> None:
    racks = ("hardware.workers=8", "sync=asp", "hardware.workers_per_host=2", "hardware.hosts_per_rack=2")
    free, crowded = (
        virtual(*racks, f"hardware.oversubscription={factor}", "hardware.network.bandwidth=1e6")
        for factor in ("1.0", "16.0")
    )
    assert crowded.summary["seconds"] > 1.5 * free.summary["seconds"]


def test_network_choices_are_taken_by_name() -> None:
    overrides = ["hardware=virtual", "hardware/network=infiniband", "tracking=none"]
    hardware = prepare(overrides).experiment.hardware
    assert hardware.fabric == "virtual"
    assert (hardware.network.latency, hardware.network.bandwidth) == (1.5e-6, 2.4e10)
    assert hardware.inside.bandwidth == 2.5e11  # NVLink, as it was
    inside = prepare([*overrides, "hardware/network@hardware.inside=loopback"]).experiment.hardware
    assert inside.fabric == "virtual" and inside.inside.latency == 3e-5


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("hardware/network=infiniban", ["hardware/network=infiniban", "did you mean infiniband"]),
        ("hardware.network.latency=-1", ["hardware.network.latency=-1", "greater than or equal to 0"]),
        ("hardware.network.bandwidth=0", ["hardware.network.bandwidth=0", "greater than 0"]),
        ("hardware.network.latncy=1", ["hardware.network.latncy", "did you mean hardware.network.latency"]),
        ("hardware.oversubscription=0.5", ["hardware.oversubscription=0.5", "greater than or equal to 1"]),
        ("hardware.workers_per_host=0", ["hardware.workers_per_host=0", "greater than or equal to 1"]),
        ("hardware.network.upload=0", ["hardware.network.upload=0", "greater than 0"]),
        ("hardware.racks=2", ["hardware: racks=2", "workers=null does not say"]),
        ("hardware.compute=guessed", ["hardware.compute='guessed'", "'measured'"]),
        ("hardware.flops=0", ["hardware.flops=0", "greater than 0"]),
        ("hardware.device=cuda", ["hardware.device"]),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_by_its_key(override: str, parts: list[str]) -> None:
    assert_refused(["hardware=virtual", override, "tracking=none"], parts)


def assert_refused(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(overrides)
    assert caught.value.exit_code == 2
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_topology_that_contradicts_itself_is_refused() -> None:
    for overrides, part in {
        "two_regions hardware.workers=5": "racks=2: must divide the 5 hosts of workers=5",
        "two_regions hardware.hosts_per_rack=2": "racks=2 with hosts_per_rack=2: ",
        "two_regions hardware.racks=null": "uplink: there is only one rack",
        "two_regions hardware.oversubscription=2.0": "oversubscription=2.0 with uplink.bandwidth=",
        "dragonfly hardware.uplink.upload=1e9": "uplink.upload=1000000000.0: uplink.bandwidth=null",
        "phones hardware.workers_per_host=2": "server with workers_per_host=2: ",
    }.items():
        assert_refused([*f"hardware={overrides}".split(), "tracking=none"], [f"hardware: {part}"])


PRESETS = {  # seconds of a ring's hop between four workers: a latency, and 1,000 bytes over the slowest link
    "hardware=virtual hardware/network=ethernet_25g": 2.5e-5 + 1e3 / 2.93e9,
    "hardware=virtual hardware/network=ethernet_400g": 5e-6 + 1e3 / 4.85e10,
    "hardware=fat_tree": 5e-6 + 1e3 / (2 * 4.85e10 / 7),
    "hardware=dragonfly": 2.2e-6 + 1e3 / 2.5e10,  # one flow fills no more than its card
    "hardware=nvlink_islands": 2e-6 + 1e3 / 2.5e11,
    "hardware=two_regions": 3.35e-2 + 1e3 / 9.9e7,
    "hardware=home_broadband": 5e-2 + 1e3 / 2.5e6,
    "hardware=phones": 3.5e-2 + 1e3 / 7.5e5,
}
FEW = ("hardware=two_regions", "hardware=phones")


@pytest.mark.parametrize(
    "preset", [each if each in FEW else pytest.param(each, marks=pytest.mark.slow) for each in PRESETS]
)
def test_a_step_on_each_preset_of_a_network_takes_its_passes_and_its_ring(virtual: Virtual, preset: str) -> None:
    result = virtual(*preset.split(), "hardware.workers=4", "steps=2", "measure.after=0", *SECOND)
    size = 4 * (64 * 32 + 32 + 32 * 10 + 10)
    step = 1.0 + 6 * fabric_network(preset).alone(0, 3, size / 4)
    assert result.summary["step_time"]["median"] == pytest.approx(step, rel=1e-12)


def fabric_network(preset: str) -> ModelledNetwork:
    hardware = prepare([*preset.split(), "hardware.workers=4", "tracking=none"]).experiment.hardware
    return ModelledNetwork(VirtualCluster().network(hardware), 4)


def test_every_preset_of_a_network_is_one_of_these() -> None:
    files = [path for path in (CONF / "hardware").glob("*.yaml") if "- virtual\n" in path.read_text()]
    assert {f"hardware={path.stem}" for path in files} <= PRESETS.keys()
    for preset, hop in PRESETS.items():
        assert fabric_network(preset).alone(0, 3, 1000) == pytest.approx(hop, rel=1e-12)


def test_a_server_in_a_data_centre_is_no_phone(virtual: Virtual) -> None:
    """Four clients fetch the weights at once, each as fast as its own link: behind a phone's they would share it."""
    fedavg = ("hardware.workers=4", "sync=fedavg", "steps=2")
    alike, own = (virtual("hardware=phones", *fedavg, *more) for more in (["hardware.server=null"], []))
    assert own.summary["seconds"] < 0.8 * alike.summary["seconds"]


# -- how it ends


def failure(run: Callable[[], Result]) -> WorkerFailedError:
    with pytest.raises(WorkerFailedError) as caught:
        run()
    return caught.value


def test_a_deadlock_ends_the_run_at_once_and_says_who_waits_for_whom(virtual: Virtual) -> None:
    error = failure(lambda: virtual("sync=harmful", "sync.act=wait"))
    assert error.exit_code == 5
    assert str(error).startswith("deadlock at virtual second ")
    assert re.search(r"worker 0 waits in barrier of world/\d.0 for workers 2; worker 1 waits in barrier", str(error))
    assert "worker 2 waits in recv from worker 0" in str(error)


@pytest.mark.parametrize("act", ["raise", "raise_in_backward"])
def test_one_workers_exception_ends_the_run_and_the_next_one_is_sound(virtual: Virtual, root: Path, act: str) -> None:
    """The others are in the middle of backward, whose hooks let time pass."""
    error = failure(lambda: virtual("sync=harmful", f"sync.act={act}", name="victim"))
    assert error.exit_code == 4
    assert str(error).startswith("worker 2, after step ")
    assert "failed: SabotageError: the coffee machine is on fire" in str(error)
    assert RunDirectory(root / "victim").records()[-1]["status"] == "failed"
    assert virtual(name="next").summary["status"] == "completed"


GONE = 2.0  # seconds after which nothing of a run may be alive


def test_divergence_is_told_of_with_its_worker_and_step(virtual: Virtual) -> None:
    error = failure(lambda: virtual("optimizer.lr=1e30"))
    assert error.exit_code == 6
    assert re.match(r"worker \d diverged at step \d: the loss is (nan|inf)", str(error))


@pytest.mark.fault
@pytest.mark.parametrize(
    ("number", "to", "status"),
    [(signal.SIGINT, os.killpg, 130), (signal.SIGTERM, os.kill, 143)],
    ids=["ctrl-c", "sigterm to the launcher"],
)
def test_a_stopped_run_ends_and_leaves_nothing_alive(
    start: Start, number: signal.Signals, to: Callable[[int, int], None], status: int
) -> None:
    launcher = start("hardware=virtual", "hardware.workers=4", "steps=1000000", *SECOND)
    launcher.until(lambda: launcher.steps() >= 5, "five steps")
    to(launcher.process.pid, number)
    assert launcher.wait() == status
    assert launcher.last_line() == (
        f"stopped by {number.name}; a virtual cluster saves nothing, the same command repeats the run"
    )
    until(lambda: not launcher.alive(), GONE, "everything to be gone")
    summary = launcher.run.read_summary()
    assert summary is not None and summary["status"] == "interrupted" and 5 <= summary["steps"] < 1_000_000


@pytest.mark.parametrize("sync", ["sync=bsp", "sync.shard=gradients"])
def test_replicas_with_drop_last_train_as_one_worker_with_the_batch_of_all(virtual: Virtual, sync: str) -> None:
    def trained(*overrides: str) -> dict[str, Tensor]:
        result = virtual("steps=null", "epochs=2", "optimizer.lr=0.5", "drop_last=true", *overrides)
        assert result.steps == 2 * (200 // 64)
        return load_file(result.weights)

    one = trained("hardware.workers=1", "batch_size=64")
    assert_close(trained("hardware.workers=2", "batch_size=32", sync), one)
