"""The operators that are measured, each at several sizes: generic ones, of no particular model.

Inputs take turns among as many as fill `COLD` bytes, and so do results, so that they come from where a training step
finds them: not from the cache that the call before has left.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product as all_of
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...compat.kernels import attention, attention_backward, log_softmax, log_softmax_backward
from ...cost.kernels import Kernel

aten = torch.ops.aten
COLD, MOST = 2**24, 48  # bytes, and tensors
COLDEST, MANY = 2**26, 512  # likewise of what an optimizer steps: it was touched a whole step ago
STREAMED = (2**8, 2**12, 2**15, 2**18, 2**21)  # entries
QUICK = (2**8, 2**15)
WIDTH = 64  # of rows that are normalised
IMAGE = 256  # entries of a channel of an image that is pooled

# batches, m, n and k of products
SIDES = (16, 64, 256, 1024)
PRODUCTS = (
    *((1, m, n, k) for m, n, k in all_of(SIDES, SIDES, SIDES)),
    *((1, m, n, k) for m in (32, 128, 512, 2048) for n, k in ((10, 64), (64, 10), (128, 512), (512, 128), (128, 128))),
    *((1, n, m, k) for m in (128, 2048) for n, k in ((10, 64), (64, 64), (128, 512), (512, 128), (512, 512))),
    *((1, n, k, m) for m in (32, 2048, 8192) for n, k in ((10, 64), (64, 64), (256, 64), (128, 512), (512, 512))),
    *((1, *sizes) for m, n in ((128, 128), (128, 512), (1024, 1024)) for sizes in ((m, n, 4), (m, 4, n), (4, m, n))),
    *((1, m, n, k) for m, n, k in ((4096, 64, 64), (4096, 256, 64), (4096, 64, 256), (8192, 32, 32))),
    (16, 64, 64, 32),
    (64, 64, 64, 16),
    (64, 128, 128, 16),
)
# samples, channels in and out, places, and entries of the kernel
CONVOLUTIONS = tuple(
    (samples, *sizes)
    for samples in (8, 32, 128)
    for sizes in (
        (1, 8, 32 * 32, 9),
        (1, 24, 24 * 24, 25),
        (3, 64, 16 * 16, 9),
        (8, 8, 32 * 32, 9),
        (16, 24, 24 * 24, 9),
        (24, 24, 24 * 24, 25),
        (16, 48, 16 * 16, 9),
        (32, 32, 16 * 16, 9),
        (48, 96, 12 * 12, 9),
        (64, 64, 8 * 8, 9),
        (96, 96, 12 * 12, 9),
        (64, 128, 8 * 8, 9),
        (128, 128, 8 * 8, 9),
        (128, 128, 4 * 4, 9),
        (256, 256, 4 * 4, 9),
        (48, 96, 8 * 8, 1),
        (16, 8, 32 * 32, 1),
        (3, 48, 8 * 8, 49),
    )
)
ATTENTION = tuple(
    (heads, tokens, tokens, width)
    for tokens in (16, 48, 96, 256)
    for heads, width in ((32, 8), (32, 32), (128, 16), (256, 64))
    if heads * tokens * tokens < 2**23
)


@dataclass(frozen=True)
class KernelCase:
    """A kernel, and how to make a call of it: its tensors take memory only while that is wanted."""

    kernel: Kernel
    make: Callable[[], Callable[[int], object]]


def cases(quick: bool = False) -> Iterator[KernelCase]:
    """The same in each pass."""
    for sizes in PRODUCTS[::24] if quick else PRODUCTS:
        yield _product(*sizes, torch.float32)
    for sizes in PRODUCTS[13:14] if quick else PRODUCTS[:64:5]:
        yield _product(*sizes, torch.bfloat16)
    for sizes in CONVOLUTIONS[3:36:16] if quick else CONVOLUTIONS:
        yield from _convolution(*sizes)
    for sizes in ATTENTION[:2] if quick else ATTENTION:
        yield from _attention(*sizes)
    for name, make in STREAMING.items():
        for entries in QUICK if quick else STREAMED:
            yield KernelCase(Kernel(name, (float(entries),)), partial(make, entries))


def turns(make: Callable[[], Tensor], together: int = COLD) -> list[Tensor]:
    first = make()
    held = first.numel() * first.element_size()
    most = MOST if together == COLD else MANY
    return [first, *(first.clone() for _ in range(min(most, together // max(held, 1)) - 1))]


def kept(call: Callable[[int], object]) -> Callable[[int], object]:
    """The same, with what it gave the last times still held: or each call would write where the one before it did."""
    first = call(0)
    made = [each for each in (first if isinstance(first, tuple | list) else [first]) if isinstance(each, Tensor)]
    room = COLD // max(sum(each.numel() * each.element_size() for each in made), 1)
    results = deque[object](maxlen=max(1, min(MOST, room)))
    return lambda i: results.append(call(i))


def _product(batch: int, m: int, n: int, k: int, dtype: torch.dtype) -> KernelCase:
    """Forward, and both products of backward, in turn."""
    shape = (batch,) if batch > 1 else ()

    def make() -> Callable[[int], object]:
        xs, ws, left, right = (
            turns(lambda rows=rows, columns=columns: torch.randn(*shape, rows, columns, dtype=dtype))
            for rows, columns in ((m, k), (n, k), (k, m), (k, n))
        )
        forms: tuple[Callable[[int], Tensor], ...] = (
            lambda i: xs[i % len(xs)] @ ws[i % len(ws)].mT,
            lambda i: xs[i % len(xs)] @ right[i % len(right)],
            lambda i: left[i % len(left)].mT @ right[i % len(right)],
        )
        return lambda i: forms[i % 3](i)

    table = "product" if dtype is torch.float32 else "product_bfloat16"
    return KernelCase(Kernel(table, (float(batch), float(m), float(n), float(k)), 2.0 * batch * m * n * k), make)


def _convolution(samples: int, entering: int, leaving: int, places: int, entries: int) -> Iterator[KernelCase]:
    side, width = round(places**0.5), round(entries**0.5)
    sizes = (float(samples), float(entering), float(leaving), float(places), float(entries))
    flops = 2.0 * samples * entering * leaving * places * entries

    def inputs() -> list[Tensor]:
        return turns(lambda: torch.randn(samples, entering, side, side))

    def forward() -> Callable[[int], object]:
        xs, weight, bias = inputs(), torch.randn(leaving, entering, width, width), torch.randn(leaving)
        return lambda i: F.conv2d(xs[i % len(xs)], weight, bias, padding=width // 2)

    def backward(to_input: bool) -> Callable[[int], object]:
        xs, weight = inputs(), torch.randn(leaving, entering, width, width)
        gs = turns(lambda: torch.randn(samples, leaving, side, side))
        padding, wanted = [width // 2, width // 2], [to_input, True, True]

        def call(i: int) -> object:
            g, x = gs[i % len(gs)], xs[i % len(xs)]
            return aten.convolution_backward(g, x, weight, [leaving], [1, 1], padding, [1, 1], False, [0, 0], 1, wanted)

        return call

    yield KernelCase(Kernel("convolution", sizes, flops), forward)
    yield KernelCase(Kernel("convolution_backward", sizes, 2 * flops), partial(backward, True))
    yield KernelCase(Kernel("convolution_to_weights", sizes, flops), partial(backward, False))


def _attention(heads: int, tokens: int, keys: int, width: int) -> Iterator[KernelCase]:
    sizes = (float(heads), float(tokens), float(keys), float(width))
    flops = 4.0 * heads * tokens * keys * width

    def queries() -> list[Tensor]:
        return turns(lambda: torch.randn(heads // 4, 4, tokens, width))

    def forward() -> Callable[[int], object]:
        qs = queries()
        return lambda i: attention(qs[i % len(qs)])

    def backward() -> Callable[[int], object]:
        qs = queries()
        out, sums = attention(qs[0])
        return lambda i: attention_backward(out, qs[i % len(qs)], out, sums)

    yield KernelCase(Kernel("attention", sizes, flops), forward)
    yield KernelCase(Kernel("attention_backward", sizes, 2.5 * flops), backward)


# -- operators that stream: `entries` of their largest tensor -> a call

Streaming = Callable[[int], Callable[[int], object]]


def _of(function: Callable[[Tensor], object], together: int = COLD) -> Streaming:
    def make(entries: int) -> Callable[[int], object]:
        xs = turns(lambda: torch.rand(entries), together)
        return lambda i: function(xs[i % len(xs)])

    return make


def _of_two(function: Callable[[Tensor, Tensor], object], together: int = COLD) -> Streaming:
    def make(entries: int) -> Callable[[int], object]:
        xs = turns(lambda: torch.rand(entries), together)
        return lambda i: function(xs[i % len(xs)], xs[(i + len(xs) // 2) % len(xs)])

    return make


def _of_rows(function: Callable[[Tensor], Any], width: int = WIDTH) -> Streaming:
    def make(entries: int) -> Callable[[int], object]:
        xs = turns(lambda: torch.randn(entries // width, width))
        return lambda i: function(xs[i % len(xs)])

    return make


def _layer_norm_backward(entries: int) -> Callable[[int], object]:
    xs = turns(lambda: torch.randn(entries // WIDTH, WIDTH))
    weight, bias = torch.ones(WIDTH), torch.zeros(WIDTH)
    _, mean, scale = aten.native_layer_norm(xs[0], [WIDTH], weight, bias, 1e-5)

    def call(i: int) -> object:
        x, gradient = xs[i % len(xs)], xs[(i + len(xs) // 2) % len(xs)]
        return aten.native_layer_norm_backward(gradient, x, [WIDTH], mean, scale, weight, bias, [True, True, True])

    return call


def _images(entries: int) -> list[Tensor]:
    channels = max(1, min(32, entries // IMAGE))
    return turns(lambda: torch.randn(max(1, entries // IMAGE // channels), channels, 16, 16))


def _batch_norm(entries: int) -> Callable[[int], object]:
    xs = _images(entries)
    told = [torch.ones(xs[0].shape[1]) for _ in range(4)]
    return lambda i: aten.native_batch_norm(xs[i % len(xs)], *told, True, 0.1, 1e-5)


def _batch_norm_backward(entries: int) -> Callable[[int], object]:
    xs = _images(entries)
    told = [torch.ones(xs[0].shape[1]) for _ in range(5)]

    def call(i: int) -> object:
        x, gradient = xs[i % len(xs)], xs[(i + len(xs) // 2) % len(xs)]
        return aten.native_batch_norm_backward(gradient, x, *told, True, 1e-5, [True, True, True])

    return call


def _max_pool(entries: int) -> Callable[[int], object]:
    xs = _images(entries)
    return lambda i: aten.max_pool2d_with_indices(xs[i % len(xs)], [2, 2], [2, 2])


def _max_pool_backward(entries: int) -> Callable[[int], object]:
    xs = _images(entries)
    out, at = aten.max_pool2d_with_indices(xs[0], [2, 2], [2, 2])
    backward = aten.max_pool2d_with_indices_backward
    return lambda i: backward(out, xs[i % len(xs)], [2, 2], [2, 2], [0, 0], [1, 1], False, at)


def _rows(entries: int) -> tuple[Tensor, Tensor]:
    """A table of 4 MB, or of what is looked up, and which rows."""
    rows = max(entries // WIDTH, 1)
    return torch.randn(max(rows, 2**14), WIDTH), torch.randint(max(rows, 2**14), (rows,))


def _embedding(entries: int) -> Callable[[int], object]:
    table, rows = _rows(entries)
    return lambda i: aten.embedding(table, rows)


def _embedding_backward(entries: int) -> Callable[[int], object]:
    rows = max(entries // WIDTH, 1)
    gradient, looked_up = torch.randn(rows, WIDTH), torch.randint(rows, (rows,))
    return lambda i: aten.embedding_dense_backward(gradient, looked_up, rows, -1, False)


def _index(entries: int) -> Callable[[int], object]:
    table, rows = _rows(entries)
    return lambda i: table[rows]


def _nll(entries: int) -> Callable[[int], object]:
    xs, labels = turns(lambda: torch.randn(entries // WIDTH, WIDTH)), torch.zeros(entries // WIDTH, dtype=torch.long)
    return lambda i: aten.nll_loss_forward(xs[i % len(xs)], labels, None, 1, -100)


def _nll_backward(entries: int) -> Callable[[int], object]:
    x, labels = torch.randn(entries // WIDTH, WIDTH), torch.zeros(entries // WIDTH, dtype=torch.long)
    loss, weight = aten.nll_loss_forward(x, labels, None, 1, -100)
    return lambda i: aten.nll_loss_backward(loss, x, labels, None, 1, -100, weight)


def _adam(entries: int) -> Callable[[int], object]:
    optimizers: list[torch.optim.Adam] = []
    for _ in turns(lambda: torch.empty(4 * entries), COLDEST):  # a weight, its gradient, both moments
        parameter = torch.nn.Parameter(torch.randn(entries))
        parameter.grad = torch.randn(entries)
        optimizers.append(torch.optim.Adam([parameter], fused=True))
        optimizers[-1].step()  # makes its moments
    return lambda i: optimizers[i % len(optimizers)].step()


STREAMING: dict[str, Streaming] = {
    "mul": _of_two(lambda x, y: x * y),
    "add": _of_two(lambda x, y: x + y),
    "mul_": _of(lambda x: x.mul_(0.999), COLDEST),
    "add_": _of_two(lambda x, y: x.add_(y, alpha=1e-6), COLDEST),
    "copy_": _of_two(lambda x, y: x.copy_(y)),
    "relu": _of(F.relu),
    "threshold_backward": _of_two(lambda x, y: aten.threshold_backward(x, y, 0)),
    "gelu": _of(F.gelu),
    "gelu_backward": _of_two(lambda x, y: aten.gelu_backward(x, y)),
    "exp": _of(torch.exp),
    "cat": _of(lambda x: torch.cat([x[: len(x) // 2], x[len(x) // 2 :]])),
    "transposed": _of_rows(lambda x: x.t().contiguous()),
    "sum": _of_rows(lambda x: x.sum(0)),
    "mean": _of(torch.mean),
    "aminmax": _of(lambda x: x[: len(x) // 4 * 4].view(4, -1).aminmax(dim=1)),  # of four rows
    "native_layer_norm": _of_rows(
        lambda x: aten.native_layer_norm(x, [WIDTH], torch.ones(WIDTH), torch.zeros(WIDTH), 1e-5)
    ),
    "native_layer_norm_backward": _layer_norm_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
    "upsample_nearest2d": lambda entries: (
        lambda xs: lambda i: aten.upsample_nearest2d(xs[i % len(xs)], [32, 32], None, None)
    )(_images(max(entries // 4, IMAGE))),
    "_log_softmax": _of_rows(log_softmax),
    "_log_softmax_backward_data": _of_rows(lambda x: log_softmax_backward(x, x)),
    "nll_loss_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index": _index,
    "bernoulli_": _of(lambda x: x.bernoulli_(0.5)),
    "topk": _of(lambda x: x.abs().topk(max(1, len(x) // 100))),
    "sort": _of(lambda x: x[: len(x) // 4 * 4].view(4, -1).sort(dim=0)),  # entries of four rows, as a median does
    "adam": _adam,
}
