"""Evaluates the model for each client of a federation, before and after the client trains it further by itself.

A client's own test samples are those of the test split of its own labels, in the shares that it trains on (tasks/
clients.py). Over clients there are the mean, the spread (standard deviation), and the worst tenth's mean: whom a model
that is good on average leaves behind (Li et al. 2020, "Fair Resource Allocation in Federated Learning", ICLR; arXiv
1905.10497, section 2 looks at the same).

With `steps` each client makes so many steps of SGD from these weights on its own training samples, and the model that
comes of it is judged on the client's own test samples: the simplest personal model, by fine-tuning (Yu, Bagdasaryan,
Shmatikov 2020, "Salvaging Federated Learning by Local Adaptation", arXiv 2002.04758). `only` leaves all else as it is:
a personal head on a common body, as FedPer has it (Arivazhagan et al. 2019, arXiv 1912.00818), but trained at the end.

Nothing of it goes back: training is the same without it. It takes place on the chief, between steps, one client after
another, each evaluation.
"""

import re
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import nn

from ...batches import call
from ...exchange.seeded import generator
from ...strategies.core.copies import copied
from ...tasks.clients import Subset
from .base import Callback, EvaluationView, Metrics


class ByClient(Callback):
    """`client_mean`, `client_worst`, `client_spread` of the metric; with `steps`, `personal_mean` and so on."""

    sees = frozenset({"clients"})

    def __init__(
        self,
        steps: Annotated[int, Ge(0)] = 0,
        lr: Annotated[float, Gt(0)] | None = None,
        batch_size: Annotated[int, Ge(1)] | None = None,
        only: str | None = None,
        seed: Annotated[int, Ge(0)] = 0,
    ) -> None:
        """`steps`, `lr`, `batch_size`: of a client's fine-tuning; None for a rate of 0.02, and for 32 samples.
        `only`: a regular expression of the names of what is tuned; None for all. `seed`: of the order of its samples.
        """
        self._of_tuning = {"lr": lr, "batch_size": batch_size, "only": only}
        self.steps, self.lr, self.batch_size, self.only, self.seed = steps, lr or 0.02, batch_size or 32, only, seed
        self.metric = ""

    def check(self, metric: str, others: Sequence[str]) -> None:
        self.metric = metric
        given = next(((knob, value) for knob, value in self._of_tuning.items() if value is not None), None)
        if given is not None and self.steps == 0:
            knob, value = given
            raise ValueError(
                f"{knob}={value}: says how each client tunes the model, and with steps=0 none tunes anything. Choose "
                f"steps, such as steps=10, or leave {knob} null."
            )
        if self.only is not None:
            try:
                re.compile(self.only)
            except re.error as error:
                raise ValueError(f"only={self.only}: must be a regular expression: {error}") from None

    def check_model(self, model: nn.Module) -> None:
        if self.only is not None and not self._tuned(model):
            names = ", ".join(name for name, _ in model.named_parameters())
            raise ValueError(f"only={self.only}: matches no parameter of the model; there are {names}")

    def each_evaluation(self, view: EvaluationView) -> Metrics:
        assert view.clients is not None, "it sees clients"
        pairs = [pair for pair in zip(view.clients.train, view.clients.test, strict=True) if len(pair[1])]
        told = _over("client", [self._judged(view, view.model, test) for _, test in pairs])
        if self.steps:
            personal = [self._judged(view, self._personal(view, k, pair[0]), pair[1]) for k, pair in enumerate(pairs)]
            told |= _over("personal", personal)
        return told

    def _judged(self, view: EvaluationView, model: nn.Module, test: Subset) -> float:
        return view.judge(model, view.device, test)[self.metric]

    def _tuned(self, model: nn.Module) -> dict[str, nn.Parameter]:
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        return {name: each for name, each in trained.items() if self.only is None or re.search(self.only, name)}

    def _personal(self, view: EvaluationView, client: int, train: Subset) -> nn.Module:
        model = copied(view.model)
        model.train()
        optimizer = torch.optim.SGD(self._tuned(model).values(), lr=self.lr)
        draws = generator("by_client", self.seed, client)
        assert view.loss is not None
        order = torch.empty(0, dtype=torch.int64)
        with torch.enable_grad():
            for _ in range(self.steps):
                if len(order) < min(self.batch_size, len(train)):
                    order = torch.cat([order, torch.randperm(len(train), generator=draws)])
                batch, order = order[: self.batch_size], order[self.batch_size :]
                taken = train.take(batch)
                optimizer.zero_grad()
                loss = view.loss(call(model, taken.inputs.to(view.device)), taken.targets.to(view.device))
                loss.backward()
                optimizer.step()
        return model.eval()


def _over(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean over clients, that of the worst tenth (one at least), and the standard deviation."""
    worst = sorted(values)[: max(len(values) // 10, 1)]
    return {f"{name}_mean": fmean(values), f"{name}_worst": fmean(worst), f"{name}_spread": pstdev(values)}
