"""Weights to begin with: any strategy's, from a safetensors file; DeepSpeed's own, once they are trusted."""

import pickle
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import safetensors.torch
import torch
from torch import nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import CorruptCheckpointError, WorkerFailedError
from paceline.engine.features.weights import check, put_into, unwrapped
from paceline.strategies.core.state import state_of

SMALL = ["tracking=none", "model.hidden=[16,12]", "hardware.threads=1", "hardware.workers=2", "checkpoint.every=0"]
STILL = ["steps=1", "optimizer.lr=1e-30"]  # trains nothing: what comes out is what went in


def weights_of(result):
    return safetensors.torch.load_file(result.path / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def trained(fork_server, tmp_path_factory):
    return engine.run([*SMALL, "steps=20"], root=tmp_path_factory.mktemp("trained"), quiet=True)


@pytest.mark.parametrize(
    "how",
    [
        ["strategy=single", "hardware.workers=1"],
        ["strategy=pipeline"],
        ["sync=asp"],
        pytest.param(["strategy=zero", "strategy.stage=3"], marks=pytest.mark.slow),
        pytest.param(["strategy=torch_fsdp"], marks=pytest.mark.slow),
        pytest.param(["strategy=zero", "strategy.stage=2", "precision=bf16"], marks=pytest.mark.slow),
        pytest.param(["strategy=zero", "strategy.stage=3", "precision=bf16"], marks=pytest.mark.slow),
        pytest.param(["strategy=zero", "strategy.stage=0", "precision=bf16"], marks=pytest.mark.slow),
        ["hardware=virtual"],
    ],
)
def test_a_run_begins_with_anothers_weights(trained, tmp_path, how):
    small = [key for key in SMALL if not (key.startswith("hardware.threads") and "hardware=virtual" in how)]
    file = trained.path / "model.safetensors"
    result = engine.run([*small, *STILL, *how, f"weights={file}"], root=tmp_path, quiet=True)
    assert equal(weights_of(result), weights_of(trained))
    assert result.accuracy == trained.accuracy


@pytest.mark.slow
def test_what_zero_made_is_taken_by_others(fork_server, tmp_path):
    made = engine.run([*SMALL, "steps=5", "strategy=zero", "strategy.stage=3"], root=tmp_path, quiet=True)
    file = made.path / "model.safetensors"
    taken = engine.run([*SMALL, *STILL, f"weights={file}"], root=tmp_path, quiet=True)
    assert equal(weights_of(taken), weights_of(made))


@pytest.fixture
def virtual_linear(fork_server, tmp_path):
    """A run of a linear model that begins with a file and trains nothing."""

    def run(file):
        small = ["model=linear", "tracking=none", "hardware=virtual", "checkpoint.every=0", *STILL]
        return engine.run([*small, f"weights={file}"], root=tmp_path, quiet=True)

    return run


def planned(*overrides, **how):
    return engine.prepare([*SMALL, *overrides], **how).plan()


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="weights=nowhere: there is no such file, and no run of that name"):
        planned("weights=nowhere")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="loop: there is no such file"):
        planned(f"weights={tmp_path / 'loop'}")


def test_weights_of_another_model_are_refused_with_both_shapes(trained):
    with pytest.raises(ConfigError, match=r"has \[16\] as hidden1.bias, where model=mlp has \[8\]"):
        planned(f"weights={trained.path / 'model.safetensors'}", "model.hidden=[8,12]")


def test_a_damaged_file_is_corrupt(tmp_path):
    file = tmp_path / "half.safetensors"
    file.write_bytes(b"\x10\x00\x00")
    with pytest.raises(CorruptCheckpointError, match="not a whole safetensors file"):
        planned(f"weights={file}")


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="a file named latest"):
        planned(f"weights={tmp_path}")


def save_by_deepspeed(comm, folder):
    """What a user's own DeepSpeed script leaves behind."""
    from paceline.comm.torch_world import torch_world
    from paceline.strategies.external.deepspeed_start import import_for
    from paceline.tasks.data.digits import Digits
    from paceline.tasks.models.mlp import MLP

    torch_world(comm)
    deepspeed = import_for(comm)
    torch.manual_seed(7)
    model = MLP(Digits().spec, [16, 12])
    settings = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5000}}
    optimizer = torch.optim.Adam(model.parameters())
    model_engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)
    inputs = torch.randn(4, 1, 8, 8)
    model_engine.backward(nn.functional.cross_entropy(model_engine(inputs), torch.arange(4)))
    model_engine.step()
    model_engine.save_checkpoint(folder)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.slow
def test_deepspeeds_own_pickles_are_read_once_they_are_trusted(workers, tmp_path):
    folder = tmp_path / "theirs"
    saved = workers(2, save_by_deepspeed, str(folder))[0]
    with pytest.raises(ConfigError, match="--trust-checkpoint"):
        planned(f"weights={folder}")
    result = engine.run([*SMALL, *STILL, f"weights={folder}"], root=tmp_path, quiet=True, trust_checkpoint=True)
    assert equal(weights_of(result), saved)


