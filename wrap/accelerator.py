"""Accelerate's Accelerator on paceline's replicas. See docs/wrap.md.

>>> from paceline.wrap.accelerator import Accelerator  # first of all imports
>>> accelerator = Accelerator(cpu=True, paceline=["sync=diloco", "sync.period=20"], name="mine")
>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerate  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..conf.errors import ConfigError
from ..engine import ROOT
from .launched import check_device, put_aside, put_back, told
from .run import Run, wrap

put_aside()  # before the Accelerator looks


class Accelerator(accelerate.Accelerator):
    """The first `prepare` with an optimizer begins a run, `end_training` ends it. `run`: what `wrap` returns."""

    run: Run | None = None

    def __init__(
        self, *given: Any, paceline: Sequence[str] = (), name: str | None = None, root: Path | str = ROOT, **more: Any
    ) -> None:
        """`paceline`: overrides as `wrap` takes them. `name`, `root`: of the run. All else goes to Accelerate's.

        Raises `ConfigError`.
        """
        self._overrides, self._name, self._root = paceline, name, root
        super().__init__(*given, **more)
        self._check_accumulation()
        check_device(self.device, "cpu=True")

    @property
    def is_main_process(self) -> bool:
        return told("RANK", "0") == "0"

    is_local_main_process = is_main_process

    def prepare(self, *parts: Any, device_placement: list[bool] | None = None) -> Any:
        """Takes one model, one optimizer and the training loader first among loaders; what else there is stays as it
        is. Raises `ConfigError`, beside what `wrap` raises.
        """
        models = [each for each in parts if isinstance(each, nn.Module)]
        optimizers = [each for each in parts if isinstance(each, Optimizer)]
        loaders: list[DataLoader[Any]] = [each for each in parts if isinstance(each, DataLoader)]
        if not optimizers:
            return super().prepare(*parts, device_placement=device_placement)
        if len(models) != 1 or len(optimizers) != 1 or not loaders or self.run is not None:
            counted = f"{len(models)} models, {len(optimizers)} optimizers and {len(loaders)} loaders"
            raise ConfigError(
                f"prepare: {counted}. A run has one model (nn.ModuleList joins several), one optimizer and a training "
                "loader. Give them in one call."
            )
        put_back()
        self.run = run = wrap(models[0], optimizers[0], loaders[0], *self._overrides, name=self._name, root=self._root)
        places = {id(models[0]): run.model, id(optimizers[0]): run.optimizer, id(loaders[0]): run.loader}
        return tuple(places.get(id(each), each) for each in parts)

    def _check_accumulation(self) -> None:
        """The number may be set at any time. Raises `ConfigError`."""
        if self.gradient_accumulation_steps != 1:
            raise ConfigError(
                f"gradient_accumulation_steps={self.gradient_accumulation_steps}: optimizer.step would have to leave "
                "out steps. Choose 1 and a larger batch, or wrap with run.backward(loss, last=False)."
            )

    def accumulate(self, *models: nn.Module) -> Any:
        self._check_accumulation()
        return super().accumulate(*models)

    def backward(self, loss: Tensor, **more: Any) -> None:
        if self.run is None:
            super().backward(loss, **more)
        else:
            self.run.backward(loss)

    def end_training(self) -> None:
        if self.run is not None:
            self.run.close()
        super().end_training()
