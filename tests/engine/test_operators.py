"""The operators of a pass, and their flops beside torch's own count."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.cost.kernels import VIEW, Kernel
from paceline.engine.base.operators import recorded, trace
from paceline.tasks.base import DataSpec
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.gpt import GPT

IMAGES = DataSpec((1, 28, 28), torch.float32, (), 10, 64, 16)
TEXT = DataSpec((16,), torch.int64, (16,), 64, 64, 16)


def on_meta(model: nn.Module) -> nn.Module:
    return model.to("meta")


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (CNN(IMAGES), torch.empty(4, 1, 28, 28, device="meta")),
        (GPT(TEXT, n_layer=1, n_head=2, width=16), torch.empty(4, 16, dtype=torch.int64, device="meta")),
        (
            GPT(TEXT, n_layer=1, n_head=2, width=16, ffn_width=24, gated=True, rms_norm=True, rotary=1e4),
            torch.empty(4, 16, dtype=torch.int64, device="meta"),
        ),
    ],
    ids=["cnn", "gpt", "llama"],
)
def test_flops_are_those_that_torch_counts(model: nn.Module, inputs: Tensor) -> None:
    model = on_meta(model)
    traced = trace(lambda: model(inputs).sum())
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    assert traced.flops == counter.get_total_flops() > 0


def test_each_operator_is_known_by_its_table_and_sizes() -> None:
    x = torch.empty(8, 3, 10, 10, device="meta")
    weight = torch.empty(5, 3, 3, 3, device="meta", requires_grad=True)
    traced = trace(lambda: F.relu(F.conv2d(x, weight)).sum())
    sizes = (8.0, 3.0, 5.0, 64.0, 9.0)
    flops = 2.0 * 8 * 3 * 5 * 64 * 9
    assert traced.forward[:2] == (Kernel("convolution", sizes, flops), Kernel("relu", (8 * 5 * 64.0,)))
    assert Kernel("convolution_to_weights", sizes, flops) in traced.backward
    assert all(kernel.table != "convolution_backward" for kernel in traced.backward)


def test_products_have_their_batch_and_views_take_no_kernel() -> None:
    a, b = torch.empty(6, 4, 8, device="meta"), torch.empty(6, 2, 8, device="meta")
    kernels = recorded(lambda: torch.bmm(a, b.transpose(1, 2)))
    assert kernels == (Kernel(VIEW, (1.0,)), Kernel("product", (6.0, 4.0, 2.0, 8.0), 2.0 * 6 * 4 * 2 * 8))
    half = torch.empty(4, 4, device="meta", dtype=torch.bfloat16)
    assert recorded(lambda: half @ half)[0].table == "product_bfloat16"


def test_of_a_look_up_only_what_is_read_counts() -> None:
    table, rows = torch.empty(1000, 16, device="meta"), torch.empty(5, dtype=torch.int64, device="meta")
    assert recorded(lambda: F.embedding(rows, table)) == (Kernel("embedding", (80.0,)),)


def test_without_parameters_there_is_no_backward_pass() -> None:
    assert trace(lambda: torch.empty(3, device="meta").sum()).backward == ()
