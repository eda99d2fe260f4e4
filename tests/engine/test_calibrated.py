"""Steps on a machine that was measured: what each strategy and sync mode adds, and what a run keeps of it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import calibrating
import pytest
from measured_machines import MILLI, machine

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.cost.predicted import NotPredicted, PredictedStep
from paceline.engine.base.machine import cores
from paceline.engine.calibration import session
from paceline.exchange import profiling

# flat, two layers: 1 ms for each of addmm, relu, addmm, log_softmax, nll_loss; back nll_loss, log_softmax, 2 products
# and a sum, relu's, a product and a sum
FORWARD, BACKWARD = 5, 8
LAYERS = ["model.hidden=[8]"]


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    """The tests' figures are those of a machine with two cores, whatever this one has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        yield


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return machine(tmp_path_factory.mktemp("lab"))


def predicted(lab: Path, *overrides: str) -> PredictedStep:
    prepared = engine.prepare(["hardware=lab", "hardware.threads=1", *LAYERS, *overrides], lab)
    return prepared.step_time(prepared.plan())


def test_a_step_of_one_worker_is_its_operators(lab: Path) -> None:
    step = predicted(lab, "strategy=single")
    assert step.parts["compute"] == pytest.approx((FORWARD + BACKWARD) * MILLI)
    assert step.parts["input"] == pytest.approx(2 * MILLI)  # inputs and targets
    assert step.parts["host"] == pytest.approx(MILLI)
    assert step.parts["optimizer"] == pytest.approx(4 * 3 * MILLI)  # momentum: two operators, weights: one
    assert step.seconds == pytest.approx(sum(step.parts.values())) and "communication" not in step.parts
    assert step.record()["how"].endswith("2026-11-01 10:00") and step.record()["formulas"].keys() == step.parts.keys()
    assert (step.samples, step.tokens, step.mfu) == (32, None, None)
    with pytest.raises(NotPredicted, match="no tokens"):
        step.of_tokens(1e9)


def test_each_micro_batch_has_its_operators_and_all_of_them_one_step(lab: Path) -> None:
    whole, cut = predicted(lab, "strategy=single"), predicted(lab, "strategy=single", "accumulate=3")
    added = 2 * 4 * MILLI  # of two micro-batches' gradients, of four parameters
    assert cut.parts["compute"] == pytest.approx(3 * whole.parts["compute"] + added)
    assert {**cut.parts, "compute": 0.0} == {**whole.parts, "compute": 0.0}
    assert cut.flops == pytest.approx(whole.flops) and cut.samples == whole.samples


@pytest.mark.parametrize(
    ("overrides", "exchanges", "moved"),
    [
        ("sync=bsp", 1, 1),
        ("sync=bsp_naive", 4, 4),
        ("sync=local_sgd sync.period=4", 1 / 4, 1 / 4),
        ("sync=diloco sync.period=2", 1 / 2, 4 / 2),
        ("sync=independent", 0, 0),
        ("sync=gossip_exponential hardware.workers=2", 1, 3),
    ],
)
def test_replicas_exchange_as_often_as_their_mode_does(
    lab: Path, overrides: str, exchanges: float, moved: float
) -> None:
    parts = predicted(lab, "hardware.workers=2", *overrides.split()).parts
    assert parts.get("communication", 0.0) == pytest.approx(MILLI * (10 * exchanges + moved))


