"""Heads that share keys and values: against repeated ones in plain torch, how weights are laid out, what is refused."""

import pytest
import torch
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.gpt import GPT, Attention

TEXT = DataSpec((12,), torch.int64, (12,), 256, None, None)
HEADS, HEAD_WIDTH = 4, 2
WIDTH = HEADS * HEAD_WIDTH


def in_plain_torch(attention: Attention, groups: int, x: Tensor, causal: bool) -> Tensor:
    """Projects queries, keys and values one by one, repeats the latter two, and takes the softmax by hand."""
    shared = HEADS // groups
    weights = attention.qkv.weight.split((shared + 2) * HEAD_WIDTH)
    biases = attention.qkv.bias.split((shared + 2) * HEAD_WIDTH)
    queries, keys, values = list[Tensor](), list[Tensor](), list[Tensor]()
    for weight, bias in zip(weights, biases, strict=True):
        of_group = [x @ w.T + b for w, b in zip(weight.split(HEAD_WIDTH), bias.split(HEAD_WIDTH), strict=True)]
        queries += of_group[:shared]
        keys += [of_group[shared]] * shared
        values += [of_group[shared + 1]] * shared
    mixed = []
    for q, k, v in zip(queries, keys, values, strict=True):
        scores = q @ k.transpose(1, 2) / HEAD_WIDTH**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf"))
        mixed.append(scores.softmax(-1) @ v)
    return torch.cat(mixed, dim=-1) @ attention.project.weight.T + attention.project.bias


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_is_that_with_repeated_keys_and_values(groups: int, causal: bool) -> None:
    torch.manual_seed(0)
    attention = Attention(WIDTH, HEADS, groups, dropout=0.0, causal=causal).double()
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    outputs = []
    for compute in (attention, lambda x: in_plain_torch(attention, groups, x, causal)):
        attention.zero_grad()
        outputs.append(compute(x))
        outputs[-1].square().sum().backward()
        outputs += [parameter.grad.clone() for parameter in attention.parameters() if parameter.grad is not None]
    ours, plain = outputs[:5], outputs[5:]
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("groups", "pieces"), [(4, 4), (4, 2), (2, 2)])
def test_even_pieces_of_rows_and_columns_add_up_to_the_whole(groups: int, pieces: int) -> None:
    """So attention can be cut by groups over workers: each has the rows of `qkv` and the columns of `project` alike."""
    torch.manual_seed(0)
    whole = Attention(WIDTH, HEADS, groups, dropout=0.0, causal=True).double()
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    total = whole.project.bias.detach().clone()
    for i in range(pieces):
        piece = Attention(WIDTH, HEADS, groups, dropout=0.0, causal=True).double()
        piece.qkv.weight = nn.Parameter(whole.qkv.weight.chunk(pieces)[i])
        piece.qkv.bias = nn.Parameter(whole.qkv.bias.chunk(pieces)[i])
        piece.project.weight = nn.Parameter(whole.project.weight.chunk(pieces, dim=1)[i])
        nn.init.zeros_(piece.project.bias)
        total = total + piece(x)
    torch.testing.assert_close(total, whole(x), rtol=1e-12, atol=1e-12)


def before_there_were_groups(w: int, layers: int) -> nn.Module:
    """GPT's layers as they were drawn then."""
    made: list[tuple[str, nn.Module]] = [
        ("embedding", nn.ModuleDict({"token": nn.Embedding(256, w), "position": nn.Embedding(12, w)}))
    ]
    for number in range(1, layers + 1):
        block = {
            "norm1": nn.LayerNorm(w),
            "attention": nn.ModuleDict({"qkv": nn.Linear(w, 3 * w), "project": nn.Linear(w, w)}),
            "norm2": nn.LayerNorm(w),
            "mlp": nn.ModuleDict({"expand": nn.Linear(w, 4 * w), "project": nn.Linear(4 * w, w)}),
        }
        made.append((f"block{number}", nn.ModuleDict(block)))
    made += [("norm", nn.LayerNorm(w)), ("head", nn.Linear(w, 256, bias=False))]
    model = nn.ModuleDict(dict(made))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" not in name:
            nn.init.normal_(parameter, std=0.02 * ((2 * layers) ** -0.5 if "project" in name else 1.0))
    return model


@pytest.mark.parametrize("n_kv_head", [None, 4])
def test_a_key_and_a_value_a_head_are_the_names_and_bits_of_before_there_were_groups(n_kv_head: int | None) -> None:
    """So runs of that time go on."""
    torch.manual_seed(0)
    then = before_there_were_groups(16, 2).state_dict()
    torch.manual_seed(0)
    now = GPT(TEXT, n_layer=2, width=16, n_kv_head=n_kv_head).state_dict()
    assert list(now) == list(then)
    assert all(torch.equal(now[name], then[name]) for name in then)


def test_a_gpt_with_shared_keys_and_values_learns() -> None:
    torch.manual_seed(0)
    model = GPT(TEXT, n_layer=1, n_head=4, width=16, n_kv_head=2)
    tokens, targets = torch.randint(256, (2, 4, 12)).unbind()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("n_head", "n_kv_head", "nearest"), [(12, 5, "4 or 6"), (4, 3, "2 or 4"), (8, 9, "8"), (7, 2, "1 or 7")]
)
def test_groups_that_do_not_divide_the_heads_are_refused_with_the_nearest(
    n_head: int, n_kv_head: int, nearest: str
) -> None:
    says = rf"model\.n_kv_head={n_kv_head} does not divide model\.n_head={n_head}. Choose {nearest}\.$"
    with pytest.raises(ConfigError, match=says):
        GPT(TEXT, width=n_head, n_head=n_head, n_kv_head=n_kv_head)
