"""SCAFFOLD at a large rate, simulated in plain torch: `python -m benchmarks.scaffold`, for what docs/federated.md says.

Karimireddy et al. 2020, Algorithm 1, with the clients, batches and first weights of experiment=federated_scaffold, and
nothing else of paceline. `--option I` has clients measure their gradients at the round's start in place of the mean of
the gradients of their steps, `--rule fedavg` corrects nothing.

Of the client whose correction is the longest each round prints its length |c_k - c| and the sharpness of its loss: the
largest eigenvalue of the Hessian of all of its samples, at the weights that it ends the round with. Gradient descent of
a quadratic with a larger one than 2 / rate moves away from the minimum.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from paceline.batches import lone
from paceline.tasks.data.digits import Digits
from paceline.tasks.models.mlp import MLP
from paceline.tasks.partition import Dirichlet

CLIENTS, BATCH, POWER = 10, 16, 20  # POWER: iterations to find an eigenvalue
Rule = Literal["scaffold", "fedavg"]
Option = Literal["I", "II"]


@dataclass
class ScaffoldSimulation:
    seed: int
    alpha: float
    rate: float
    epochs: int = 5
    rule: Rule = "scaffold"
    option: Option = "II"
    w: Tensor = field(init=False)  # [n]

    def __post_init__(self) -> None:
        self.train, self.test = Digits().load()
        self.dealt = Dirichlet(self.alpha).deal(self.train.targets, CLIENTS, BATCH, self.seed)
        self.owned = [self.dealt.owned(k) for k in range(CLIENTS)]
        self.share = [len(mine) / len(self.train.targets) for mine in self.owned]
        torch.manual_seed(self.seed)
        self.model = MLP(Digits().spec)
        self.w = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()
        self.c, self.c_k = torch.zeros_like(self.w), [torch.zeros_like(self.w) for _ in range(CLIENTS)]

    def rounds(self, count: int) -> Iterator[tuple[float, int, float, float]]:
        """Yields after each round the accuracy in percent, a client, its |c_k - c| and its sharpness."""
        for number in range(count):
            apart = [float((own - self.c).norm()) for own in self.c_k]
            worst = max(range(CLIENTS), key=apart.__getitem__)
            ends, controls = zip(*(self.trained(k, number) for k in range(CLIENTS)), strict=True)
            sharpness = self.sharpness(ends[worst], worst)
            p = self.share
            self.w = self.w + sum(p[k] * (ends[k] - self.w) for k in range(CLIENTS))
            self.c = self.c + sum(p[k] * (controls[k] - self.c_k[k]) for k in range(CLIENTS))
            self.c_k = [*controls]
            yield self.accuracy(), worst, apart[worst], sharpness

    def trained(self, k: int, number: int) -> tuple[Tensor, Tensor]:
        """One client's round: y and c_k+."""
        y, total, steps = self.w.clone(), torch.zeros_like(self.w), 0
        correction = self.c - self.c_k[k] if self.rule == "scaffold" else torch.zeros_like(self.w)
        length = self.epochs * self.dealt.steps_per_epoch
        for step in range(number * length, (number + 1) * length):
            batch = self.dealt.indices(step, k)
            if len(batch) == 0:  # a smaller client has no more in this epoch
                continue
            g = self.gradient(y, batch)
            total, steps = total + g, steps + 1
            y = y - self.rate * (g + correction)  # y <- y - eta (g_k(y) - c_k + c)
        return y, total / steps if self.option == "II" else self.gradient(self.w, self.owned[k])

    def gradient(self, at: Tensor, samples: Tensor, create_graph: bool = False) -> Tensor:
        vector_to_parameters(at, self.model.parameters())
        loss = F.cross_entropy(self.model(lone(self.train.samples)[samples]), self.train.targets[samples])
        found = torch.autograd.grad(loss, list(self.model.parameters()), create_graph=create_graph)
        return torch.cat([each.flatten() for each in found])

    def sharpness(self, at: Tensor, k: int) -> float:
        """Returns the sharpness by power iteration with products of the Hessian and a vector."""
        gradient = self.gradient(at, self.owned[k], create_graph=True)
        v, found = torch.ones_like(at) / len(at) ** 0.5, 0.0
        for _ in range(POWER):
            product = torch.autograd.grad(gradient @ v, list(self.model.parameters()), retain_graph=True)
            hv = torch.cat([each.flatten() for each in product])
            found, v = float(v @ hv), hv / hv.norm().clamp(min=1e-12)
        return found

    def accuracy(self) -> float:
        vector_to_parameters(self.w, self.model.parameters())
        with torch.no_grad():
            right = self.model(self.test.inputs).argmax(1) == self.test.targets
        return 100 * float(right.double().mean())


def main(
    seed: int = 0,
    alpha: float = 0.1,
    rate: Annotated[list[float] | None, typer.Option(help="0.05 and 0.2, else.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="scaffold and fedavg, else.")] = None,
    option: Annotated[str, typer.Option(help="I or II: what c_k becomes.")] = "II",
    epochs: int = 5,
    rounds: int = 10,
    short: Annotated[bool, typer.Option(help="The last round alone.")] = False,
) -> None:
    torch.set_num_threads(1)
    for eta in rate or [0.05, 0.2]:
        for each in rule or ["scaffold", "fedavg"]:
            simulation = ScaffoldSimulation(seed, alpha, eta, epochs, each, option)  # type: ignore[arg-type]
            print(f"{each}, rate {eta} (2 / rate = {2 / eta:.0f}), alpha {alpha}, seed {seed}, option {option}")
            for number, (accuracy, k, apart, sharpness) in enumerate(simulation.rounds(rounds), 1):
                if not short or number == rounds:
                    owned = len(simulation.owned[k])
                    print(
                        f"  round {number}: accuracy {accuracy:.1f} %; client {k} of {owned} samples: |c_k - c| "
                        f"{apart:.3g}, sharpness {sharpness:.3g}",
                        flush=True,
                    )


if __name__ == "__main__":
    typer.run(main)
