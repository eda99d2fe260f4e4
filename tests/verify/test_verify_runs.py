"""What `verify` says of ways that are right, of ways that are broken on purpose, and of those that differ by design."""

import sys
from pathlib import Path

import pytest

from paceline.conf.errors import ConfigError
from paceline.verify import Verification, reference, verify
from paceline.verify.judge import VerificationRow

HERE = Path(__file__).parent
SMALL = ["model=mlp", "model.hidden=[6,5]", "data.limit=40", "batch_size=8", "optimizer.lr=0.1"]
VIRTUAL = [*SMALL, "hardware=virtual"]


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])
    monkeypatch.chdir(tmp_path)


def verified(
    *only: str, overrides: list[str] = VIRTUAL, steps: int = 2, workers: int = 2, **how: object
) -> Verification:
    return verify(
        overrides,
        config_dir=HERE / "conf",
        allow_modules=["broken_on_purpose"],
        only=only,
        steps=steps,
        workers=workers,
        **how,  # type: ignore[arg-type]
    )


def rows_of(found: Verification, *overrides: str) -> dict[int | None, VerificationRow]:
    """Those of just these overrides, by replicas."""
    return {row.replicas: row for row in found.rows if row.overrides == overrides}


@pytest.mark.budget(1)
def test_a_way_that_trains_as_one_worker_does_passes_with_all_that_was_compared() -> None:
    found = verified("tensor", "sync.shard=gradients")
    assert found.passed
    cut = rows_of(found, "strategy=tensor", "sync=bsp")[1]
    assert (cut.word, cut.workers) == ("pass", 2)
    names = {f"{layer}.{kind}" for layer in ("hidden1", "hidden2", "output") for kind in ("weight", "bias")}
    assert cut.gradients.keys() == cut.weights.keys() == names
    assert cut.loss is not None and 0 < max(each.share for each in cut.gradients.values()) <= 1
    shared = rows_of(found, "strategy=data_parallel", "sync=bsp", "sync.shard=gradients")[2]
    assert (shared.word, shared.gradients) == ("pass", {})


def test_a_wrong_sum_of_ones_own_strategy_fails_and_the_first_parameter_that_differs_is_named() -> None:
    found = verified("wrong_sum")
    assert not found.passed
    for replicas in (1, 2):
        row = rows_of(found, "strategy=wrong_sum", "sync=bsp")[replicas]
        assert row.word == "fail" and row.first is not None
        assert (row.first.step, row.first.what, row.first.name) == (1, "gradient", "hidden2.weight")
        assert row.first.largest == pytest.approx(0.01, rel=1e-3) and row.first.share > 100
        assert row.differing == 1  # the other layers' are right in that step


@pytest.mark.slow
def test_gradients_that_are_not_weighed_fail_from_two_replicas_on() -> None:
    rows = rows_of(verified("mean_of_means"), "strategy=data_parallel", "sync=mean_of_means")
    assert rows[1].word == "pass"
    assert rows[2].word == "fail" and rows[2].first is not None
    assert rows[2].first.name == "hidden1.weight" and rows[2].differing == 6