@pytest.mark.parametrize(
    ("overrides", "exchanges", "moved", "stepped"),
    [
        # copies in and out of 4 gradients and a division; one sum
        ("strategy=torch_ddp", 1, 2 * 4 + 1, 4),
        # a bucket of 1 byte holds one tensor
        ("strategy=torch_ddp strategy.bucket_mb=1e-6", 4, 2 * 4 + 4, 4),
        # 512 + 8 + 80 + 10 entries: one replica owns the 512, the other the rest; each tensor is broadcast
        ("strategy=torch_zero_optimizer", 1 + 4, 2 * 4 + 1, 1),
        # gathers of rows and shares; into the bucket; the extremes of each row, in float64, between two bounds; the
        # smaller, the larger, both stacked and copied; two halves, their sum, out of the bucket
        ("aggregate=median", 2, 1 + (1 + 2 + 2 + 3) + 4 + 4, 4),
        # into the bucket, the forged row, two more passes; one sum
        ("attack=sign_flip", 1, 1 + 3, 4),
    ],
)
def test_the_torch_engine_and_rules_that_join_take_their_own_copies_exchanges_and_steps(
    lab: Path, overrides: str, exchanges: int, moved: int, stepped: int
) -> None:
    parts = predicted(lab, "hardware.workers=2", *overrides.split()).parts
    assert parts["communication"] == pytest.approx(MILLI * (10 * exchanges + moved))
    assert parts["optimizer"] == pytest.approx(3 * stepped * MILLI)


@pytest.mark.parametrize("collective", ["auto", "fabric"])
def test_a_sum_is_that_of_the_collective_that_makes_it(lab: Path, collective: str) -> None:
    """Without a network to choose by, `auto` takes the fabric's: one sum, and no messages of a ring."""
    parts = predicted(lab, "hardware.workers=2", f"collective={collective}").parts
    assert parts["communication"] == pytest.approx(MILLI * (10 + 1))


def test_averaged_state_and_bitmaps_of_unused_parameters_are_sums_too(lab: Path) -> None:
    """Of the weights, and of the momentum; of a bucket, and of what is unused."""
    knobs = ["sync=local_sgd", "sync.period=4", "sync.average_state=[momentum_buffer]"]
    assert predicted(lab, "hardware.workers=2", *knobs).parts["communication"] == pytest.approx(
        MILLI * (2 * 10 + 1) / 4
    )
    unused = predicted(lab, "hardware.workers=2", "sync.find_unused=true").parts
    assert unused["communication"] == pytest.approx(MILLI * (2 * 10 + 1))


OWN_MODE = '''
from paceline.strategies import Sync, Transfer, Transfers
from paceline.strategies.core.cost import UNMEASURED, payload


class GatherEvery(Sync):
    """Takes the mean of all weights every third step."""

    period = 3

    def update(self):
        raise NotImplementedError

    def transfers(self, parameters, world):
        others = (world.replicas - 1) * payload(parameters)
        gather = Transfer("all_gather", world.replicas, others, every=self.period)
        return Transfers([gather], buffers=payload(parameters))


class Unmeasured(GatherEvery):
    """Says of itself that it was not measured."""

    def transfers(self, parameters, world):
        return Transfers(unpredicted=UNMEASURED)


class Varying(GatherEvery):
    """Cannot say what it sends."""

    def transfers(self, parameters, world):
        return Transfers(varies="it depends on the weather")
'''


