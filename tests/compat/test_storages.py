"""What is read of torch's storages."""

import torch
from torch import nn

from paceline.compat.storages import base_of, parts_of_sparse, storage_key, unseen_writes, version_of


def test_views_share_a_key_and_others_do_not() -> None:
    tensor, other = torch.zeros(4), torch.zeros(4)
    assert storage_key(tensor) == storage_key(tensor[1:].view(3, 1)) == storage_key(tensor.detach()), (
        "torch no longer gives the views of one storage one key: memory is counted twice, or activations are lost"
    )
    assert storage_key(tensor) != storage_key(other), "torch gives two living storages one key: memory is not counted"


def test_a_write_in_place_is_seen_through_every_view() -> None:
    tensor = nn.Parameter(torch.zeros(4)).detach()
    before = version_of(tensor[:2])
    tensor.add_(1)
    assert version_of(tensor[2:]) == before + 1, (
        "torch no longer counts writes in place: strategy=offload cannot tell that a saved activation was overwritten"
    )


def test_a_view_of_a_parameter_leads_to_it() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    assert base_of(parameter[1:]) is parameter is base_of(parameter), (
        "torch no longer says what a view is of: parameters are counted among activations"
    )


def test_a_weight_can_be_exchanged_and_updated_between_its_forward_and_its_backward_pass() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    x = torch.tensor([3.0], requires_grad=True)
    output, read = weight * x, weight.data
    weight.data = weight.data.clone()
    with unseen_writes([weight]):
        weight.data.copy_(torch.tensor([5.0]))
        torch.optim.SGD([weight], lr=1.0).step()
    weight.data = read
    output.backward()
    assert x.grad is not None and x.grad.item() == 2, (
        "torch no longer lets writes go unseen: strategy.schedule=pipedream cannot go backward with older weights"
    )


def test_parts_of_a_sparse_tensor_are_not_summed() -> None:
    indices, values = parts_of_sparse(
        torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([[1.0], [2.0]]), (3, 1), check_invariants=True)
    )
    assert (indices.tolist(), values.tolist()) == ([[1, 1]], [[1.0], [2.0]])
