"""GPipe and 1F1B written out for one worker, to read. strategy=pipeline runs them, and other schedules, as data.

Worker i of p holds stage i. Of a batch of n samples in m micro-batches of n_j it adds to each gradient

    g = sum_j (n_j / n) g_j,        g_j the gradient of the mean loss of micro-batch j.

GPipe (Huang et al. 2019, arXiv 1811.06965) takes all forward passes and then all backward passes: m micro-batches'
activations are held. 1F1B (Narayanan et al. 2019, PipeDream, arXiv 1806.03377, with a flush) takes a backward pass as
soon as it can: stage i holds those of at most p - i.

What is left out here: several stages a worker, recomputation, tied weights, backward passes in two parts, schedules
without a flush, traces (execute.py). tests/strategies/test_plain_pipeline.py holds both to the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from ...comm import Comm, Work
from ..core.loss import Loss


@dataclass
class Stage:
    """One worker's stage and its batch. `entering`: [n_j, ...] empty, as the stage before puts them out."""

    module: nn.Module
    comm: Comm  # of the p workers, in the order of stages
    loss: Loss  # (outputs, targets) -> the mean over the samples
    inputs: Sequence[Tensor]  # by micro-batch; the first stage reads them
    targets: Sequence[Tensor]  # the last stage reads them
    entering: Sequence[Tensor]
    _held: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (what entered, what was put out)
    _sending: list[Work] = field(default_factory=list)

    @property
    def is_last(self) -> bool:
        return self.comm.rank == self.comm.size - 1

    def forward(self, j: int) -> None:
        x = self.inputs[j]
        if self.comm.rank > 0:
            x = self.entering[j]
            self.comm.recv(x, self.comm.rank - 1)
            x.requires_grad_()
        y = self.module(x)
        if self.is_last:
            y = self.loss(y, self.targets[j]) * (len(self.targets[j]) / sum(map(len, self.targets)))
        else:
            self._sending.append(self.comm.isend(y.detach().contiguous(), self.comm.rank + 1))
        self._held[j] = x, y

    def backward(self, j: int) -> None:
        x, y = self._held.pop(j)
        gradient = None
        if not self.is_last:
            gradient = y.detach().clone()
            self.comm.recv(gradient, self.comm.rank + 1)
        y.backward(gradient)
        if self.comm.rank > 0:
            assert x.grad is not None
            self._sending.append(self.comm.isend(x.grad, self.comm.rank - 1))

    def flush(self) -> None:
        for work in self._sending:
            work.wait()
        self._sending.clear()


def gpipe(stage: Stage) -> None:
    m = len(stage.targets)
    for j in range(m):
        stage.forward(j)
    for j in range(m):
        stage.backward(j)
    stage.flush()


def one_forward_one_backward(stage: Stage) -> None:
    m = len(stage.targets)
    ahead = min(stage.comm.size - 1 - stage.comm.rank, m)
    for j in range(ahead):
        stage.forward(j)
    for j in range(ahead, m):
        stage.forward(j)
        stage.backward(j - ahead)
    for j in range(m - ahead, m):
        stage.backward(j)
    stage.flush()
