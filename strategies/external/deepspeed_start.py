"""DeepSpeed in a worker: imported without its talk, and told where it is."""

import json
import logging
import os
import warnings
from contextlib import suppress
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from ...comm.process import ProcessComm
from ...compat.deepspeed import leave_out
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ..core.errors import MissingToolError
from .deepspeed_ops import use_own_folder
from .deepspeed_settings import Noting


def check_there(strategy: str) -> None:
    """Checks that DeepSpeed is installed. Raises `MissingToolError`."""
    if find_spec("deepspeed") is None:
        raise MissingToolError(f"strategy={strategy}: DeepSpeed is not installed; pip install deepspeed")


def absence() -> list[Note]:
    """Returns a note for plans where DeepSpeed is not installed on this host."""
    if find_spec("deepspeed") is not None:
        return []
    return [Note(("strategy",), "DeepSpeed is not installed here, so that train refuses this; pip install deepspeed")]


def in_one_dtype(model: nn.Module, setting: str, dtype: torch.dtype) -> nn.Module:
    """Returns the model in the one dtype that DeepSpeed trains in. Raises `ConfigError` for parameters that are of
    another than that or float32: DeepSpeed would round them, or ends in an error where they meet.
    """
    floating = {each.dtype for each in model.parameters() if each.is_floating_point()}
    if others := sorted(map(str, floating - {torch.float32, dtype})):
        raise ConfigError(
            f"{setting}: the model has parameters of {', '.join(others)}, and DeepSpeed makes all of them {dtype}. "
            "Choose strategy=data_parallel, or float32 for all layers."
        )
    return model.to(dtype)


def quiet_import() -> Any:
    """DeepSpeed without its talk, and without its shared-memory operation, which takes a minute to compile and serves
    inference alone.
    """
    use_own_folder()
    warnings.filterwarnings("ignore", module="deepspeed")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or it says that it looked for one
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    leave_out("deepspeed_shm_comm")
    return deepspeed


def import_for(comm: ProcessComm) -> Any:
    """DeepSpeed over torch's default process group, which spans `comm`.

    It looks for its place in the environment, where its own launcher would have put it.
    """
    os.environ.update(RANK=str(comm.rank), WORLD_SIZE=str(comm.size))
    if comm.device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["LOCAL_RANK"] = str(comm.device.index or 0) if comm.device.type == "cuda" else str(comm.rank)
    deepspeed = quiet_import()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        deepspeed.init_distributed(dist_init_required=False, verbose=False)
    return deepspeed


def check_settings(settings: dict[str, Any]) -> None:
    """Raises `ConfigError` for what DeepSpeed refuses, and for keys that it does not know, which it would pass over."""
    quiet_import()
    from deepspeed.runtime.config import DeepSpeedConfig

    noting = Noting(settings)
    try:
        DeepSpeedConfig(noting)
    except Exception as error:  # DeepSpeed's own, pydantic's, assertions
        raise ConfigError(f"strategy.config: DeepSpeed refuses {_culprit(settings)}: {_said(error)}") from None
    for key in settings.keys() - noting.seen:
        near = get_close_matches(key, [name for name in noting.seen if name], n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"strategy.config: {key}: DeepSpeed knows no such key{hint}")


def _culprit(settings: dict[str, Any]) -> str:
    """The key without which DeepSpeed would take the rest, if there is one."""
    from deepspeed.runtime.config import DeepSpeedConfig

    for key, value in settings.items():
        with suppress(Exception):
            DeepSpeedConfig({k: v for k, v in settings.items() if k != key})
            return f"{key}={json.dumps(value)}"
    return "it"


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors()[0]
        where = ".".join(map(str, found["loc"]))
        return f"{error.title}: {where}={found['input']!r}: {found['msg']}"
    return " ".join(str(error).split())
