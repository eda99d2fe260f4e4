"""The weights that a run begins with, where they are not drawn at random: `weights=`.

A safetensors file, such as any run's model.safetensors, whatever strategy made it; or a file of torch.save that holds
tensors alone (torch_files.py); or a run, by its name or its directory, which means its model.safetensors; or a run's
checkpoint; or the directory of a checkpoint that DeepSpeed wrote elsewhere. That is pickled, and reading it runs
whatever code it holds: it has to be trusted explicitly. A checkpoint is read once, into the run's own directory.

What paceline wrote has a checksum, and is refused when that differs. Anyone else's file is taken as it is.

`added`: the names of what features such as `adapt=` have added to the model. A file has all of these or none; then they
begin as they were made.
"""

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ...conf.errors import ConfigError
from ...conf.grammar import typed
from ...strategies.core.state import COMPILED, load_state, state_of
from ...strategies.sync.routed import state_of_expert
from ...tasks.contents import Contents
from ...tracking.checksums import verdict_on_tensors
from ...tracking.errors import CorruptRunError, RunNameError
from ...tracking.files import NotRegularError, UnusableFileError, check_regular
from ...tracking.run_directory import RunDirectory, is_run, run_names
from ...tracking.text import did_you_mean
from ..base import ROOT, checkpoint
from ..base.errors import CorruptCheckpointError
from ..config.experiment import Experiment
from . import experts, torch_files

CONVERTED = "weights.safetensors"  # in the run directory
ORDERED = {"class_names": "classes", "columns": "inputs"}  # of tasks.contents.Contents, by what they are
PARALLEL = "module."  # before the names of a model in DistributedDataParallel
T = TypeVar("T")


def resolved(experiment: Experiment, trusts: bool, root: Path | str = ROOT) -> Experiment:
    """`weights` as an absolute path; workers have another current directory. `root`: where a run of that name may be.

    Raises `ConfigError`.
    """
    if experiment.weights is None:
        return experiment
    path = find(experiment.weights, root)
    if is_run(path):
        path = learnt(experiment.weights, path)
    if path.is_dir() and not _is_ours(path):
        _check_deepspeed(experiment.weights, path, trusts)
    return experiment.model_copy(update={"weights": str(path)})


def find(told: str, root: Path | str, key: str = "weights") -> Path:
    """Finds the file or folder of this path, or the run of this name. Raises `ConfigError`."""
    try:
        if (path := Path(os.path.realpath(told))).exists():  # `resolve` raises RuntimeError for a link to itself
            return path
    except (OSError, ValueError):  # a name that is too long, or has a NUL in it
        pass
    for runs in (root, ROOT):  # a sweep's runs have a root of their own
        with suppress(RunNameError, OSError, ValueError):
            return RunDirectory.open(runs, told).path
    runs = run_names(root)
    hint = f"; {hint}" if (hint := did_you_mean(Path(told).name, runs)) else ""
    raise ConfigError(f"{key}={told}: there is no such file, and no run of that name{hint}")


def learnt(told: str, run: Path, key: str = "weights") -> Path:
    """The file of a run's weights. Raises `ConfigError`."""
    file = run / "model.safetensors"
    if file.exists():
        return file
    kept = checkpoint.steps_of(run / "checkpoints")
    instead = f"; its last checkpoint may do: {typed('weights', str(kept[-1]))}" if kept and key == "weights" else ""
    raise ConfigError(f"{key}={told}: the run has no model.safetensors, as it came to no end{instead}")


def _is_ours(folder: Path) -> bool:
    """Returns whether a folder is, or was, a checkpoint of a run."""
    return checkpoint.STEP.fullmatch(folder.name) is not None or (folder / checkpoint.MANIFEST).exists()


def _check_deepspeed(told: str, path: Path, trusts: bool) -> None:
    if not (path / "latest").is_file():
        raise ConfigError(
            f"weights={told}: must be a run, a safetensors file, such as runs/NAME/model.safetensors, a file of "
            "torch.save with tensors alone, a run's checkpoint, such as runs/NAME/checkpoints/step-00000100, or the "
            "directory of a DeepSpeed checkpoint, which has a file named latest"
        )
    if not trusts:
        raise ConfigError(
            f"weights={told}: DeepSpeed's checkpoints are pickled, and reading one runs whatever code it "
            "holds; if you trust where it comes from: --trust-checkpoint"
        )


def check(
    weights: str,
    shapes: dict[str, list[int]],
    model: str,
    added: frozenset[str],
    replicas: int | None = None,
    key: str = "weights",
) -> None:
    """Checks that there are just tensors of these `shapes`, undamaged; or so for each of as many experts as there are
    `replicas` (None: they are no experts). Raises `ConfigError` or `CorruptCheckpointError`.
    """
    path = Path(weights)
    if path.is_dir():
        if _is_ours(path):
            _check_no_experts(path)
            _check_shapes(path, checkpoint.read_shapes(path), shapes, model, added)
        return  # DeepSpeed's: only known once it has been read
    theirs = unwrapped(_shapes_in(path, key), shapes)
    if not experts.is_of_experts(theirs):
        _check_shapes(path, theirs, shapes, model, added, key)
        return
    found = experts.number_in(theirs)
    if found != replicas:
        instead = f"Only sync=routed hardware.workers={found} with the same partition and seed begins with them."
        if key != "weights":
            instead = "Choose a run of one model, such as one of sync=bsp."
        raise ConfigError(
            f"{key}={path}: holds the models of {found} experts, each of which knows its own part of the data. "
            f"{instead}"
        )
    for replica in range(found):
        _check_shapes(path, state_of_expert(theirs, replica), shapes, model, added)


