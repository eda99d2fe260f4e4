import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine.base import memory
from paceline.tasks.base import DataSpec, Split
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.alexnet import AlexNet
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.logistic_regression import LogisticRegression
from paceline.tasks.models.mlp import MLP
from paceline.tasks.models.resnet import ResNet
from paceline.tasks.models.vit import ViT

DIGITS = DataSpec((1, 8, 8), torch.float32, (), 10, 1437, 360)
FASHION = DataSpec((1, 28, 28), torch.float32, (), 10, 60_000, 10_000)
ODD = DataSpec((3, 9, 7), torch.float32, (), 4, None, None)
TEXT = DataSpec((12,), torch.int64, (12,), 256, None, None)

FITTING: list[tuple[Callable[[DataSpec], nn.Sequential], DataSpec]] = [
    (model, spec) for model in (LogisticRegression, MLP, CNN) for spec in (DIGITS, FASHION, ODD)
]
FITTING.append((GPT, TEXT))


def small_resnet(spec: DataSpec) -> ResNet:
    return ResNet(spec, depth=8, width=8, norm="group", groups=4)


def small_vit(spec: DataSpec) -> ViT:
    return ViT(spec, patch=2, width=32, n_layer=2)


def small_alexnet(spec: DataSpec) -> AlexNet:
    return AlexNet(spec, channels=(8, 8, 16, 16, 16), hidden=(32, 32), dropout=0.0)


FITTING += [(small_resnet, DIGITS), (small_resnet, ODD), (small_vit, DIGITS), (small_alexnet, ODD)]
fitting = pytest.mark.parametrize(
    ("model_class", "spec"), FITTING, ids=[f"{m.__name__}-{'x'.join(map(str, s.input_shape))}" for m, s in FITTING]
)

large_ones_slow = pytest.mark.parametrize(
    ("model_class", "spec"),
    [
        pytest.param(
            m, s, marks=[pytest.mark.slow] if m is GPT or s is FASHION else [], id=f"{m.__name__}-{s.input_shape}"
        )
        for m, s in FITTING
    ],
)


def batch(spec: DataSpec, n: int = 3) -> Split:
    inputs = torch.randn(n, *spec.input_shape)
    if spec.input_dtype == torch.int64:
        inputs = torch.randint(spec.classes, (n, *spec.input_shape))
    return Split(inputs, torch.randint(spec.classes, (n, *spec.target_shape)))


@fitting
def test_outputs_are_one_row_of_classes_a_target(model_class: Callable[..., nn.Sequential], spec: DataSpec) -> None:
    data = batch(spec)
    outputs = model_class(spec)(data.inputs)
    assert outputs.shape == (*data.targets.shape, spec.classes)
    assert outputs.isfinite().all()


@fitting
def test_shapes_on_the_meta_device_are_the_real_ones(model_class: Callable[..., nn.Sequential], spec: DataSpec) -> None:
    real = model_class(spec)
    with torch.device("meta"):
        meta = model_class(spec)
    x, on_meta = lone(batch(spec).samples), lone(batch(spec).samples).to("meta")
    for stage, meta_stage in zip(real, meta, strict=True):
        x, on_meta = stage(x), meta_stage(on_meta)
        assert isinstance(x, Tensor) and on_meta.is_meta and on_meta.shape == x.shape
    assert {n: p.shape for n, p in meta.state_dict().items()} == {n: p.shape for n, p in real.state_dict().items()}


@fitting
def test_cutting_between_any_two_children_leaves_the_outputs_as_they_are(
    model_class: Callable[..., nn.Sequential], spec: DataSpec
) -> None:
    model, inputs = model_class(spec), batch(spec).inputs
    children = list(model)
    for cut in range(1, len(children)):
        halves = nn.Sequential(*children[:cut]), nn.Sequential(*children[cut:])
        assert torch.equal(halves[1](halves[0](inputs)), model(inputs))


