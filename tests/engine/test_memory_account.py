"""The kinds of memory that plan states are those that a run measures; `other` is what is left of its peak."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from choices import STRATEGIES as CHOSEN
from torch import Tensor

import paceline.conf
from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.base import memory
from paceline.engine.training import outcome

CONF = Path(next(iter(paceline.conf.__path__)))
STRATEGIES = sorted(path.stem for path in (CONF / "strategy").glob("*.yaml"))
MIB = 2**20
MODELS = {
    "mlp": ["model=mlp", "data=digits"],
    "cnn": ["model=cnn", "data=digits"],
    "gpt": ["model=gpt", "data=text", "model.n_layer=2", "model.width=64"],
    "gpt with dropout": ["model=gpt", "data=text", "model.n_layer=2", "model.width=64", "model.dropout=0.1"],
    "tied gpt": ["model=gpt", "data=text", "model.n_layer=2", "model.width=64", "model.tied=true"],
    "gpt that recomputes": ["model=gpt", "data=text", "model.n_layer=2", "model.width=64", "model.recompute=true"],
}
SETTINGS = [
    "tracking=none",
    "optimizer=adam",
    "data.limit=64",
    "batch_size=16",
    "steps=2",
    "checkpoint.every=0",
    "hardware.threads=1",
    "hardware.device=cpu",
]


def measured(tmp_path: Path, *overrides: str) -> tuple[dict[str, int], dict[str, int]]:
    """(what a run measured, what was predicted of it), bytes by kind."""
    result = engine.run([*SETTINGS, *overrides], root=tmp_path, quiet=True)
    assert result is not None
    return result.summary["memory"], result.summary["predicted"]["memory"]


def count(strategy: str) -> str:
    chosen = CHOSEN[strategy]
    return f"hardware.workers={max(chosen.parts, 1 if chosen.traits.max_replicas == 1 else 2)}"


NO_TIES = ("torch_pipelining",)  # over stages
FAST = [("data_parallel", "mlp"), ("data_parallel", "gpt that recomputes"), ("pipeline", "tied gpt")]
RUNS = [
    pytest.param(strategy, model, marks=[] if (strategy, model) in FAST else [pytest.mark.slow])
    for strategy in STRATEGIES
    for model in MODELS
]


@pytest.mark.budget(1)
@pytest.mark.dist
@pytest.mark.parametrize(("strategy", "model"), RUNS)
def test_the_kinds_of_memory_are_as_predicted(strategy: str, model: str, tmp_path: Path, fork_server: None) -> None:
    if strategy == "domain" and model != "cnn":
        with pytest.raises(ConfigError, match=r"no layer of MLP works on slabs|cuts images"):
            measured(tmp_path, f"strategy={strategy}", *MODELS[model])
        return
    if strategy in NO_TIES and model == "tied gpt":
        with pytest.raises(ConfigError, match=r"two stages would share a parameter \(tied weights\)"):
            measured(tmp_path, f"strategy={strategy}", *MODELS[model])
        return
    found, stated = measured(tmp_path, f"strategy={strategy}", count(strategy), *MODELS[model])
    for kind, size in stated.items():
        tolerance = 0.15 if kind.endswith("activations") else 0.05
        assert found[kind] == pytest.approx(size, rel=tolerance), kind
    assert found.keys() - stated.keys() == {"other", "process_peak"}
    assert sum(size for kind, size in found.items() if kind != "process_peak") <= 1.01 * found["process_peak"]


SMALL = ["model.hidden=[33,17]", "adapt=lora", "adapt.rank=4"]
EXACT = {  # where it is what training leaves out, or counts of steps, that a plan may get wrong
    **{f"zero, stage {n}": [f"strategy.stage={n}", "hardware.workers=2", *SMALL] for n in range(4)},
    "zero in odd shares": ["strategy.stage=1", "hardware.workers=3", "model.hidden=[33,17]"],
    "zero, all offloaded": ["strategy.offload=all", "hardware.workers=2", *SMALL],
    "zero, bf16": ["strategy.stage=2", "hardware.workers=2", "adapt=quantized", "precision=bf16"],
    "zero, whole, bf16": ["strategy.stage=0", "hardware.workers=2", "adapt=quantized", "precision=bf16"],
    "torch_fsdp": ["hardware.workers=2", *SMALL],
    "offload": ["hardware.workers=2", *SMALL],
    "torch_zero_optimizer": ["hardware.workers=3", "optimizer=lamb"],
    "torch_zero_optimizer, Muon": ["hardware.workers=3", "optimizer=muon"],
}


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("how", EXACT)
def test_memory_is_planned_to_the_byte(how: str, tmp_path: Path, fork_server: None) -> None:
    found, stated = measured(tmp_path, f"strategy={how.partition(',')[0].partition(' ')[0]}", *EXACT[how])
    assert {kind: found[kind] for kind in stated} == stated


@pytest.mark.parametrize(
    "sync",
    [
        ["sync=dion"],
        ["sync=dion", "optimizer=muon"],
        ["sync=onebit_adam", "sync.warmup=2"],
        ["sync=onebit_adam", "sync.warmup=1"],
    ],
    ids=" ".join,
)
def test_on_a_virtual_cluster_memory_is_planned_to_the_byte(sync: list[str], tmp_path: Path) -> None:
    """Dion's matrices have no state of the optimizer's, and the warm-up leaves nothing out."""
    few = [text for text in SETTINGS if not text.startswith("hardware")]
    result = engine.run([*few, "hardware=virtual", "hardware.workers=2", *sync], root=tmp_path, quiet=True)
    assert result is not None
    found, stated = result.summary["memory"], result.summary["predicted"]["memory"]
    assert {kind: found[kind] for kind in stated} == stated


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_weights_are_planned(stage: int) -> None:
    """DeepSpeed holds them whole, and cut up at stage 3 alone."""
    how = [*SETTINGS, "adapt=lora", "hardware.workers=2"]
    whole = engine.prepare([*how, "strategy=data_parallel"]).plan().peak_memory()["parameters"]
    planned = engine.prepare([*how, "strategy=zero", f"strategy.stage={stage}"]).plan().peak_memory()["parameters"]
    assert planned == (whole if stage == 2 else whole // 2)


def test_a_graph_that_is_let_go_of_without_backward_is_off_the_account() -> None:
    """Also where it keeps what it puts out, as exp and relu do."""
    with memory.activations() as account:
        output = torch.ones(4, requires_grad=True).exp().relu()
        assert account._bytes > 0
        del output
        assert account._bytes == 0


SERVED = (
    "sync=asp",
    "sync=fedavg aggregate=median server=adam",
    "sync=fedavg sync.fraction=0.5 client=scaffold",
    "sync=parameter_server sync.servers=2",
    "sync=parameter_server aggregate=median sync.servers=2",
    "sync=ssp sync.staleness=0 aggregate=krum",
    "sync=parameter_server attack=alie",
    "sync=parameter_server compress=topk sync.compress_answers=true",
    "sync=ssp",
    "sync=ssp sync.staleness=0",
    "sync=backup_workers",
    "sync=easgd_async",
    "sync=fedavg secure=bonawitz",
    "sync=fedavg sync.fraction=0.5 client=mime_lite optimizer.momentum=0",
    "sync=fedavg sync.clients=8 sync.momentum=reset",
    "sync=fedavg compress=topk server=momentum",
    "sync=fedbuff server=yogi",
    "sync=asp sync.servers=2 sync.lock=false",
    "sync=asp sync.servers=2 optimizer=adam",
    "sync=fedavg strategy=pipeline strategy.stages=2 hardware.workers=6",
)


@pytest.mark.dist
@pytest.mark.parametrize(
    "chosen", [pytest.param(each, marks=[] if each in SERVED[:4] else pytest.mark.slow) for each in SERVED]
)
def test_servers_hold_what_is_predicted(tmp_path: Path, chosen: str) -> None:
    settings = [each for each in SETTINGS if not each.startswith(("steps=", "hardware.", "optimizer="))]
    overrides = [*settings, "hardware=virtual", "hardware.workers=4", "steps=12", *chosen.split()]
    result = engine.run(overrides, root=tmp_path, quiet=True)
    assert result is not None
    planned = [part.server_memory for part in engine.prepare(overrides).plan().parts]
    stated = {kind: max(part[kind] for part in planned) for kind in planned[0]}
    found = {kind: result.summary["server_memory"][kind] for kind in stated}
    assert found == stated and stated["buffers"] > 0


def test_a_plan_states_the_deliveries_of_a_round_on_a_federated_server() -> None:
    plan = engine.prepare(["sync=fedavg", "hardware=virtual", "hardware.workers=10", "sync.fraction=0.5"]).plan()
    size = plan.parts[0].memory["parameters"]
    assert plan.parts[0].server_memory == {"parameters": size, "gradients": size, "optimizer": 0, "buffers": 5 * size}


def test_the_virtual_clusters_workers_share_a_process_and_have_no_other(tmp_path: Path, fork_server: None) -> None:
    result = engine.run(["tracking=none", "hardware=virtual", "data.limit=64", "steps=2"], root=tmp_path, quiet=True)
    assert result is not None and "other" not in result.summary["memory"]


# -- attention on the meta device


def kept(attend: Any, device: str) -> int:
    query, key, value = (torch.randn(2, 4, 64, 16, device=device, requires_grad=True) for _ in range(3))
    with memory.activations() as account:
        output = attend(query, key, value)
        assert output.shape == query.shape
    return account.peak


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def test_attention_keeps_on_meta_what_it_keeps_on_the_cpu() -> None:
    real = kept(plain, "cpu")
    with memory.AttentionOf(torch.device("cpu")):
        assert kept(plain, "meta") == real
    assert kept(plain, "meta") > 1.5 * real  # the matrix of scores; or this would not be needed


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_dropout_or_a_mask_is_not_fused_on_the_cpu(causal: bool) -> None:
    def dropping(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=causal)

    with memory.AttentionOf(torch.device("cpu")):
        assert kept(dropping, "meta") == pytest.approx(kept(dropping, "cpu"), rel=0.01)


def test_attention_on_cuda_is_fused_with_dropout_too() -> None:
    def dropping(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.1, is_causal=True)

    with memory.AttentionOf(torch.device("cuda")):
        # query, key, value, output, the log-sum-exp of each row, the state of the generator
        assert kept(dropping, "meta") == pytest.approx((4 * 16 + 1) * 2 * 4 * 64 * 4, abs=64)


# -- other


def grow(comm: Any) -> tuple[int, int]:
    before = memory.process_now()
    held = torch.ones(64 * MIB)  # 256 MiB: the pages of torch's own code that are touched first are some 20 MiB
    temporary = held * 2
    del temporary
    cpu = torch.device("cpu")
    return memory.other({"parameters": 256 * MIB}, cpu, before), memory.other({"parameters": 1024 * MIB}, cpu, before)


@pytest.mark.slow
def test_other_is_what_a_process_grew_by_and_no_kind_holds(workers) -> None:
    ((some, none),) = workers(1, grow)
    assert some == pytest.approx(256 * MIB, rel=0.15)  # the temporary
    assert none == 0


def test_on_cuda_other_is_the_allocators_peak_without_the_kinds_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1000)
    cuda = torch.device("cuda")
    assert memory.other({"parameters": 300, "host_optimizer": 5000}, cuda, 0) == 700
    assert memory.other({"parameters": 3000}, cuda, 0) == 0


def test_sparse_momentum_is_counted_by_what_it_holds() -> None:
    """It has no storage of its own, but for its indices and its values."""
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2, 3]]), torch.ones(3, 4), (5, 4), check_invariants=True)
    assert memory.held([sparse, torch.zeros(2)]) == 3 * 8 + 3 * 4 * 4 + 2 * 4


def test_tensors_of_state_under_any_key_are_counted() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer: Any = torch.optim.SGD([weight], lr=0.1)
    optimizer.state |= {weight: {"m": torch.zeros(2)}, "steps": 3, "all": {"means": [torch.zeros(4), None]}}
    assert memory.held(memory.optimizer_state(optimizer)) == 4 * 6


def test_a_card_tells_what_its_allocator_gave_out_and_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 128)
    held = outcome._with_process({"parameters": 60, "host_optimizer": 500}, torch.device("cuda"), 0)
    assert (held["other"], held["device_peak"], held["device_reserved"]) == (40, 100, 128)
