"""The weights that a run begins with, where they are not drawn at random: `weights=`.

A safetensors file, such as any run's model.safetensors, whatever strategy made it; or the directory of a checkpoint
that DeepSpeed wrote elsewhere. That is pickled, and reading it runs whatever code it holds: it has to be trusted
explicitly. It is read once, into the run's own directory.
"""

from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import ConfigError, CorruptCheckpointError
from .experiment import Experiment

CONVERTED = "weights.safetensors"  # in the run directory


def resolved(experiment: Experiment, trusts: bool) -> Experiment:
    """`weights` as an absolute path; workers have another current directory. Raises `ConfigError`."""
    if experiment.weights is None:
        return experiment
    path = Path(experiment.weights).resolve()
    if not path.exists():
        raise ConfigError(f"weights={experiment.weights}: there is no such file")
    if path.is_dir() and not (path / "latest").is_file():
        raise ConfigError(
            f"weights={experiment.weights}: must be a safetensors file, such as runs/NAME/model.safetensors, or the "
            "directory of a DeepSpeed checkpoint, which has a file named latest"
        )
    if path.is_dir() and not trusts:
        raise ConfigError(
            f"weights={experiment.weights}: DeepSpeed's checkpoints are pickled, and reading one runs whatever code it "
            "holds; if you trust where it comes from: --trust-checkpoint"
        )
    return experiment.model_copy(update={"weights": str(path)})


def check(weights: str, shapes: dict[str, list[int]], model: str) -> None:
    """Whether a file has just tensors of these `shapes`. Raises `ConfigError` or `CorruptCheckpointError`."""
    path = Path(weights)
    if path.is_dir():  # only known once it has been read
        return
    try:
        with safe_open(path, framework="pt") as file:
            theirs = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 no mapping
    except (OSError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{path} is not a whole safetensors file: {error}") from None
    _check_shapes(path, theirs, shapes, model)


def _check_shapes(path: Path, theirs: dict[str, list[int]], mine: dict[str, list[int]], model: str) -> None:
    for key in sorted(mine.keys() | theirs.keys()):
        if theirs.get(key) != mine.get(key):
            has, wants = theirs.get(key, "nothing"), mine.get(key, "nothing")
            raise ConfigError(f"weights={path}: has {has} as {key}, where model={model} has {wants}")


def convert(experiment: Experiment, run: Path, shapes: dict[str, list[int]]) -> None:
    """Read a trusted DeepSpeed checkpoint into the run's directory."""
    if experiment.weights is None or not Path(experiment.weights).is_dir():
        return
    from ..strategies.zero import read_checkpoint
    from .checkpoint import export

    path = Path(experiment.weights)
    try:
        state = read_checkpoint(path)
    except Exception as error:  # whatever unpickling runs into
        raise CorruptCheckpointError(f"{path} cannot be read as a DeepSpeed checkpoint: {error}") from error
    theirs = {key: list(tensor.shape) for key, tensor in state.items()}
    _check_shapes(path, theirs, shapes, experiment.model.name)
    export(run / CONVERTED, state)


def load(weights: str, run: Path) -> dict[str, Tensor]:
    path = Path(weights)
    return safetensors.torch.load_file(run / CONVERTED if path.is_dir() else path)