@fitting
def test_the_seed_of_torch_decides_the_initial_weights(
    model_class: Callable[..., nn.Sequential], spec: DataSpec
) -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(model_class(spec).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@large_ones_slow
def test_every_parameter_gets_a_gradient_and_a_small_batch_is_learnt(
    model_class: Callable[..., nn.Sequential], spec: DataSpec
) -> None:
    torch.manual_seed(0)
    model, data = model_class(spec), batch(spec, n=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model(data.inputs), data.targets)
        loss.backward()
        losses.append(loss.item())
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
    assert losses[-1] < 0.3 * losses[0]


@fitting
def test_samples_do_not_see_each_other(model_class: Callable[..., nn.Sequential], spec: DataSpec) -> None:
    model, inputs = model_class(spec), lone(batch(spec).samples)
    alone = torch.cat([model(sample) for sample in inputs.split(1)])
    torch.testing.assert_close(model(inputs), alone, rtol=1e-4, atol=1e-5)


def test_parameter_counts_are_the_textbook_ones() -> None:
    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    assert count(LogisticRegression(FASHION)) == 7_850
    assert count(MLP(FASHION, hidden=[300, 100])) == 266_610
    # conv 6*26 + 16*151, linear 784*120+120 + 120*84+84 + 84*10+10
    assert count(CNN(FASHION)) == 156 + 2_416 + 94_200 + 10_164 + 850
    # token, position; 12 w^2 + 13 w a block; the last norm; the head
    w = 32
    assert count(GPT(TEXT, n_layer=3, n_head=2, width=w)) == 268 * w + 3 * (12 * w**2 + 13 * w) + 2 * w + 256 * w
    # a quarter of the keys and values: (10 + 2/4) w^2 + (11 + 2/4) w a block
    quarter = count(GPT(TEXT, n_layer=3, n_head=8, n_kv_head=2, width=w))
    assert quarter == 268 * w + 3 * (10.5 * w**2 + 11.5 * w) + 2 * w + 256 * w


def test_a_tied_gpt_has_one_matrix_for_embedding_and_head_and_trains_it_from_both() -> None:
    torch.manual_seed(0)
    tied, untied, data = GPT(TEXT, tied=True), GPT(TEXT), batch(TEXT)
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 256 * 128
    untied.load_state_dict(tied.state_dict())
    assert torch.equal(tied(data.inputs), untied(data.inputs))
    for model in (tied, untied):
        cross_entropy(model(data.inputs), data.targets).backward()
    both = untied.get_parameter("embedding.token.weight").grad, untied.get_parameter("head.weight").grad
    assert both[0] is not None and both[1] is not None
    torch.testing.assert_close(tied.get_parameter("head.weight").grad, both[0] + both[1])


def test_a_gpt_with_more_vocabulary_and_context_than_the_data_learns_them() -> None:
    model, data = GPT(TEXT, vocabulary=300, context=20), batch(TEXT)
    assert model(data.inputs).shape == (3, 12, 300)
    assert model.get_parameter("embedding.position.weight").shape == (20, 128)
    cross_entropy(model(data.inputs), data.targets).backward()
    gradient = model.get_parameter("embedding.position.weight").grad
    assert gradient is not None and gradient[:12].abs().sum(1).min() > 0 and not gradient[12:].any()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_changes_no_bit_and_keeps_only_what_enters_a_block(dropout: float) -> None:
    torch.manual_seed(0)
    data = batch(TEXT)
    kept, again = GPT(TEXT, dropout=dropout), GPT(TEXT, dropout=dropout, recompute=True)
    again.load_state_dict(kept.state_dict())
    accounts = []
    for model in (kept, again):
        torch.manual_seed(1)
        with memory.activations() as account:
            cross_entropy(model(data.inputs), data.targets).backward()
        accounts.append(account.peak)
    for one, other in zip(kept.parameters(), again.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)
    entering = 3 * 12 * 128 * 4  # [n, t, width]
    assert 4 * entering < accounts[1] < accounts[0] / 3


def test_mlp_without_hidden_layers_is_logistic_regression() -> None:
    mlp, logistic = MLP(DIGITS, hidden=[]), LogisticRegression(DIGITS)
    mlp.load_state_dict(logistic.state_dict())
    inputs = batch(DIGITS).inputs
    assert torch.equal(mlp(inputs), logistic(inputs))


def test_gpt_does_not_look_ahead() -> None:
    model, tokens = GPT(TEXT), lone(batch(TEXT).samples)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_gpt_attention_is_softmax_of_scaled_products_head_by_head() -> None:
    attention = GPT(TEXT, n_head=2, width=8).get_submodule("block1.attention")
    x = torch.randn(2, 5, 8)
    qkv, projection = attention.get_submodule("qkv"), attention.get_submodule("project")
    assert isinstance(qkv, nn.Linear) and isinstance(projection, nn.Linear)
    heads = []
    for rows in qkv.weight.split(12):  # qkv's bias starts at zero
        q, k, v = (x @ part.T for part in rows.split(4))
        scores = q @ k.transpose(1, 2) / 4**0.5
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        heads.append(scores.softmax(-1) @ v)
    expected = torch.cat(heads, dim=-1) @ projection.weight.T
    torch.testing.assert_close(attention(x), expected, rtol=1e-4, atol=1e-6)


def test_gpt_starts_near_the_loss_of_a_uniform_guess() -> None:
    torch.manual_seed(0)
    data = batch(TEXT, n=16)
    loss = cross_entropy(GPT(TEXT)(data.inputs), data.targets).item()
    assert loss == pytest.approx(math.log(256), abs=0.15)


def test_gpt_begins_with_gpt_2s_deviations() -> None:
    torch.manual_seed(0)
    for name, parameter in GPT(TEXT, n_layer=8, width=128).named_parameters():
        if "norm" in name or name.endswith("bias"):
            assert (parameter == (0.0 if name.endswith("bias") else 1.0)).all(), name
        else:
            expected = 0.02 / math.sqrt(2 * 8) if "project" in name else 0.02
            assert float(parameter.detach().std()) == pytest.approx(expected, rel=0.05), name


def test_gpt_drops_out_in_training_only() -> None:
    model, tokens = GPT(TEXT, dropout=0.5), batch(TEXT).inputs
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: LogisticRegression(TEXT), "model=gpt"),
        (lambda: MLP(TEXT), "model=gpt"),
        (lambda: CNN(TEXT), "model=gpt"),
        (lambda: CNN(DataSpec((1, 3, 8), torch.float32, (), 10, None, None)), "4x4"),
        (lambda: CNN(DataSpec((64,), torch.float32, (), 10, None, None)), r"\[64\]"),
        (lambda: CNN(DIGITS, kernel=4), "model.kernel=4"),
        (lambda: AlexNet(TEXT), "model=gpt"),
        (lambda: ResNet(TEXT), "model=gpt"),
        (lambda: ResNet(DIGITS, depth=9), r"model.depth=9 is neither 6n \+ 2 nor 18. Choose 8 or 14\.$"),
        (lambda: ResNet(DIGITS, depth=19), "Choose 18 or 20"),
        (lambda: ResNet(DIGITS, depth=2), r"Choose 8\.$"),
        (lambda: ResNet(DIGITS, depth=18), "needs a side of more than 8 pixels.*Choose model.norm=group"),
        (
            lambda: ResNet(DIGITS, norm="group", groups=5),
            r"model.groups=5 does not divide model.width=16. Choose 4 or 8",
        ),
        (lambda: ViT(TEXT), "model=gpt"),
        (lambda: ViT(DIGITS, patch=3), r"model.patch=3 does not divide both sides of images of 8x8. Choose 2 or 4\.$"),
        (lambda: ViT(ODD, patch=2), r"model.patch=2 does not divide both sides of images of 9x7. Choose 1\.$"),
        (lambda: ViT(DIGITS, n_head=5), r"model.n_head=5 does not divide model.width=64. Choose 4 or 8"),
        (lambda: GPT(DIGITS), "data=text"),
        (lambda: GPT(TEXT, n_head=3, width=8), "model.n_head=3"),
        (
            lambda: GPT(TEXT, vocabulary=255),
            r"model\.vocabulary=255: these data have 256 tokens; .*data.vocabulary=255",
        ),
        (lambda: GPT(TEXT, context=11), r"model\.context=11: these data have 12 tokens a window; model.context=null"),
    ],
)
def test_a_model_that_does_not_fit_is_bad_configuration(build: Callable[[], nn.Module], names: str) -> None:
    with pytest.raises(ConfigError, match=names) as caught:
        build()
    assert caught.value.exit_code == 2


def test_labels_in_a_column_of_their_own_are_named() -> None:
    with pytest.raises(ConfigError, match=r"have the shape \[samples, 1\]\. Save them as \[samples\]"):
        MLP(replace(DIGITS, target_shape=(1,)))
    with pytest.raises(ConfigError, match=r"these data have \[3\]\. Choose model=gpt"):
        MLP(replace(DIGITS, target_shape=(3,)))
