"""Scripts of a person's own: a model in Hugging Face's style, a DataLoader, a loop; the same loop in plain torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline.comm import Comm
from paceline.engine.fabrics.layout import RunLayout
from paceline.strategies.core.mesh import Mesh
from paceline.wrap import Run, wrap
from paceline.wrap.setting import WrappedScript
from paceline.wrap.workers import Joined

WORDS, LENGTH, SAMPLES = 11, 6, 22


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class Tagger(nn.Module):
    """[n, length] words -> [n, length, 2]; takes keyword arguments and gives an object."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Output:
        hidden = self.embedding(input_ids)
        if attention_mask is not None:
            hidden = hidden * attention_mask[..., None]
        logits = self.head(self.norm(hidden.cumsum(1)))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return Output(loss, logits)


class Sentences(Dataset[dict[str, Tensor]]):
    """`masks`: labels of what lies behind a sentence's end are -100, as Hugging Face has it."""

    def __init__(self, masks: bool = False, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(0, WORDS, (samples, LENGTH), generator=generator)
        self.lengths = torch.randint(2, LENGTH + 1, (samples,), generator=generator)
        self.masks = masks

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        labels = self.words[i] % 2
        mask = torch.ones(LENGTH, dtype=torch.int64)
        if self.masks:
            mask = (torch.arange(LENGTH) < self.lengths[i]).long()
            labels = labels.masked_fill(mask == 0, -100)
        return {"input_ids": self.words[i], "attention_mask": mask, "labels": labels}


class Stream(IterableDataset[Tensor]):
    def __iter__(self):
        yield from torch.zeros(4, 2)


def parts(
    masks: bool = False, samples: int = SAMPLES, **how: Any
) -> tuple[Tagger, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(1)
    model = Tagger().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return model, optimizer, DataLoader(Sentences(masks, samples), **{"batch_size": 4, "shuffle": True, **how})


def unmasked(batch: dict[str, Tensor]) -> int:
    return int((batch["labels"] != -100).sum())


Change = Callable[[nn.Module], object]


def unchanged(model: nn.Module) -> None: ...


def loop(
    run: Run,
    epochs: int,
    accumulate: int = 1,
    elapse: Callable[[float], None] = lambda _: None,
    change: Change = unchanged,
) -> None:
    """Trains as a person writes it.

    Args:
        elapse: Lets the time of a virtual worker pass.
        change: Changes the gradients before the optimizer's step.
    """
    for _ in range(epochs):
        for i, batch in enumerate(run.loader):
            elapse(0.01)
            last = (i + 1) % accumulate == 0
            run.backward(run.model(**batch).loss / accumulate, last=last)
            if last:
                change(run.model)
                run.optimizer.step()
                run.optimizer.zero_grad()


def joined(
    comm: Comm,
    root: str,
    model: Any,
    optimizer: Any,
    loader: Any,
    *overrides: str,
    epochs: int = 1,
    count: Any = None,
    resume: bool | None = False,
) -> Run:
    """As `wrap`, on the workers of `comm`."""
    joined = Joined(comm, RunLayout(Mesh({"replica": comm.size}), 0, 0), torch.device("cpu"), lambda: None)
    script = WrappedScript(model, optimizer, loader, overrides, "mine", Path(root), epochs)
    return Run(script, count, resume, lambda _: joined)


def train(
    comm: Comm | None,
    root: str,
    *overrides: str,
    masks: bool = False,
    epochs: int = 2,
    accumulate: int = 1,
    count: Any = None,
    samples: int = SAMPLES,
    change: Change = unchanged,
) -> dict[str, Any]:
    """On the workers of `comm`; None: as `wrap` finds them."""
    model, optimizer, loader = parts(masks, samples)
    if comm is None:
        run = wrap(model, optimizer, loader, *overrides, name="mine", root=root, epochs=epochs, count=count)
    else:
        run = joined(comm, root, model, optimizer, loader, *overrides, epochs=epochs, count=count)
    with run:
        loop(run, epochs, accumulate, comm.elapse if comm else lambda _: None, change)
        with run.consensus():
            accuracy = accuracy_of(model)
        run.evaluated(accuracy)
    return {"weights": weights_of(model), "accuracy": accuracy, "bytes": comm.ledger.snapshot() if comm else {}}


def accuracy_of(model: nn.Module) -> float:
    every = Sentences()
    with torch.no_grad():
        guessed = model(every.words).logits.argmax(-1)
    return float((guessed == every.words % 2).double().mean())


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


# -- in plain torch


def serially(
    masks: bool = False,
    epochs: int = 2,
    accumulate: int = 1,
    samples: int = SAMPLES,
    seed: int = 0,
    change: Change = unchanged,
) -> dict[str, Tensor]:
    model, optimizer, loader = parts(masks, samples)
    loader.sampler.generator = torch.Generator().manual_seed(seed)  # type: ignore[union-attr]
    for _ in range(epochs):
        for i, batch in enumerate(loader):
            (model(**batch).loss / accumulate).backward()
            if (i + 1) % accumulate == 0:
                change(model)
                optimizer.step()
                optimizer.zero_grad()
    return weights_of(model)


# -- comparisons


def identical(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
