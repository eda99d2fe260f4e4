"""Lightning's Trainer on paceline's replicas. See docs/wrap.md.

>>> from paceline.wrap.lightning import Replicas  # first of all imports
>>> Trainer(strategy=Replicas("sync=diloco", "sync.period=20", name="mine"), max_epochs=3).fit(module, loader)
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy  # pyright: ignore[reportMissingImports]
from lightning.pytorch.trainer.states import TrainerFn  # pyright: ignore[reportMissingImports]
from lightning_utilities.core.rank_zero import rank_zero_only  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..compat.lightning_loop import accumulates, length
from ..conf.errors import ConfigError
from ..engine import ROOT
from .launched import check_device, planned, put_aside, put_back, told
from .run import Run, wrap

ONE_LOADER = "Choose one DataLoader."

put_aside()  # before Lightning's Trainer looks


class Replicas(SingleDeviceStrategy):
    """A strategy of Lightning: each step's batch is shared out among workers, and the update is a sync mode's.

    Validation sees the weights that replicas agree on. Worker 0 alone shows progress, logs and writes checkpoints.
    These have the weights of its own replica.
    """

    def __init__(
        self, *overrides: str, name: str | None = None, root: Path | str = ROOT, device: torch.device | str = "cpu"
    ) -> None:
        """`overrides`: as `wrap` takes them. `name`, `root`: of the run. `device`: of a lone worker.

        Raises `ConfigError`.
        """
        check_device(torch.device(device), "device=cpu")
        super().__init__(device)
        self._overrides, self._name, self._root = overrides, name, root
        self._run: Run | None = None
        self._evaluation = ExitStack()
        self.global_rank = rank_zero_only.rank = int(told("RANK", "0"))

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def process_dataloader(self, dataloader: object) -> object:
        """The first loader of training begins the run: model and optimizer are there by then. Raises as `wrap` does."""
        module = self.lightning_module
        assert module is not None
        if self._run is not None or not module.trainer.training:
            return dataloader
        if not isinstance(dataloader, DataLoader):
            kind = type(dataloader).__name__
            raise ConfigError(f"train_dataloaders: a {kind} has no samples to share out. {ONE_LOADER}")
        if len(self.optimizers) != 1:
            raise ConfigError(
                f"configure_optimizers: makes {len(self.optimizers)} optimizers, and a sync mode's update is one "
                "optimizer's. Choose one with several groups of parameters."
            )
        put_back()
        epochs, steps = planned(*length(module.trainer, len(dataloader)))
        self._run = wrap(
            module, self.optimizers[0], dataloader, *self._overrides, name=self._name, root=self._root, epochs=epochs,
            steps=steps,
        )  # fmt: skip
        self.optimizers = [self._run.optimizer]
        return self._run.loader

    def load_checkpoint(self, checkpoint_path: Any, *given: Any, **more: Any) -> dict[str, Any]:
        """Raises `ConfigError` where training would go on from it."""
        module = self.lightning_module
        if module is not None and module.trainer.state.fn == TrainerFn.FITTING:
            raise ConfigError(
                f"ckpt_path={checkpoint_path}: has the weights of one replica, and all must go on. Leave it out, or "
                "choose a loop of your own with wrap(..., resume=True)."
            )
        return super().load_checkpoint(checkpoint_path, *given, **more)

    def on_train_start(self) -> None:
        """Raises `ConfigError`."""
        module = self.lightning_module
        assert module is not None and self._run is not None
        if module.trainer.train_dataloader is not self._run.loader:
            raise ConfigError(f"train_dataloaders: are several, and a step has one batch to share out. {ONE_LOADER}")
        if every := module.trainer.reload_dataloaders_every_n_epochs:
            raise ConfigError(
                f"reload_dataloaders_every_n_epochs={every}: would make further loaders, whose batches nobody "
                "shares out. Choose 0."
            )

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *given: Any, **more: Any) -> Tensor:
        module = self.lightning_module
        assert module is not None and self._run is not None
        self.pre_backward(closure_loss)
        loss = self.precision_plugin.pre_backward(closure_loss, module)  # type: ignore[arg-type]
        self._run.backward(loss, last=not accumulates(module.trainer))
        loss = self.precision_plugin.post_backward(loss, module)  # type: ignore[arg-type]
        self.post_backward(loss)
        return loss

    def on_validation_start(self) -> None:
        if self._run is not None:
            self._evaluation.enter_context(self._run.consensus())

    def on_validation_end(self) -> None:
        self._evaluation.close()

    def on_exception(self, exception: BaseException) -> None:
        if self._run is not None:
            self._run.__exit__(type(exception), exception, exception.__traceback__)
        super().on_exception(exception)

    def teardown(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None
        super().teardown()