def differing(run: Path, ours: Contents, data: str, turned: bool = False) -> list[tuple[str, str]]:
    """Returns "classes" and "inputs" where the data name others, or in another order, than the data that the run's
    model has learnt, each with a sentence. Nothing is known of a run that does not say, or whose records cannot be
    read, nor of data without names.

    Args:
        turned: the same names in another order alone.
    """
    try:
        first, _ = RunDirectory(run).scan(1)
    except (OSError, UnusableFileError):
        first = []
    learnt: Any = first[0].get("contents") if first else None
    orders: Any = learnt.get("orders") if isinstance(learnt, dict) else None
    found: list[tuple[str, str]] = []
    for key, mine in ours.orders.items():
        theirs: Any = orders.get(key) if isinstance(orders, dict) else None
        if not isinstance(theirs, list) or theirs == mine or (turned and theirs[1:] != mine[1:]):
            continue
        told, own = (", ".join(map(str, names or ())) for names in (learnt.get(key), getattr(ours, key)))
        rest = "; the rest differs" if told == own else ""
        found.append((ORDERED[key], f"are {told}, and those of data={data} are {own}{rest}"))
    return found


def check_order(weights: str, contents: Contents, data: str) -> None:
    """Raises `ConfigError` where the data have the names that the weights' run had, in another order: weights know
    inputs and outputs by their place alone.
    """
    run = next((folder for folder in Path(weights).parents[:3] if is_run(folder)), None)
    if run is None:
        return
    for what, told in differing(run, contents, data, turned=True):
        raise ConfigError(
            f"weights={weights}: the {what} of its run {told}. Choose data that have them in the same order."
        )


