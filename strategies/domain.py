"""Images cut into slabs of rows over workers that train on the same samples: domain parallelism.

Gholami, Azad, Jin, Keutzer, Buluc 2018, "Integrated Model, Batch, and Domain Parallelism in Training Neural Networks"
(SPAA, arXiv 1712.04432), section 2.3 and equation 7. Worker i of p has a slab of each image, and of each feature map
X, of height X_H, width X_W and X_C channels. A convolution whose kernel has k rows needs of each neighbour, for B
samples,

    B X_W X_C floor(k / 2)   numbers in forward, of X,   and as many in backward, of dX

(the halo); a kernel of one row needs none. Weights are whole on all workers. The gradient of each is the sum over
slabs,

    dW = sum_i dW_i,         by an all-reduce in backward, before replicas see it.

Equation 7 is for stride 1. Here an output row is on the worker that has the input row at the middle of what it reads
(domains/rows.py), which needs whatever else it reads of its neighbours, for any stride, padding and dilation. So each
height is dealt in one way, and maps of one height can be added and joined (skip connections). Normalisation is over
whole images (domains/norms.py). Where a layer needs the whole image (flatten, a global pooling) the slabs are
gathered, and all behind it is computed alike on all workers; in backward each goes on with the gradient of its own
rows, without a message. A model that gives predictions for pixels is not gathered: each worker has the loss of its own
rows.

With `batch_norm=all` batch norm is over the batches of all replicas, as torch's SyncBatchNorm has it: the statistics of
a replica's batch are joined with those of the others, in forward and in backward (domains/norms.py). That takes sync
modes in which all replicas take every step together.

Deviation from the paper: rows alone are cut, not columns, and fully connected layers are not cut.

Cost per step: those halos; for normalisation two numbers a statistic to each worker in forward, and a sum of as many
in backward; the maps that are gathered; an all-reduce of the gradients of the weights before the gathering, and of the
loss over pixels. With `batch_norm=all`, along the axis of the K replicas, for each batch norm of c channels: all_gather
(K-1) (2 c + 1) numbers in forward, and the collective's for a sum of 2 c numbers in backward.

Use it for large images with few samples, where activations fill the device: halos are small beside the maps. Models
that flatten early gather nearly all of it, and gain nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from ..batches import Fields, Samples, lone, of_each
from ..comm import Comm
from ..conf.errors import ConfigError
from ..exchange.collectives import Collective, Fabric
from ..exchange.collectives.base import added
from .core.batch import Batch, BeforeBackward, Pass
from .core.cost import Traffic
from .core.loss import Loss
from .core.mesh import Mesh
from .core.state import state_with
from .core.strategy import Strategy, StrategyTraits
from .core.trial import Trial
from .domains.cut import Cut, cut
from .domains.group import ROWS, SlabGroup
from .domains.replicas import ALL, across_of, check_norms


class DomainParallel(Strategy):
    """A replica is `degree` workers, each with a slab of every image."""

    traits = StrategyTraits(
        uncompiled="exchanges rows within the passes of layers",
        one_input="cuts the one image of each sample into slabs of rows",
        bitwise=False,  # sums over pixels come in another order
        waits_in_passes=True,
    )
    shares = True
    trial = Trial(model={"model": "cnn"})

    def __init__(
        self,
        degree: Annotated[int, Ge(2)] = 2,
        image: list[Annotated[int, Ge(1)]] | None = None,
        collective: Collective | None = None,
        batch_norm: Literal["replica", "all"] = "replica",
    ) -> None:
        """`image`: [channels, height, width] of a sample; None for that of the data. `collective`: of sums over
        slabs, and over replicas. `batch_norm`: over the batch of a replica, or over those of all.
        """
        self.mesh = Mesh({"domain": degree})
        self.image = image
        self.traits = replace(self.traits, across_replicas=ALL if batch_norm == "all" else "")
        self.collective = collective or Fabric()

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        inputs = lone(inputs)
        if inputs.dim() != 4 or not inputs.is_floating_point():
            raise ConfigError(
                f"strategy=domain cuts images [channels, height, width] by rows; a sample of these data is "
                f"{inputs.dtype} {list(inputs.shape[1:])}. Choose data=digits, fashion_mnist or disks, or "
                "strategy=data_parallel."
            )
        image = list(inputs.shape[1:])
        if self.image not in (None, image):
            raise ConfigError(
                f"strategy.image={self.image}: a sample of these data is an image {image}. Choose strategy.image=null."
            )
        found = self._cut_up(model, image)
        if found.rows is not None:
            _check_loss(found, targets, loss)
        if self.traits.across_replicas:
            check_norms(found.parts, [_slab(found, inputs, place) for place in range(self.parts)])
        return {"image": image}

    def split(self, model: nn.Module) -> list[nn.Module]:
        if self.image is None:
            raise ConfigError("strategy.image: needs the shape of a sample (Strategy.settled)")
        self._cut = self._cut_up(model, self.image)
        return self._cut.parts

    def _cut_up(self, model: nn.Module, image: Sequence[int]) -> Cut:
        return cut(model, image, self.parts, self.collective, bool(self.traits.across_replicas))

    def of_each_sample(self, part: int) -> str:
        deal = self._cut.deal
        return f"rows {deal[part]} to {deal[part + 1] - 1} of {deal[-1]}"

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module = self.split(model)[comm.rank]
        self._group = group_of(self.module)
        self._group.comm = comm
        self._across = across_of(self.module)
        if self._across is not None and self.setting.across is not None:
            self._across.join(self.setting.across)
        self._loss, self._comm, self._before_backward = loss, comm, before_backward

    def forward_backward(self, batch: Batch) -> Tensor | None:
        place = self._comm.rank
        if batch.size == 0:
            if self._across is not None and self._across.has_others:
                sample = lone(batch.inputs).new_zeros(1, *lone(batch.inputs).shape[1:])
                self._across.stand_in(self.module, _slab(self._cut, sample, place))
            return None
        outputs = self.module(_slab(self._cut, lone(batch.inputs), place))
        loss = self._loss_of(outputs, batch.targets, self._loss, place)
        self._before_backward([loss], True)
        loss.backward()
        whole = loss.detach()
        if self._cut.rows is not None:
            whole = self._group.sum(whole.clone(), "loss")
        return whole if place == self.loss_part else None

    def _loss_of(self, outputs: Tensor, targets: Samples, loss: Loss, place: int) -> Tensor:
        """The whole loss; of predictions for pixels this slab's share of it, of which the whole is the sum."""
        if self._cut.rows is None:
            return loss(outputs, targets)
        first, end = self._cut.outs[place : place + 2]
        axis = self._cut.rows
        rows = of_each(targets, lambda each: each.narrow(axis, first, end - first))
        # the mean over all pixels: sum_i (rows_i / rows) loss_i
        return loss(outputs, rows) * ((end - first) / self._cut.outs[-1])

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return state_with(self.module, parameters) if self._comm.rank == self.loss_part else None

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        images = lone(inputs)
        for place, part in enumerate(parts):

            def forward(place: int = place, part: nn.Module = part) -> Tensor:
                return self._loss_of(part(_slab(self._cut, images, place)), targets, loss, place)

            yield [Pass(forward)]

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        along = self.cost_along(parts, inputs)
        return [added(*(each[i] for each in along.values())) for i in range(self.parts)]

    def cost_along(self, parts: Sequence[nn.Module], inputs: Samples) -> Mapping[str, list[Traffic]]:
        """Counted in a rehearsal of a pass, of each part: those at the edges have one neighbour."""
        found, to_replicas = self._counted(parts, inputs)
        along = {"domain": [_nonzero(added(*each)) for each in found]}
        return along | ({"replica": [_nonzero(added(*each)) for each in to_replicas]} if to_replicas else {})

    def exchanges(self, parts: Sequence[nn.Module], inputs: Samples) -> list[list[Traffic]]:
        found, to_replicas = self._counted(parts, inputs)
        return [[*own, *across] for own, across in zip(found, to_replicas or [[] for _ in parts], strict=True)]

    def _counted(self, parts: Sequence[nn.Module], inputs: Samples) -> tuple[list[list[Traffic]], list[list[Traffic]]]:
        """Returns each message of each part: those to other workers of its replica, and those to other replicas."""
        found: list[list[Traffic]] = []
        to_replicas: list[list[Traffic]] = []
        for place, part in enumerate(parts):
            group, across = group_of(part), across_of(part)
            group.hosts = self.setting.hosts
            group.traffic()
            if across is not None and self.setting.worlds:
                across.estimate(self.setting.worlds[place])
            outputs = part(_slab(self._cut, lone(inputs), place))
            loss = outputs.sum()
            loss.backward()
            part.zero_grad()
            if self._cut.rows is not None:
                group.sum(loss.detach(), "loss")
            found.append([*group.sent])
            group.traffic()
            if across is not None:
                to_replicas.append([*across.group.sent])
                across.group.traffic()
        return found, to_replicas


