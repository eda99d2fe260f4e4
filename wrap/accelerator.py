"""Accelerate's Accelerator on paceline's replicas. See docs/wrap.md.

>>> from paceline.wrap.accelerator import Accelerator  # first of all imports
>>> accelerator = Accelerator(cpu=True, paceline=["sync=diloco", "sync.period=20"], name="mine")
>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import accelerate  # pyright: ignore[reportMissingImports]
from accelerate.data_loader import DataLoaderStateMixin  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..conf.errors import ConfigError
from ..engine import ROOT
from .launched import check_device, put_aside, put_back, tell_rank
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
        check_device(self.device, "cpu=True")
        tell_rank(self)

    def prepare(self, *parts: Any, device_placement: list[bool] | None = None) -> Any:
        """Takes one model, one optimizer and the training loader first among loaders. All else, mixed precision too, is
        Accelerate's. Raises `ConfigError`, beside what `wrap` raises.
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
        stepping = self.prepare_optimizer(run.optimizer, device_placement=False)  # its state is where the run keeps it
        batches = _AcceleratedBatches(run.loader, self.gradient_state)
        places = {id(models[0]): run.model, id(optimizers[0]): stepping, id(loaders[0]): batches}
        return super().prepare(*(places.get(id(each), each) for each in parts), device_placement=device_placement)

    def backward(self, loss: Tensor, **more: Any) -> None:
        if self.run is None:
            super().backward(loss, **more)
            return
        loss = loss / self.gradient_accumulation_steps
        self.run.backward(loss if self.scaler is None else self.scaler.scale(loss), last=self.sync_gradients)

    def load_state(self, *given: Any, **more: Any) -> None:
        """Raises `ConfigError`."""
        raise ConfigError(
            "load_state: a checkpoint of Accelerate has the weights of one replica, and all must go on. Choose a loop "
            "of your own with wrap(..., resume=True)."
        )

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Raises `ConfigError` for the training loader."""
        if isinstance(dataloader, _AcceleratedBatches):
            raise ConfigError(
                f"skip_first_batches: would make another loader, whose batches nobody shares out. Leave the first "
                f"{num_batches} batches out by `continue`."
            )
        return super().skip_first_batches(dataloader, num_batches)

    def end_training(self) -> None:
        if self.run is not None:
            self.run.close()
        super().end_training()


class _AcceleratedBatches(DataLoaderStateMixin):
    """The training loader that Accelerate knows: accumulated gradients are stepped with at the end of a pass, too."""

    def __init__(self, loader: Any, gradient_state: Any) -> None:
        self._loader, self.gradient_state = loader, gradient_state

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the script's DataLoader, such as `dataset`."""
        if name.startswith("_"):
            raise AttributeError(f"the loader of a run has no attribute {name!r}")
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        try:
            for number, batch in enumerate(self._loader, 1):
                self.end_of_dataloader = number == len(self)
                yield batch
        finally:
            self.end()
