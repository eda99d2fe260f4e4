"""Routed experts: replicas train alone on parts of the data that lie close together, and a sample is answered by the
model of the nearest part (CA-SVM: You et al. 2015, "CA-SVM: Communication-Avoiding Support Vector Machines on
Distributed Systems", IPDPS).

Replica i owns the samples D_i, of P parts (`partition=clusters` deals them), and trains a model f_i on them alone. All
begin with the same weights. With the parts' centres c_i the model of the run is

    f(x) = f_k(x),     k = argmin_i |x - c_i|,     c_i = (1 / |D_i|) sum of the x in D_i.

Nothing is averaged: the experts stay P models, and what is evaluated, exported and read back is all of them with their
centres (`Experts`). One replica alone is serial training, bit for bit, and its model is an ordinary one.

A replica that dies takes its expert with it: from then on the nearest of the living answers. If replica 0 dies, which
evaluates, the run ends.

Deviations from the paper: there f_i is a support vector machine with a kernel, which is trained to the end by
sequential minimal optimisation; here it is any model, trained for the run's steps. `model=linear task=hinge` is a
linear support vector machine, and `model=random_features` comes close to the Gaussian kernel's.

Cost per step: nothing. An evaluation, and the end, gather the experts at replica 0, aside from training: each other
replica sends its S bytes. A checkpoint holds each replica's own weights and optimizer, so that a resumed run is the
uninterrupted one. The answer to a sample costs P distances more than one model's; replica 0 holds P models meanwhile.

Use it where samples fall into groups, and a model too small or too slow for all of them does well on each: kernel
machines, whose training grows with the square of the samples, gain most. Where the model could learn all of the data,
each expert has seen only 1 / P of them, and is the worse for it the larger P is. It needs inputs between which
distances mean something: raw pixels of centred images do, tokens do not.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...comm import PeerLostError
from ...exchange.clip import Clip
from ...exchange.survivors import isend_to, wait_for
from ..core.cost import Transfers, World
from ..core.state import State, from_bytes, to_bytes
from ..core.sync import Measures, Sync, SyncTraits
from ..core.trial import Trial

CENTRES, LIVING = "centres", "living"
T = TypeVar("T")


class Routed(Sync):
    """Replicas train alone, and stay apart. Between two steps they meet where the run is evaluated or saved."""

    trial = Trial(beside={"partition": "clusters"}, accuracy_lost=0.03)  # each has seen a part of the samples
    traits = SyncTraits(
        weights_agree=False,
        unaveraged="evaluates the models of all replicas side by side, and keeps no average of any",
        survives=True,
        whole_replica="evaluates the whole models of all replicas side by side",
    )

    def __init__(self, clip: Clip | None = None) -> None:
        """`clip`: of a replica's own gradient; None for none."""
        self.clip = clip

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()

    def gathered(self, state: dict[str, Tensor]) -> dict[str, Tensor] | None:
        if self.comm.size == 1:
            return state
        message = torch.frombuffer(bytearray(to_bytes(state)), dtype=torch.uint8)
        if self.comm.rank != 0:
            wait_for(isend_to(message, [0], self.comm))
            return None
        experts = {0: state}
        for replica in range(1, self.comm.size):
            with suppress(PeerLostError):
                experts[replica] = from_bytes(self.comm.recv_message(replica, len(message)).numpy().tobytes())
        assert self.setting.centres is not None, "the engine sets them"
        return state_of_experts(experts, self.setting.centres)

    def judged(self, replicas: int, make_model: Callable[[], nn.Module]) -> nn.Module:
        if replicas == 1:
            return make_model()
        assert self.setting.centres is not None, "the engine sets them"
        return Experts([make_model() for _ in range(replicas)], self.setting.centres.clone())

    def state_dict(self) -> State:
        return {**super().state_dict(), "expert": self.comm.rank}

    def load_state_dict(self, state: State) -> None:
        """Loads this replica's own state. A replica that was dead, and saved nothing, goes on from replica 0's weights
        with a new optimizer.
        """
        if state["expert"] == self.comm.rank:
            super().load_state_dict(state)

    def report(self) -> Measures:
        return {"lost": sorted(self.comm.lost())}

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers()


class Experts(nn.Module):
    """[n, ...] -> what the expert of the nearest centre makes of each sample, [n, ...]; of two as near, the first.

    An expert that is not `living` has weights of zeros, and answers nothing.
    """

    centres: Tensor  # [P, ...]
    living: Tensor  # bool [P]

    def __init__(self, experts: Sequence[nn.Module], centres: Tensor) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.register_buffer(CENTRES, centres)
        self.register_buffer(LIVING, torch.ones(len(experts), dtype=torch.bool))

    def nearest(self, x: Tensor) -> Tensor:
        """k = argmin_i |x - c_i|, int64 [n]."""
        # not by a product of matrices, which leaves little of the distance between two that are close
        far = torch.cdist(x.flatten(1), self.centres.flatten(1), compute_mode="donot_use_mm_for_euclid_dist")  # [n, P]
        return far.masked_fill(~self.living, torch.inf).argmin(1)

    def forward(self, x: Tensor) -> Tensor:
        k, rows, answers = self.nearest(x), list[Tensor](), list[Tensor]()
        for i in k.unique().tolist() or [0]:  # of no samples, the first one knows the answer's shape
            rows.append((k == i).nonzero().squeeze(1))
            answers.append(self.experts[i](x[rows[-1]]))
        return torch.cat(answers)[torch.cat(rows).argsort()]


def state_of_experts(experts: dict[int, dict[str, Tensor]], centres: Tensor) -> dict[str, Tensor]:
    """The state of an `Experts`, of those of its experts that live, by replica; replica 0 is one of them."""
    living = torch.tensor([replica in experts for replica in range(len(centres))])
    state = {CENTRES: centres, LIVING: living}
    for replica in range(len(centres)):
        own = experts.get(replica) or {name: torch.zeros_like(tensor) for name, tensor in experts[0].items()}
        state |= {f"experts.{replica}.{name}": tensor for name, tensor in own.items()}
    return state


def state_of_expert(state: Mapping[str, T], replica: int) -> dict[str, T]:
    """One expert's, of that of an `Experts`: tensors by name, or what is known of them."""
    prefix = f"experts.{replica}."
    return {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