@pytest.mark.slow
def test_encoders_with_adam_are_far_from_the_tolerance_by_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right way used 1.22 of what was allowed on one seed of three without it."""

    def shares(noisy: int) -> dict[tuple[object, ...], float]:
        monkeypatch.setattr(reference, "NOISY", noisy)
        model = ["model={_target_: broken_on_purpose.Encoders}", "optimizer=adamw", "hardware=virtual"]
        found = verified("bsp", overrides=model, steps=3, workers=4)
        assert [row.word for row in found.rows] == ["pass"] * 9
        rows = [(row.overrides, row.replicas, each) for row in found.rows for each in row.weights.values()]
        return {(*row, each.name): each.share for *row, each in rows}

    noisy, without = shares(reference.NOISY), shares(0)
    assert max(noisy.values()) < 0.5
    assert sum(noisy.values()) < 0.8 * sum(without[key] for key in noisy)


@pytest.mark.slow
def test_replicas_that_should_agree_and_do_not_are_found_by_what_they_hold() -> None:
    row = rows_of(verified("apart"), "strategy=data_parallel", "sync=apart")[2]
    assert row.word == "fail"
    assert "parameter hidden1.weight of worker 1 differs from worker 0's in step 1" in row.why


@pytest.mark.slow
def test_what_differs_by_design_is_not_judged_but_for_what_it_promises() -> None:
    found = verified("compress=topk", "ssp")
    lossy = rows_of(found, "strategy=data_parallel", "sync=bsp", "compress=topk")
    assert lossy[1].word == "pass"  # alone it sends nothing
    assert (
        lossy[2].word == "by design" and "rounded or left out" in lossy[2].why and "agree bit for bit" in lossy[2].why
    )
    assert max(each.share for each in lossy[2].weights.values()) > 1  # it would not have passed
    stale = rows_of(found, "strategy=data_parallel", "sync=ssp")
    assert (stale[1].word, stale[2].word) == ("pass", "by design")
    assert stale[2].why == "asynchronous: replicas step at paces of their own"


@pytest.mark.slow
def test_a_way_that_cannot_be_laid_out_is_listed_with_the_engines_own_reason() -> None:
    found = verified("torch_tensor", "strategy.stages=4")
    assert all(row.word == "refused" and row.workers is None for row in found.rows)
    whys = {row.overrides: row.why for row in found.rows}
    assert "talks to torch's own process groups" in whys["strategy=torch_tensor", "sync=bsp"]
    assert "takes 4 workers, and there may be 2" in whys["strategy=pipeline", "sync=bsp", "strategy.stages=4"]
    assert len(whys) == len(found.rows)  # each once, whatever the number of replicas
    assert not found.passed  # nothing was compared


@pytest.mark.slow
def test_what_a_class_of_ones_own_raises_is_a_failure_of_its_way_alone() -> None:
    found = verified("careless", "single")
    assert rows_of(found, "strategy=careless", "sync=bsp")[1].word == "fail"
    assert "KeyError" in rows_of(found, "strategy=careless", "sync=bsp")[1].why
    assert rows_of(found, "strategy=single", "sync=bsp")[1].word == "pass"


@pytest.mark.parametrize(
    ("model", "word", "why"),
    [("normed", "by design", "samples together (batch norm)"), ("noisy", "by design", "draws random numbers")],
)
@pytest.mark.slow
def test_models_whose_batches_cannot_be_dealt_out_are_known_by_what_they_compute(
    model: str, word: str, why: str
) -> None:
    small = [f"model={model}", "data.limit=40", "batch_size=8", "hardware=virtual"]
    found = verified(
        "single", "bsp_naive", *(["strategy.batch_norm=all"] if model == "normed" else []), overrides=small
    )
    assert rows_of(found, "strategy=single", "sync=bsp")[1].word == "pass"
    both = rows_of(found, "strategy=data_parallel", "sync=bsp_naive")
    assert both[1].word == "pass"
    assert both[2].word == word and why in both[2].why
    if model == "normed":  # over all replicas it is serial training again
        assert rows_of(found, "strategy=data_parallel", "sync=bsp", "strategy.batch_norm=all")[2].word == "pass"


@pytest.mark.slow
def test_a_model_that_refuses_float64_is_told_to_have_a_tolerance_stated() -> None:
    small = ["model=single_precision", "data.limit=40", "batch_size=8", "hardware=virtual"]
    with pytest.raises(ConfigError, match=r"float64.*float32 only.*--tolerance"):
        verified("single", overrides=small)
    assert verified("single", overrides=small, tolerance=1e-5).passed


def test_after_the_time_limit_nothing_more_is_begun_and_that_is_said() -> None:
    found = verified("bsp_naive", time_limit=1e-9)
    assert {row.word for row in found.rows} == {"not run"} and not found.passed


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
def test_processes_are_verified_too() -> None:
    found = verified("wrong_sum", overrides=[*SMALL, "hardware.device=cpu", "hardware.threads=1"])
    row = rows_of(found, "strategy=wrong_sum", "sync=bsp")[2]
    assert row.first is not None and row.first.name == "hidden2.weight"


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(
    "only", ["torch_fsdp", "torch_ddp", "torch_zero_optimizer", "torch_pipelining", "torch_tensor"]
)
def test_strategies_of_others_are_serial_training(only: str) -> None:
    assert verified(only, overrides=[*SMALL, "hardware.device=cpu"]).passed


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)  # each way starts DeepSpeed anew
@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("only", ["zero", "deepspeed_pipeline"])
def test_deepspeeds_are_serial_training(only: str) -> None:
    found = verified(only, overrides=[*SMALL, "hardware.device=cpu"])
    assert found.passed, [row for row in found.rows if row.word == "fail"]
    if only == "zero":
        stages = {row.overrides[2]: row.word for row in found.rows if "stage" in "".join(row.overrides)}
        assert {stages[f"strategy.stage={stage}"] for stage in (0, 1, 2, 3)} <= {"pass"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "overrides",
    [
        ["model=cnn", "data.limit=100"],
        ["model=gpt", "data=text", "model.n_layer=2", "model.width=32", "data.context=16", "data.limit=100"],
    ],
    ids=["cnn", "gpt"],
)
def test_all_that_the_virtual_cluster_has_trains_as_one_worker_does(overrides: list[str]) -> None:
    found = verify([*overrides, "batch_size=8", "hardware=virtual"], steps=2)
    assert found.passed, [(row.overrides, row.why) for row in found.rows if row.word == "fail"]
    tried = {text.partition("=")[2] for row in found.rows if row.word == "pass" for text in row.overrides[:2]}
    assert {"data_parallel", "pipeline", "tensor", "hybrid", "offload", "single", "parameter_server"} <= tried


@pytest.mark.parametrize(
    ("overrides", "only", "said"),
    [
        (["sync=asp"], [], r"sync=asp: paceline verify tries every one. Choose --only sync=asp"),
        (["strategy.stages=2"], [], "--only"),
        (["hardware.workers=3"], [], "--workers"),
        (["steps=4"], [], "--steps"),
        (["compress=topk"], [], "--only compress"),
        ([], ["pipelin"], "did you mean pipeline"),
        ([], ["model=cnn"], "must be of strategy, sync"),
        ([], ["gradient_x=mean"], "is an override: paceline verify gradient_x=mean --only sync=bsp"),
        ([], ["client"], "--only client: none of the ways has it"),
        ([], ["pipeline", "server=adam"], "--only server=adam: none of the ways has it"),
        ([], ["strategy.stages=77"], "--only strategy.stages=77: none of the ways has it"),
        (["client=scaffold"], [], "client=scaffold: .* serial training has none; leave it out"),
        (["privacy=dp_sgd"], [], "privacy=dp_sgd: .* serial training has none; leave it out"),
    ],
)
def test_what_is_not_the_users_to_set_is_refused_at_once(overrides: list[str], only: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        verify([*VIRTUAL, *overrides], only=only)


def test_what_no_way_can_be_verified_with_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"average.start=3: the first weights to average .* the run has 2 steps"):
        verified("data_parallel", overrides=[*VIRTUAL, "average=swa"])
    with pytest.raises(ConfigError, match=r"callbacks.noise_scale: compares gradients of several replicas"):
        verified("data_parallel", overrides=[*VIRTUAL, "callbacks=[noise_scale]"])
