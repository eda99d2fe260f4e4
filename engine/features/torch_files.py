"""Files of torch.save that hold tensors alone, read without running what a pickle says."""

import pickle
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import torch
from torch import Tensor

from ...compat.storages import storage_key
from ...compat.unpickling import without_bytearray
from ...conf.errors import ConfigError
from ...tracking.files import NotRegularError, check_regular
from ...tracking.visible import visible
from ..base.errors import CorruptCheckpointError
from ..base.failures import first_line_of

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
NESTED = ("state_dict", "model")  # keys of a training script's checkpoint under which the weights may be
WAY_OUT = "Save model.state_dict() alone."


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors by name, tied weights as one object of several. Raises `ConfigError` or
    `CorruptCheckpointError`.
    """
    try:
        check_regular(path)
        _check_size(path)
        with without_bytearray(), warnings.catch_warnings(action="ignore"):  # of other versions of pickles
            found = torch.load(path, map_location="cpu", weights_only=True)
    except NotRegularError as error:
        raise ConfigError(f"weights={path}: {error}") from None
    except ConfigError:
        raise
    except pickle.UnpicklingError:
        more = f" ({', '.join(names)})" if (names := _classes(path)) else ""
        raise ConfigError(f"weights={path}: holds more than tensors{more}, and nothing runs it. {WAY_OUT}") from None
    except Exception as error:  # of whatever kind: anybody may have written the file
        told = f"{path} is not a whole file of torch.save: {first_line_of(error)}"
        raise CorruptCheckpointError(told) from None
    for key in (*NESTED, *NESTED):  # one may be inside of the other
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(f"weights={path}: holds a {type(found).__name__} in place of tensors by name. {WAY_OUT}")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            what = f"{visible(str(name))[:80]}, a {type(tensor).__name__},"
            raise ConfigError(f"weights={path}: holds {what} beside tensors. {WAY_OUT}")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise ConfigError(f"weights={path}: {name} is sparse or quantized. Save dense tensors of numbers.")
    first: dict[tuple[object, ...], Tensor] = {}
    return {name: first.setdefault(_place(tensor), tensor.detach()) for name, tensor in found.items()}


def _check_size(path: Path) -> None:
    """Refuses TorchScript, and a file whose parts are longer than itself. Raises `ConfigError`, and what `ZipFile`
    raises.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # torch.save's former format has no parts
            return
        parts = ZipFile(file).infolist()
    if any(Path(each.filename).name == "constants.pkl" for each in parts):
        raise ConfigError(f"weights={path}: is TorchScript, which is code, of torch.jit.save. {WAY_OUT}")
    length = sum(each.file_size for each in parts)
    if length > path.stat().st_size:
        raise ConfigError(f"weights={path}: unpacks to {length:,} bytes, and torch.save packs nothing. {WAY_OUT}")


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Returns the same for tensors with the same memory, as tied weights are."""
    return storage_key(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _classes(path: Path) -> list[str]:
    """Returns the first classes that the file would import, where torch can tell."""
    with suppress(Exception):
        return [visible(name) for name in sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))[:3]]
    return []