def _nonzero(traffic: Traffic) -> Traffic:
    return {primitive: nbytes for primitive, nbytes in traffic.items() if nbytes}


def group_of(part: nn.Module) -> SlabGroup:
    its = (vars(layer).get("group") for layer in part.modules())
    return next(group for group in its if isinstance(group, SlabGroup) and group.degree > 1)


def _slab(its: Cut, images: Tensor, place: int) -> Tensor:
    first, end = its.deal[place : place + 2]
    return images.narrow(ROWS, first, end - first).contiguous()


def _check_loss(found: Cut, targets: Samples, loss: Loss) -> None:
    """Raises `ConfigError` unless the loss of up to three random rows of pixels is the mean of the rows' losses.

    Each slab takes the loss of its own rows, so that it must be a mean over predictions.
    """
    rows = found.rows
    assert rows is not None
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(1, *found.output, generator=generator).narrow(rows, 0, min(3, found.output[rows - 1]))
    weighs = isinstance(targets, Fields)
    y = targets.tensors["targets"] if weighs else targets
    shape = [1, *y.shape[1:]]
    shape[rows] = outputs.shape[rows]
    wanted: Samples
    if y.is_floating_point():
        wanted = torch.randn(shape, generator=generator, dtype=y.dtype)
    else:
        wanted = torch.randint(0, min(2, outputs.shape[-1]), shape, generator=generator)
    if weighs:
        wanted = Fields({"targets": wanted, "weights": torch.rand(shape, generator=generator)})
    whole = loss(outputs, wanted)

    def of_row(i: int) -> Tensor:
        return loss(outputs.narrow(rows, i, 1), of_each(wanted, lambda each: each.narrow(rows, i, 1)))

    if not torch.allclose(torch.stack([of_row(i) for i in range(outputs.shape[rows])]).mean(), whole, rtol=1e-4):
        raise ConfigError(
            "the loss over some rows of pixels is not the mean of the losses of each, so that slabs "
            "cannot have one each. Choose task=cross_entropy, or strategy=data_parallel.",
            about=("strategy",),
        )