# -- a run, by its name


def test_a_run_is_named_as_resume_has_it(trained, tmp_path):
    """By its name under the root, or its directory: what it learnt."""
    root, name = trained.path.parent, trained.path.name
    for named in (name, str(trained.path)):
        prepared = engine.prepare([*SMALL, f"weights={named}"], root=root)
        assert prepared.experiment.weights == str(trained.path / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"no run of that name; did you mean {name}"):
        engine.prepare([*SMALL, f"weights={name}x"], root=root)


def test_a_run_that_came_to_no_end_has_no_weights_to_begin_with(tmp_path):
    (tmp_path / "stopped" / "checkpoints" / "step-00000007").mkdir(parents=True)
    (tmp_path / "stopped" / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"weights=stopped: the run has no model.safetensors.*weights=.*00000007"):
        engine.prepare([*SMALL, "weights=stopped"], root=tmp_path)


class Runs:
    """Leaves a file behind where a pickle runs it."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("told", ["plain", "state_dict", "model", "both", "wrapped"])
def test_a_file_of_torch_save_with_tensors_alone_is_read(told, legacy, virtual_linear, tmp_path):
    tensors = {name: torch.randn(shape) for name, shape in engine.prepare(["model=linear"]).plan().shapes.items()}
    content = {
        "plain": tensors,
        "state_dict": {"state_dict": tensors, "epoch": 3, "optimizer": {"lr": 0.1}},
        "model": {"model": {name: nn.Parameter(tensor) for name, tensor in tensors.items()}},
        "both": {"model": {"state_dict": tensors}},
        "wrapped": {"state_dict": {f"_orig_mod.module.{name}": tensor for name, tensor in tensors.items()}},
    }[told]
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=not legacy)
    assert equal(weights_of(virtual_linear(tmp_path / "w.pth")), tensors)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (nn.Linear(2, 2), ConfigError, "holds more than tensors"),
        ({"model": nn.Linear(2, 2)}, ConfigError, "holds more than tensors .*torch.nn.modules.linear.Linear"),
        ({"a": torch.zeros(1), "epoch": 3}, ConfigError, "holds epoch, a int, beside tensors. Save model.state_dict"),
        ({"\x1b[2J": 3}, ConfigError, r"holds \\x1b\[2J, a int,"),
        ([torch.zeros(1)], ConfigError, "holds a list in place of tensors by name"),
        ({}, ConfigError, "holds a dict in place"),
        ({"a": torch.eye(2).to_sparse()}, ConfigError, "a is sparse or quantized"),
        (b"garbage", ConfigError, "holds more than tensors, and nothing runs it"),
        (b"PK\x03\x04" + bytes(30), CorruptCheckpointError, "is not a whole file of torch.save"),
        ({"output.bias": torch.zeros(3)}, ConfigError, r"has \[3\] as output.bias, where model=linear has"),
        (
            {"net.output.bias": torch.zeros(3), "net.output.weight": torch.zeros(3, 64)},
            ConfigError,
            r"has \[3\] as net\.output\.bias, .*Of its 2 names the model lacks 2, such as net\.output\.bias",
        ),
    ],
    ids=["module", "nested", "number", "name", "list", "nothing", "sparse", "no pickle", "cut", "shape", "prefix"],
)
def test_a_file_of_torch_save_with_more_or_less_is_refused_with_the_reason(content, error, said, tmp_path):
    file = tmp_path / "w.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(error, match=said):
        engine.prepare(["model=linear", f"weights={file}"]).plan()


class Long:
    """Makes a long buffer where a pickle runs it."""

    def __reduce__(self):
        return bytearray, (2**28,)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_file_of_torch_save_makes_no_long_buffer(legacy, tmp_path):
    file = tmp_path / "w.pt"
    torch.save({"a": Long()}, file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ConfigError, match="holds more than tensors"):
        engine.prepare(["model=linear", f"weights={file}"]).plan()
    torch.save({"a": bytearray(3)}, file)
    assert torch.load(file, weights_only=True) == {"a": bytearray(3)}, "torch itself is as it was"


def test_torchscript_is_refused_by_its_name(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=r"w\.pt: is TorchScript.*Save model\.state_dict\(\) alone"):
        engine.prepare(["model=linear", f"weights={tmp_path / 'w.pt'}"]).plan()


def test_a_packed_file_of_torch_save_is_refused(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "w.pt")
    with ZipFile(tmp_path / "w.pt") as whole, ZipFile(tmp_path / "packed.pt", "w", ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    with pytest.raises(ConfigError, match=r"packed\.pt: unpacks to [\d,]+ bytes, and torch\.save packs nothing"):
        engine.prepare(["model=linear", f"weights={tmp_path / 'packed.pt'}"]).plan()


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".pkl"])
def test_nothing_in_a_file_of_torch_save_runs(suffix, tmp_path):
    file, mark = tmp_path / f"w{suffix}", tmp_path / "it-ran"
    for write in (lambda: torch.save({"a": Runs(mark)}, file), lambda: file.write_bytes(pickle.dumps(Runs(mark)))):
        write()
        with pytest.raises(ConfigError, match="holds more than tensors"):
            engine.prepare(["model=linear", f"weights={file}"]).plan()
    assert not mark.exists()


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_numbers_of_another_kind_are_refused(dtype, fork_server, tmp_path):
    plain = engine.prepare(["model=linear"]).plan().shapes
    tensors = {name: torch.ones(shape, dtype=dtype) for name, shape in plain.items()}
    safetensors.torch.save_file(tensors, tmp_path / "odd.safetensors")
    told = ["model=linear", "steps=1", "tracking=none", "hardware=virtual", f"weights={tmp_path / 'odd.safetensors'}"]
    with pytest.raises(WorkerFailedError, match=rf"output.bias is {dtype}, and torch.float32 in the model") as caught:
        engine.run(told, root=tmp_path, quiet=True)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_that_a_wrapper_gave_are_left_out(prefix, virtual_linear, tmp_path):
    tensors = {name: torch.randn(shape) for name, shape in engine.prepare(["model=linear"]).plan().shapes.items()}
    file = tmp_path / "ddp.safetensors"
    safetensors.torch.save_file({f"{prefix}{name}": each for name, each in tensors.items()}, file)
    assert equal(weights_of(virtual_linear(file)), tensors)


def test_names_keep_their_beginning_where_not_all_have_it_or_the_model_has_one_of_them():
    assert unwrapped({"module.a": 1, "b": 2}, {"a", "b"}) == {"module.a": 1, "b": 2}
    assert unwrapped({"a._orig_mod.w": 1, "b.w": 2}, {"a.w", "b.w"}) == {"a.w": 1, "b.w": 2}
    assert unwrapped({"a._orig_mod.w": 1, "b.w": 2}, {"a._orig_mod.w", "b.w"}) == {"a._orig_mod.w": 1, "b.w": 2}
    assert unwrapped({"module.a._orig_mod.w": 1}, {"a.w"}) == {"a.w": 1}
    assert unwrapped({"a.w": 1, "module.b.w": 2}, {"a._orig_mod.w"}) == {"a._orig_mod.w": 1, "module.b.w": 2}
    assert unwrapped({"module.a.w": 1}, {"a._orig_mod.w"}) == {"a._orig_mod.w": 1}
    assert unwrapped({"module.a": 1, "module.b": 2}, {"module.a", "c"}) == {"module.a": 1, "module.b": 2}


def tied() -> Any:
    model: Any = nn.Module()
    model.table, model.head = nn.Embedding(5, 4), nn.Linear(4, 5)
    model.head.weight = model.table.weight
    return model


def save_parallel(model: nn.Module, path: str) -> None:
    torch.save({"state_dict": {f"module.{name}": each for name, each in model.state_dict().items()}}, path)


@pytest.mark.parametrize(
    ("save", "file"),
    [
        (lambda model, path: torch.save(model.state_dict(), path), "own.pt"),
        (save_parallel, "own.pt"),
        (safetensors.torch.save_model, "own.safetensors"),  # keeps head.weight, and says which one it stands for
    ],
)
def test_a_file_has_tied_weights_under_all_their_names_or_another_than_the_model(save, file, tmp_path):
    theirs, mine, path = tied(), tied(), tmp_path / file
    save(theirs, str(path))
    check(str(path), {name: list(each.shape) for name, each in state_of(mine).items()}, "own", frozenset())
    put_into(mine, str(path), tmp_path, lambda names: frozenset())
    assert mine.head.weight is mine.table.weight
    assert equal(mine.state_dict(), theirs.state_dict())


def test_a_second_tensor_of_a_name_that_the_model_lacks_is_refused(tmp_path):
    path = tmp_path / "own.pt"
    torch.save({**tied().state_dict(), "head.weight": torch.zeros(5, 4)}, path)
    with pytest.raises(ConfigError, match=r"has \[5, 4\] as head\.weight, where model=own has nothing"):
        check(str(path), {name: list(each.shape) for name, each in state_of(tied()).items()}, "own", frozenset())


@pytest.mark.parametrize("adapt", ["none", "lora"])
@pytest.mark.parametrize("name", ["base_model.model.output.lora_A.weight", "output.lora_B"])
def test_a_file_of_adapters_is_refused_as_such(name, adapt, tmp_path):
    safetensors.torch.save_file({name: torch.zeros(8, 64)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"holds adapters alone.*Choose the whole model"):
        engine.prepare(["model=linear", f"adapt={adapt}", f"weights={tmp_path / 'adapter_model.safetensors'}"]).plan()