def test_a_users_own_sync_mode_is_planned_and_predicted_by_what_it_states(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_modes.py").write_text(OWN_MODE)
    monkeypatch.syspath_prepend(tmp_path)

    def prepared(name: str) -> engine.Prepared:
        chosen = [f"sync={{_target_:my_modes.{name}}}", "hardware.workers=3", "epochs=3"]
        return engine.prepare(["hardware=lab", "hardware.threads=1", *LAYERS, *chosen], lab, ["my_modes"])

    plan = prepared("GatherEvery").plan()
    assert plan.steps == 45
    size = 4 * (512 + 8 + 80 + 10)
    assert plan.parts[0].worker == {"all_gather": pytest.approx(2 * size * (45 // 3) / 45)}
    assert plan.parts[0].memory["buffers"] == size
    step = prepared("GatherEvery").step_time(plan)
    assert step.parts["communication"] == pytest.approx(10 * MILLI / 3)
    for name, why in (("Unmeasured", "sync=Unmeasured: the time of its"), ("Varying", "^it depends on the weather")):
        with pytest.raises(NotPredicted, match=why):
            prepared(name).step_time(prepared(name).plan())


@pytest.mark.parametrize(
    ("chosen", "gradients"),
    [(["aggregate=median"], 2), (["compress=topk"], 1), (["compress=topk", "sync=local_sgd"], 1)],
)
def test_a_rule_and_a_message_are_not_traced_on_more_than_planning_may_hold(
    chosen: list[str], gradients: int, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = gradients * 4 * (512 + 8 + 80 + 10)
    monkeypatch.setattr(profiling, "LARGEST", size)
    assert predicted(lab, "hardware.workers=2", *chosen).parts["communication"] > 0
    monkeypatch.setattr(profiling, "LARGEST", size - 1)
    with pytest.raises(NotPredicted, match=f"compress, aggregate or attack: .* {gradients} gradient"):
        predicted(lab, "hardware.workers=2", *chosen)


def test_one_replica_of_torchs_engine_exchanges_nothing(lab: Path) -> None:
    assert "communication" not in predicted(lab, "strategy=torch_ddp", "hardware.workers=1").parts


def test_more_workers_than_cores_take_turns(lab: Path) -> None:
    two, eight = (predicted(lab, f"hardware.workers={n}", "sync=independent") for n in (2, 8))
    turns = max(1.0, 8 / cores())
    assert eight.parts["compute"] == pytest.approx(turns * two.parts["compute"])
    assert eight.samples == 4 * two.samples


def test_a_server_is_waited_for(lab: Path) -> None:
    one = predicted(lab, "sync=asp", "hardware.workers=1")
    assert one.parts["communication"] == pytest.approx(2 * 10 * MILLI)  # a push, a fetch
    assert one.parts["waiting"] >= 12 * MILLI * 0.999  # the server's optimizer
    assert one.parts["optimizer"] == 0.0


def test_clipping_and_averaging_go_through_the_tensors_once_more(lab: Path) -> None:
    plain = predicted(lab, "strategy=single").parts
    for overrides, passes in (("clip=norm", 2), ("clip=value", 1), ("average=ema", 1), ("average=swa", 0)):
        parts = predicted(lab, "strategy=single", overrides).parts
        assert parts["optimizer"] == pytest.approx(plain["optimizer"] + 4 * passes * MILLI)
        assert {**parts, "optimizer": 0.0} == {**plain, "optimizer": 0.0}
    cut = ["strategy=tensor", "hardware.workers=2", "model.hidden=[8,8]"]  # its workers sum the squares
    alone, summed = (predicted(lab, *cut, clip).parts for clip in ("clip=value", "clip=norm"))
    assert summed["tensor"] == pytest.approx(alone["tensor"] + 10 * MILLI)


def test_a_round_of_fedavg_exchanges_once_and_its_server_adds_up_all(lab: Path) -> None:
    """1,437 digits, of two clients in batches of 32: 23 steps."""
    for epochs in (1, 2):
        parts = predicted(lab, "sync=fedavg", f"sync.epochs={epochs}", "hardware.workers=2").parts
        assert parts["communication"] == pytest.approx((2 * 10 + 2 + 1) * MILLI / (23 * epochs))
        assert parts["optimizer"] == pytest.approx(12 * MILLI * max(1.0, 2 / cores())) and "waiting" not in parts


def test_backup_workers_wait_for_the_fastest_alone(lab: Path) -> None:
    def waiting(*overrides: str) -> float:
        slow = predicted(lab, "hardware.workers=4", "stragglers=exponential", "stragglers.scale=0.5", *overrides)
        none = predicted(lab, "hardware.workers=4", *overrides)
        return (slow.parts["waiting"] - none.parts["waiting"]) / slow.parts["compute"]

    assert waiting("sync=backup_workers", "sync.backups=0") == pytest.approx(0.5 * (1 + 1 / 2 + 1 / 3 + 1 / 4))
    assert waiting("sync=backup_workers", "sync.backups=1") == pytest.approx(0.5 * (1 / 2 + 1 / 3 + 1 / 4))
    assert waiting("sync=backup_workers", "sync.backups=3") == pytest.approx(0.5 / 4)


def test_a_pipeline_has_a_bubble_and_tensor_parallel_workers_their_sums(lab: Path) -> None:
    piped = predicted(lab, "strategy=pipeline", "hardware.workers=2", "strategy.micro_batches=2")
    assert piped.parts["bubble"] > 0 and "tensor" not in piped.parts
    cut = predicted(lab, "strategy=tensor", "hardware.workers=2", "model.hidden=[8,8]")
    assert cut.parts["tensor"] >= 10 * MILLI and "bubble" not in cut.parts


def test_all_tensor_workers_of_a_stage_share_the_cores(tmp_path: Path) -> None:
    """Two stages of two workers each, on the cores of four workers and of one."""

    def step(usable: int) -> PredictedStep:
        lab = machine(tmp_path / str(usable), usable=usable, host="elsewhere")
        layers = ["model.hidden=[8,8,8,8]", "strategy.micro_batches=4", "hardware.workers=4"]
        return predicted(lab, "strategy=hybrid", *layers)

    enough, one = step(4), step(1)
    assert one.parts["compute"] == enough.parts["compute"]  # of the busier stage
    # on one core all four compute one after another: longer by what either tensor worker of a stage computes, at least
    assert one.parts["bubble"] - enough.parts["bubble"] >= enough.parts["compute"]


def test_messages_of_a_compressor_take_its_operators(lab: Path) -> None:
    plain, squeezed = (predicted(lab, "hardware.workers=2", f"compress={rule}") for rule in ("none", "topk"))
    assert squeezed.parts["communication"] > plain.parts["communication"] + 3 * MILLI


def test_the_slowest_worker_is_waited_for(lab: Path) -> None:
    slow = predicted(lab, "hardware.workers=2", "stragglers=one_slow", "stragglers.factor=3")
    assert slow.parts["waiting"] == pytest.approx(2 * slow.parts["compute"])
    spread = predicted(lab, "hardware.workers=2", "stragglers=exponential", "stragglers.scale=0.5")
    assert spread.parts["waiting"] == pytest.approx(0.5 * (1 + 1 / 2) * spread.parts["compute"])


def test_where_a_rate_and_a_price_are_known_there_are_mfu_and_dollars(tmp_path: Path) -> None:
    described = {"devices": 0, "device_memory": 0, "host_memory": 10**10, "flops": {"float32": 1e9}}
    described |= {"host_link": None, "link": None, "price_per_hour": 3.6}
    lab = machine(tmp_path, machine=described)
    step = predicted(lab, "strategy=single", f"hardware.threads={cores()}")
    assert step.flops is not None and step.mfu == pytest.approx(step.flops / step.seconds / 1e9)
    assert step.price(10.0) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ("strategy=torch_fsdp hardware.workers=2", "strategy=torch_fsdp: its engine is not ours"),
        ("aggregate=median compress=bf16 hardware.workers=3", "aggregate or attack with compress"),
        (
            "sync=backup_workers compress=topk hardware.workers=2",
            "compress=topk, sync=backup_workers: the time that messages",
        ),
        ("sync=fedavg sync.fraction=0.5 hardware.workers=2", "sync.fraction=0.5: who sits a round out"),
        ("sync=fedavg server=adam hardware.workers=2", "server=adam, sync=fedavg: the time"),
        ("sync=fedavg client=scaffold hardware.workers=2", "client=scaffold, sync=fedavg: the time"),
        ("sync=fedavg stragglers=one_slow hardware.workers=2", "stragglers=one_slow: the slowest sum over a round"),
        ("sync=bsp sync.shard=optimizer", "sync.shard=optimizer"),
        ("sync=asp sync.servers=2", "sync.servers: how several servers"),
        ("sync=asp sync.push=2", "sync=asp: steps with and without a push"),
        ("sync=post_local_sgd", "sync.switch_step=40"),
        ("sync=fedavg aggregate=median hardware.workers=3", "aggregate=median: the time that it takes on a server"),
        ("stragglers=pareto stragglers.alpha=1", "infinite"),
        ("sync=noloco hardware.workers=2", "sync=noloco: the time of its messages was not measured"),
        ("attack=label_flip hardware.workers=2", "attack=label_flip changes samples"),
        ("privacy=dp_sgd hardware.workers=2", "privacy=dp_sgd computes gradients of single samples"),
        ("compress=masked adapt=pruned hardware.workers=2", "compress=masked: how many weights are kept"),
    ],
)
def test_what_is_not_predicted_says_why(lab: Path, overrides: str, why: str) -> None:
    with pytest.raises(NotPredicted, match=why):
        predicted(lab, *overrides.split())


@pytest.mark.slow
def test_a_run_keeps_its_prediction_and_its_summary_has_it(lab: Path, tmp_path: Path) -> None:
    overrides = ["hardware=lab", "strategy=single", *LAYERS, "steps=12", "tracking=none", "data.limit=64"]
    prepared = engine.prepare(overrides, lab)
    step = prepared.step_time(prepared.plan())
    result = engine.run(overrides, config_dir=lab, root=tmp_path, quiet=True)
    assert result is not None
    kept = json.loads((result.path / "prediction.json").read_text())
    assert kept == step.record() and kept.keys() == {"seconds", "parts", "formulas", "how"}
    assert result.summary["predicted_step_ms"] == pytest.approx(1e3 * step.seconds)


@pytest.mark.slow
def test_where_nothing_is_predicted_nothing_is_kept(tmp_path: Path) -> None:
    result = engine.run(
        ["strategy=single", *LAYERS, "steps=2", "tracking=none", "data.limit=64"], root=tmp_path, quiet=True
    )
    assert result is not None
    assert not (result.path / "prediction.json").exists() and "predicted_step_ms" not in result.summary


def test_a_machine_that_was_measured_elsewhere_is_warned_of(tmp_path: Path, lab: Path) -> None:
    other = machine(tmp_path, usable=64, host="cluster-7")
    notes = engine.prepare(["hardware=lab"], other).plan().notes
    assert any("was measured on another machine" in note and "on cluster-7" in note for note in notes)
    assert not any("measured" in note for note in engine.prepare(["hardware=lab"], lab).plan().notes)


def test_a_machine_that_was_measured_beside_other_work_is_warned_of(tmp_path: Path) -> None:
    notes = engine.prepare(["hardware=lab"], machine(tmp_path, spread=0.58)).plan().notes
    assert any("other work ran while it was measured" in note and "spread by 58%" in note for note in notes)


def test_a_changed_calibration_is_refused_with_its_key(tmp_path: Path) -> None:
    lab = machine(tmp_path)
    file = lab / "hardware" / "lab.yaml"
    file.write_text(file.read_text().replace("format: 1", "format: 7"))
    with pytest.raises(ConfigError, match=r"calibration.*format=7"):
        engine.prepare(["hardware=lab"], lab)


@pytest.mark.usefixtures("fork_server")
def test_calibrating_processes_are_of_the_fork_server_that_blocks_signals_and_dies_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C reaches all processes of a command: each would print a traceback, or begin when nobody waits for it."""
    preloaded: list[str] = []
    monkeypatch.setattr(session.worker, "main", calibrating.tells)
    monkeypatch.setattr(session, "start_fork_server", preloaded.append)
    assert session._measured(2, [(1, 1)], True, lambda what, share: None) == {"workers": 2}
    assert preloaded == ["paceline.engine.calibration.worker"]
