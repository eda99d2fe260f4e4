"""How far replicas are from their mean, against the definition."""

import pytest
import torch
from torch import Tensor

from paceline.comm import Comm
from paceline.engine.fabrics.layout import RunLayout
from paceline.engine.training import spread
from paceline.engine.training.spread import consensus_distance, pieces
from paceline.strategies.core.mesh import Mesh

STAGES = RunLayout(Mesh({"replica": 3, "stage": 2}), servers=0, loss_part=1)


def weights_of(replica: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(replica)
    return [torch.randn(50, 100, generator=generator), torch.randn(7, generator=generator)]


def distance(comm: Comm) -> float | None:
    replica, part = divmod(comm.rank, 2)
    if part != STAGES.loss_part:
        return None
    return consensus_distance(weights_of(replica), replica, range(1, 3), STAGES, comm)


def test_it_is_the_root_of_the_mean_square_distance_from_the_mean_on_the_chief_alone(
    virtual_workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = torch.stack([torch.cat([w.double().flatten() for w in weights_of(replica)]) for replica in range(3)])
    expected = (flat - flat.mean(0)).square().sum(1).mean().sqrt().item()
    for at_once in (2**20, 0):  # whole models, and pieces of 4,096 entries
        monkeypatch.setattr(spread, "_AT_ONCE", at_once)
        found = virtual_workers(6, distance)
        assert found[STAGES.chief] == pytest.approx(expected, rel=1e-12)
        assert [each for rank, each in enumerate(found) if rank != STAGES.chief] == [None] * 5


def test_pieces_are_the_entries_in_their_order() -> None:
    tensors = [torch.arange(5.0).reshape(5, 1), torch.arange(5.0, 6.0), torch.arange(6.0, 17.0)]
    for entries in (1, 3, 4, 16, 17, 100):
        found = list(pieces(tensors, entries))
        assert torch.equal(torch.cat(found), torch.arange(17.0, dtype=torch.float64))
        assert all(len(piece) == entries for piece in found[:-1])
