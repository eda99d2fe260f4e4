"""Hugging Face's Trainer on paceline's replicas. See docs/wrap.md.

>>> from paceline.wrap.hugging_face import Trainer  # first of all imports
>>> Trainer(model, args, train_dataset=data, paceline=["sync=diloco", "sync.period=20"], name="mine").train()
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import transformers  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..conf.errors import ConfigError
from ..engine import ROOT
from .launched import check_device, planned, put_aside, put_back, tell_rank, told
from .run import Run, wrap
from .shares import Own

put_aside()  # before TrainingArguments look


class Trainer(transformers.Trainer):
    """Trains as Hugging Face's own does, with each step's batch shared out among workers and a sync mode's update.

    Evaluations see the weights that replicas agree on. A script's callbacks run on all workers, and worker 0 alone
    writes logs and checkpoints. Its checkpoints are for use; to go on training, `paceline train` and `wrap` have
    checkpoints of all replicas.
    """

    def __init__(
        self, *given: Any, paceline: Sequence[str] = (), name: str | None = None, root: Path | str = ROOT, **more: Any
    ) -> None:
        """`paceline`: overrides as `wrap` takes them. `name`, `root`: of the run. All else goes to Hugging Face's."""
        self._overrides, self._where, self._stack = paceline, {"name": name, "root": Path(root)}, ExitStack()
        self._run: Run | None = None
        self._shares: deque[Own] = deque()  # of the batches that were fetched
        self._pass: Iterator[tuple[Any, Own]] | None = None
        self._left = 0  # batches of the pass
        super().__init__(*given, **more)
        tell_rank(self.accelerator)
        if told("RANK", "0") != "0":
            self.args.save_strategy, self.args.logging_strategy = "no", "no"
            for each in list(self.callback_handler.callbacks):
                if _reports(each):
                    self.remove_callback(each)

    def train(self, resume_from_checkpoint: Any = None, *given: Any, **more: Any) -> Any:
        """Raises `ConfigError`, beside what `wrap` raises."""
        if resume_from_checkpoint:
            raise ConfigError(
                f"resume_from_checkpoint={resume_from_checkpoint}: has the weights of one replica, and all must go on. "
                "Leave it out, or choose a loop of your own with wrap(..., resume=True)."
            )
        if self.args.load_best_model_at_end and int(told("WORLD_SIZE", "1")) > 1:
            raise ConfigError(
                "load_best_model_at_end=true: worker 0 alone has checkpoints, of one replica. Choose false on several "
                "workers."
            )
        check_device(self.args.device, "use_cpu=True in TrainingArguments")
        with self._stack:
            trained = super().train(*given, **more)
            self.end_pass()
        self._run = None  # evaluations from now on see the weights that all replicas agreed on
        return trained

    def get_train_dataloader(self) -> "DataLoader[Any]":
        self.loader = super().get_train_dataloader()
        return _Fetched(self)  # type: ignore[return-value]

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """The run begins here, where model, data and optimizer are there."""
        inner = super().create_optimizer(model)
        put_back()
        args, loader, more = self.args, _plain(self.loader), {**self._where, "count": self._count}
        limits = (inf, args.max_steps) if args.max_steps > 0 else (args.num_train_epochs,)
        epochs, steps = planned(len(self.loader), args.gradient_accumulation_steps, *limits)
        run = wrap(self.model, inner, loader, *self._overrides, epochs=epochs, steps=steps, **more)
        self._run = self._stack.enter_context(run)
        self.optimizer = run.optimizer
        self.accelerator.backward = self._backward
        return run.optimizer

    def _count(self, batch: Mapping[str, Any]) -> int:
        """Returns of how many items the loss is the mean."""
        items = self._get_num_items_in_batch([batch], self.args.device)
        return len(next(iter(batch.values()))) if items is None else int(items)

    def _backward(self, loss: Tensor, **more: Any) -> None:
        assert self._run is not None
        self._run.backward(loss, last=self.accelerator.sync_gradients)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *given: Any, **more: Any) -> Tensor:
        assert self._run is not None
        return super().training_step(model, self._run.begin(inputs, self._shares.popleft()), *given, **more)

    def evaluate(self, *given: Any, metric_key_prefix: str = "eval", **more: Any) -> dict[str, float]:
        if self._run is None:
            return super().evaluate(*given, metric_key_prefix=metric_key_prefix, **more)
        with self._run.consensus():
            found = super().evaluate(*given, metric_key_prefix=metric_key_prefix, **more)
        if (accuracy := found.get(f"{metric_key_prefix}_accuracy")) is not None:
            self._run.evaluated(accuracy, loss=found.get(f"{metric_key_prefix}_loss"))
        return found

    def fetched(self) -> Iterator[Any]:
        """One pass over this worker's shares of the batches."""
        assert self._run is not None
        self.end_pass()
        self._shares.clear()
        self._pass = self._run.loader.fetched()
        for batch, own in self._pass:
            self._shares.append(own)
            self._left -= 1
            yield batch

    def end_pass(self) -> None:
        """Hugging Face's loop takes as many batches as there are and never asks for one more, which ends the pass."""
        if self._pass is not None and self._left == 0:
            next(self._pass, None)
        self._pass, self._left = None, len(self.loader)


def _reports(callback: transformers.TrainerCallback) -> bool:
    """Returns whether a callback is one of Hugging Face's that print or log. Those of a script may change training."""
    kinds = [each.__module__ for each in type(callback).__mro__]
    is_logger = any(kind.startswith(("transformers.integrations.", "transformers.utils.notebook")) for kind in kinds)
    return is_logger or isinstance(callback, transformers.ProgressCallback | transformers.PrinterCallback)


def _plain(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """Returns the DataLoader that Accelerate's own was made of: its `__iter__` only moves batches to the device."""
    return getattr(loader, "base_dataloader", loader)


class _Fetched:
    """The data loader that Hugging Face's loop sees. It asks for the length before there is a run."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self.dataset = trainer, trainer.loader.dataset
        self.batch_size = trainer.loader.batch_size

    def __len__(self) -> int:
        return len(self._trainer.loader)

    def __iter__(self) -> Iterator[Any]:
        return self._trainer.fetched()

    def set_epoch(self, epoch: int) -> None:
        self._trainer.end_pass()  # at its end the sampler counts epochs by itself
        if hasattr(self._trainer.loader, "set_epoch"):
            self._trainer.loader.set_epoch(epoch)