def _shapes_in(path: Path, key: str) -> dict[str, list[int]]:
    """Raises `ConfigError` or `CorruptCheckpointError`."""
    if path.suffix in torch_files.SUFFIXES:
        return _shapes_of(torch_files.read_tensors(path))
    _check_whole(path, key)
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 no mapping
            return _under_all_names(shapes, file.metadata())
    except (OSError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{path} is not a whole safetensors file: {error}") from None


def _under_all_names(theirs: dict[str, T], metadata: Mapping[str, str] | None) -> dict[str, T]:
    """Returns `theirs` with the names that safetensors' save_model left out: those of tied weights, but for one."""
    return {other: theirs[kept] for other, kept in (metadata or {}).items() if kept in theirs} | theirs


def unwrapped(theirs: dict[str, T], mine: Collection[str]) -> dict[str, T]:
    """Returns `theirs` under the model's names, where those have or lack words of DistributedDataParallel and
    torch.compile, and without names that the model lacks of what has one of its names, too: tied weights. `mine`: the
    model's names.
    """
    plain = {name.replace(COMPILED, ""): name for name in mine}
    names = [name.replace(COMPILED, "") for name in theirs]
    if not plain.keys() & {*names} and all(name.startswith(PARALLEL) for name in names):
        names = [name.removeprefix(PARALLEL) for name in names]
    found = dict(zip((plain.get(name, name) for name in names), theirs.values(), strict=True))
    known = {id(each) for name, each in found.items() if name in mine}
    return {name: each for name, each in found.items() if name in mine or id(each) not in known}


def _check_no_experts(folder: Path) -> None:
    """Raises `ConfigError` for a checkpoint that has them without their centres."""
    manifest = checkpoint.read_manifest(folder)
    if len(manifest.files) > 1 and "expert" in checkpoint.read_part(folder, 0, 0, manifest)["sync"]:
        raise ConfigError(
            f"weights={folder}: is a checkpoint of {len(manifest.files)} experts (sync=routed), of which none is the "
            "run's model; --resume goes on from it, and weights=RUN takes the models of a run that came to its end"
        )


def _check_whole(path: Path, key: str) -> None:
    """Raises `CorruptCheckpointError`, or `ConfigError` where a run's own file may be another one than it was."""
    try:
        verdict, digest = verdict_on_tensors(path)
    except NotRegularError as error:
        raise ConfigError(f"{key}={path}: {error}") from None
    except OSError as error:
        raise CorruptCheckpointError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CorruptCheckpointError(f"{path} is not a whole safetensors file: {error}") from None
    if verdict == "changed":
        raise CorruptCheckpointError(f"{path} is damaged: it does not have the SHA-256 that it was written with")
    run = RunDirectory(path.parent)
    if not is_run(path.parent):
        return
    copied = "; if these are the weights that you want, copy the file to another place and name the copy"
    if verdict == "unmarked":
        raise ConfigError(
            f"{key}={path}: has no checksum, so that nobody can tell whether it is what the run {run.name} learnt: "
            f"an earlier version of paceline made it, or something else did{copied}"
        )
    with suppress(CorruptRunError):  # then it says nothing of weights
        if path.name != "model.safetensors":
            return  # the best weights, which a run may still find better ones than
        known = (run.read_summary() or {}).get("model_sha256")
        if known is not None and known != digest:
            raise ConfigError(f"{key}={path}: is not what the run {run.name} learnt, says its summary.json{copied}")


def _shapes_of(state: dict[str, Tensor]) -> dict[str, list[int]]:
    shapes = {id(tensor): list(tensor.shape) for tensor in state.values()}  # one object for a tensor of several names
    return {key: shapes[id(tensor)] for key, tensor in state.items()}


def _check_shapes(
    path: Path,
    theirs: dict[str, list[int]],
    mine: dict[str, list[int]],
    model: str,
    added: frozenset[str],
    key: str = "weights",
) -> None:
    if not added & theirs.keys():
        mine = {key: shape for key, shape in mine.items() if key not in added}
    if mine.keys() != theirs.keys() and theirs and all(".lora_" in f".{name}" for name in theirs):
        raise ConfigError(
            f"{key}={path}: holds adapters alone, and no weights that they are added to. Choose the whole model, which "
            "a run with adapt=lora leaves as model.safetensors with its adapters merged."
        )
    for name in sorted(mine.keys() | theirs.keys()):
        if theirs.get(name) != mine.get(name):
            has, wants = theirs.get(name, "nothing"), mine.get(name, "nothing")
            other = sorted(theirs.keys() - mine.keys())
            names = f". Of its {len(theirs)} names the model lacks {len(other)}, such as {other[0]}" if other else ""
            raise ConfigError(f"{key}={path}: has {has} as {name}, where model={model} has {wants}{names}")


def convert(experiment: Experiment, run: Path, shapes: dict[str, list[int]], added: frozenset[str]) -> None:
    """Read a checkpoint, ours or a trusted one of DeepSpeed's, into the run's directory."""
    if experiment.weights is None or not Path(experiment.weights).is_dir():
        return
    path = Path(experiment.weights)
    state = checkpoint.read_parameters(path) if _is_ours(path) else _read_deepspeed(path)
    _check_shapes(path, _shapes_of(state), shapes, experiment.model.name, added)
    checkpoint.export(run / CONVERTED, state)


def _read_deepspeed(path: Path) -> dict[str, Tensor]:
    from ...strategies.zero import read_checkpoint

    _check_parts(path)
    try:
        return read_checkpoint(path)
    except Exception as error:  # whatever unpickling runs into
        raise CorruptCheckpointError(f"{path} cannot be read as a DeepSpeed checkpoint: {error}") from error


def _check_parts(folder: Path) -> None:
    """DeepSpeed would wait for a pipe. Raises `ConfigError`."""
    for file in folder.rglob("*"):
        if file.exists() and not file.is_dir():
            try:
                check_regular(file)
            except NotRegularError as error:
                raise ConfigError(f"weights={folder}: {file} {error}") from None


def put_into(
    model: nn.Module,
    weights: str,
    run: Path,
    added: Callable[[frozenset[str]], frozenset[str]],
    replica: int = 0,
    centres: Tensor | None = None,
    begun: Callable[[dict[str, Tensor], frozenset[str]], dict[str, Tensor]] = lambda state, _: state,
) -> None:
    """Gives a model the weights of a file. Raises `CorruptCheckpointError` or `ConfigError`.

    Args:
        centres: of the parts, where replicas are experts, of which this is one.
        begun: makes them those of a model with features (models.py).
    """
    own = state_of(model)
    state = unwrapped(load(weights, run), own)
    if experts.is_of_experts(state):
        state = experts.begins_with(state, own, replica, centres, weights)
    check_kinds(f"weights={weights}", state, own)
    load_state(model, {name: own[name] for name in added(frozenset(own))} | begun(state, frozenset(own)))


def check_kinds(given: str, state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Refuses numbers that would lose their meaning: quantized weights are whole numbers without their scale.

    `given`: the key and its value.
    """
    for name in sorted(state.keys() & own.keys()):
        theirs, mine = state[name], own[name]
        if (theirs.is_floating_point(), theirs.is_complex()) != (mine.is_floating_point(), mine.is_complex()):
            raise ConfigError(
                f"{given}: {name} is {theirs.dtype}, and {mine.dtype} in the model. Choose a file with such numbers."
            )


def load(weights: str, run: Path, key: str = "weights") -> dict[str, Tensor]:
    """Raises `CorruptCheckpointError` or `ConfigError`."""
    path = Path(weights)
    path = run / CONVERTED if path.is_dir() else path
    if path.suffix in torch_files.SUFFIXES:
        return torch_files.read_tensors(path)
    _check_whole(path, key)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    return _under_all_names(safetensors.torch.load_file(path), metadata)
