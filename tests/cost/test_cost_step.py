"""A step's time by its parts: what each degree does to it, and closed forms where there are some."""

from dataclasses import asdict, replace

import pytest

from paceline.cost.device import Device, Efficiency, product, streamed
from paceline.cost.devices import DEVICES
from paceline.cost.layout import ParallelLayout
from paceline.cost.links import Link, Links
from paceline.cost.rules import CostError
from paceline.cost.step import Cluster, PassBreakdown, beside, head_passes, layer_passes, step_time
from paceline.cost.transformer import Factors, Transformer, products, streamed_entries

OF = Transformer(layers=8, width=2048, heads=16, context=1024, vocabulary=51200)
DEVICE = Device("some", {"float16": 3e14}, 2e12, 108)
CLUSTER = Cluster(DEVICE, Links(Link(5e-5, 2e11), Link(6e-5, 1e11), 8))
FITS = Efficiency()
FREE = replace(FITS, launch=0.0, collective=0.0, step=0.0, send=0.0)  # of the host's time
ONE = ParallelLayout(batch=16, micro_batch=4)


def test_parts_add_up_to_the_step() -> None:
    step = step_time(OF, replace(ONE, batch=64, data=2, stages=2, tensor=2), CLUSTER, FITS)
    assert sum(asdict(step).values()) == step.total
    assert all(seconds >= 0 for seconds in asdict(step).values())


def test_one_device_has_no_communication_and_no_bubble() -> None:
    step = step_time(OF, ONE, CLUSTER, FREE)
    each = layer_passes(OF, ONE, CLUSTER, FREE) * OF.layers + head_passes(OF, ONE, CLUSTER, FREE)
    assert step.tensor == step.bubble == step.data == step.shards == step.offload == step.host == 0
    assert step.compute == pytest.approx(4 * each.compute)


def test_full_recomputation_is_a_third_more_of_the_layers_and_none_of_the_head() -> None:
    plain, full = (layer_passes(OF, replace(ONE, recompute=kind), CLUSTER, FREE) for kind in ("none", "full"))
    assert full.compute == pytest.approx(4 / 3 * plain.compute)
    assert head_passes(OF, replace(ONE, recompute="full"), CLUSTER, FREE) == head_passes(OF, ONE, CLUSTER, FREE)


def test_frozen_matrices_need_no_gradient_and_their_factors_alone_are_summed_and_stepped() -> None:
    """Backward is once forward, and not twice, where factors are thin (Hu et al. 2021, 4.2)."""
    wide = replace(OF, width=16384, context=64, heads=64, layers=2)
    thin = replace(wide, factors=Factors(rank=1, narrow=True))
    layout = replace(ONE, batch=512, micro_batch=256, data=1, fused=True)
    all_of_it, frozen = (layer_passes(of, layout, CLUSTER, FREE).compute for of in (wide, thin))
    assert frozen / all_of_it == pytest.approx(2 / 3, rel=0.05)
    of = replace(OF, factors=Factors(rank=8, narrow=True))
    sides = 2048 + 3 * 2048 + 2 * 2048 + 2 * (2048 + 8192)
    assert of.factor_entries() == 8 * (8 * sides + 2048 + 51200)
    several = replace(ONE, data=4)
    plain, adapted = (step_time(each, several, CLUSTER, FREE) for each in (OF, of))
    assert adapted.data < plain.data / 10 and adapted.optimizer < plain.optimizer / 10
    assert of.pass_flops(2, recomputed=False) == pytest.approx(2 / 3 * OF.pass_flops(2, recomputed=False))


def test_frozen_matrices_are_rounded_in_each_pass_unless_they_are_held_so() -> None:
    casts = replace(ONE, dtype="float16", kept="float32")
    narrow, wide = (
        step_time(replace(OF, factors=Factors(8, narrow)), casts, CLUSTER, FREE).compute for narrow in (True, False)
    )
    entries = OF.layers * OF.layer_entries() + OF.vocabulary * OF.width
    assert wide - narrow == pytest.approx(casts.micro_batches * streamed(DEVICE, FREE, 6 * entries))


def test_factors_beside_the_queries_alone_cost_less_than_beside_all() -> None:
    every, few = (replace(OF, factors=Factors(64, narrow=True, only_queries=each)) for each in (False, True))
    assert few.factor_entries() == 64 * OF.layers * (OF.width + 3 * OF.width)
    frozen, all_of_it, queries = (
        layer_passes(of, replace(ONE, fused=True), CLUSTER, FREE).compute
        for of in (replace(OF, factors=Factors(1, narrow=True, only_queries=True)), every, few)
    )
    assert frozen < queries < all_of_it


def test_a_share_of_the_layers_is_recomputed_in_its_share_of_the_time() -> None:
    none, some, every = (
        layer_passes(OF, layout, CLUSTER, FITS).total
        for layout in (ONE, replace(ONE, recompute="full", recomputed=0.25), replace(ONE, recompute="full"))
    )
    assert some - none == pytest.approx((every - none) / 4)
    with pytest.raises(CostError, match="recomputed=0: it is a share"):
        replace(ONE, recomputed=0)


def test_operators_that_are_recomputed_are_half_of_the_products_and_all_that_streams() -> None:
    layout = replace(ONE, fused=True)
    none, operators = (
        layer_passes(OF, replace(layout, recompute=kind), CLUSTER, FREE) for kind in ("none", "operators")
    )
    linear = sum(
        product(DEVICE, FREE, "float16", each.m, each.n, each.k)
        for each in products(OF, 4, fused=True)
        if not each.of_scores
    )
    moved = streamed(DEVICE, FREE, 2 * streamed_entries(OF, 4))
    assert operators.compute - none.compute == pytest.approx(linear / 2 + moved)


def test_the_level_of_the_kernels_is_of_everything_that_computes() -> None:
    for layout in (ONE, replace(ONE, fused=True)):
        one, two = (layer_passes(OF, layout, CLUSTER, replace(FREE, ramp=0.0, level=n)).compute for n in (1.0, 2.0))
        assert two == pytest.approx(2 * one)


def test_a_norm_of_several_kernels_and_a_second_sort_of_tokens_stream_more() -> None:
    assert streamed_entries(OF, 4, norm=20) - streamed_entries(OF, 4) == 2 * 18 * 4 * OF.context * OF.width
    assert streamed_entries(MIXTURE, 4, experts=4) - streamed_entries(MIXTURE, 4) == 4 * 2 * 4 * OF.context * OF.width
    assert streamed_entries(OF, 4, experts=4) == streamed_entries(OF, 4)


def test_kernels_that_are_not_fused_stream_more() -> None:
    """A residual's of two a layer, an activation function's of the inner width, softmax's of each score."""
    fused, apart = (
        layer_passes(OF, ONE, CLUSTER, each).compute
        for each in (FREE, replace(FREE, residual=7, activation=4, scores=6))
    )
    tokens = 4 * OF.context
    more = tokens * (2 * 4 * OF.width + 2 * 4 * OF.width + 2 * OF.heads * OF.context)
    assert apart - fused == pytest.approx(3 * streamed(DEVICE, FREE, 2 * more))


def test_all_but_products_is_computed_once_more() -> None:
    """The products of attention in one kernel are recomputed too: JAX's checkpoint_dots_with_no_batch_dims."""
    plain, others = (
        layer_passes(OF, replace(ONE, fused=True, recompute=each), CLUSTER, FREE).compute for each in ("none", "others")
    )
    attention = sum(each.flops for each in products(OF, 4, fused=True) if each.of_scores) / DEVICE.peak["float16"]
    moved = streamed(DEVICE, FREE, 2 * streamed_entries(OF, 4))
    assert others - plain == pytest.approx(attention / FREE.attention + moved)
    unfused = [
        layer_passes(OF, replace(ONE, recompute=each), CLUSTER, FREE).compute for each in ("selective", "others")
    ]
    assert unfused[1] - unfused[0] == pytest.approx(moved)


def test_selective_recomputation_lies_between() -> None:
    none, selective, full = (
        layer_passes(OF, replace(ONE, recompute=kind), CLUSTER, FREE).total for kind in ("none", "selective", "full")
    )
    assert none < selective < full
    fused = [
        layer_passes(OF, replace(ONE, recompute=kind, fused=True), CLUSTER, FREE) for kind in ("none", "selective")
    ]
    assert fused[0] == fused[1]  # such a kernel does so anyway


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(2, 8, 1), (4, 16, 1), (4, 8, 2), (8, 32, 1)])
def test_the_bubble_is_that_of_its_formula(stages: int, micro_batches: int, chunks: int) -> None:
    """(p-1) / (v m) of the ideal time, where messages take none and the head is empty (Narayanan et al. 2021, 2.2)."""
    of = replace(OF, vocabulary=1)
    quick = replace(CLUSTER, links=Links(Link(0.0, 1e30), Link(0.0, 1e30), 8))
    layout = ParallelLayout(batch=micro_batches, micro_batch=1, stages=stages, chunks=chunks)
    step = step_time(of, layout, quick, FREE)
    stage = layer_passes(of, layout, quick, FREE) * (of.layers // stages)
    assert step.bubble / (micro_batches * stage.total) == pytest.approx((stages - 1) / (chunks * micro_batches))


def test_small_layers_take_what_the_host_takes_to_launch_them() -> None:
    tiny = Transformer(4, 64, 4, 32, 100)
    layout = ParallelLayout(batch=1, micro_batch=1)
    layer = layer_passes(tiny, layout, CLUSTER, FITS)
    assert layer.total == pytest.approx((22 + 40) * FITS.launch)
    assert layer_passes(OF, replace(ONE, micro_batch=16), CLUSTER, FITS).waiting == 0


def test_tensor_parallel_sums_four_times_a_layer_and_six_with_recomputation() -> None:
    layout = replace(ONE, tensor=4)
    once = CLUSTER.links.all_reduce(2 * 4 * OF.context * OF.width, 4, 1)
    assert layer_passes(OF, layout, CLUSTER, FREE).tensor == pytest.approx(4 * once)
    assert layer_passes(OF, replace(layout, recompute="full"), CLUSTER, FREE).tensor == pytest.approx(6 * once)


@pytest.mark.parametrize("bandwidth", [1e9, 1e14])
def test_sums_that_go_piece_by_piece_expose_the_last_piece_and_what_is_longer_than_the_products(
    bandwidth: float,
) -> None:
    """The scatter, half of a sum, has nothing beside its last piece of 4 (Wang et al. 2023)."""
    links = Links(Link(0.0, bandwidth), Link(0.0, bandwidth), 8)
    layout = replace(ONE, tensor=4, hides_sums=True, dtype="float16")
    once = 2 * links.all_reduce(2 * 4 * OF.context * OF.width, 4, 1)
    linear = sum(
        product(DEVICE, FREE, "float16", each.m, each.n, each.k)
        for each in products(OF, 4, tensor=4)
        if not each.of_scores
    )
    found = layer_passes(OF, layout, replace(CLUSTER, links=links), FREE).tensor
    hidden = 7 / 8 * once
    expected = sum(once / 8 + beside(hidden, passes * linear, FREE) - passes * linear for passes in (1, 2))
    assert found == pytest.approx(expected)
    assert (found < once) == (bandwidth > 1e9)


MIXTURE = replace(OF, experts=16, active=2, inner=1024)


def test_the_host_launches_the_products_of_each_expert_unless_they_are_one_kernel() -> None:
    tiny = Transformer(4, 64, 4, 32, 100, experts=16, active=2)
    quick = Cluster(DEVICES["H100"], Links(Link(0.0, 1e30), Link(0.0, 1e30), 8))
    layout = ParallelLayout(batch=4, micro_batch=1, data=4, experts=4)

    def launched(layout: ParallelLayout) -> float:
        return layer_passes(tiny, layout, quick, replace(FITS, collective=0.0)).total / FITS.launch

    assert launched(replace(layout, grouped=True)) == pytest.approx(22 + 40)
    assert launched(layout) == pytest.approx(22 + 40 + 4 * (2 + 4))
    assert launched(replace(layout, dtype="float8")) == pytest.approx(22 + 40 + 4 * (4 + 8))  # inputs are rounded
    assert launched(replace(layout, experts=1)) == pytest.approx(22 + 40 + 16 * (2 + 4))


def test_tokens_go_to_their_experts_and_back_in_four_all_to_alls_and_six_with_recomputation() -> None:
    layout = replace(ONE, data=4, experts=4)
    once = CLUSTER.links.all_to_all(2 * 4 * OF.context * 2 * OF.width, 4)
    assert layer_passes(MIXTURE, layout, CLUSTER, FREE).experts == pytest.approx(4 * once)
    assert layer_passes(MIXTURE, replace(layout, recompute="full"), CLUSTER, FREE).experts == pytest.approx(6 * once)
    step = step_time(MIXTURE, layout, CLUSTER, FREE)
    assert step.experts == pytest.approx(layout.micro_batches * OF.layers * 4 * once)
    cut = replace(layout, tensor=2, experts=8)  # each device sends the tokens of half of the sequence
    once = CLUSTER.links.all_to_all(2 * 4 * OF.context * OF.width, 8)
    assert layer_passes(MIXTURE, cut, CLUSTER, FREE).experts == pytest.approx(4 * once)
    assert step_time(MIXTURE, replace(ONE, data=4), CLUSTER, FREE).experts == 0


def test_gradients_of_experts_are_summed_over_the_devices_that_hold_the_same() -> None:
    layout = replace(ONE, data=4, experts=2)
    experts = MIXTURE.layers * MIXTURE.expert_entries()
    rest = MIXTURE.layers * MIXTURE.layer_entries() + MIXTURE.vocabulary * MIXTURE.width - experts
    reduced = CLUSTER.links.all_reduce
    expected = reduced(2 * rest, 4, 1) + reduced(2 * experts / 2, 2, 2)
    assert step_time(MIXTURE, layout, CLUSTER, FREE).data == pytest.approx(expected)
    alone = step_time(MIXTURE, replace(layout, experts=4), CLUSTER, FREE)
    assert alone.data == pytest.approx(reduced(2 * rest, 4, 1))
    zero = step_time(MIXTURE, replace(layout, zero=1), CLUSTER, FREE)
    whole = step_time(MIXTURE, layout, CLUSTER, FREE).optimizer
    assert zero.optimizer / whole == pytest.approx((rest / 4 + experts / 2 / 2) / (rest + experts / 2))


@pytest.mark.parametrize(("tensor", "experts"), [(2, 3), (1, 8), (4, 2)])
def test_devices_that_cannot_share_experts_are_refused(tensor: int, experts: int) -> None:
    with pytest.raises(CostError, match=f"experts={experts}: must be a multiple of tensor={tensor} and divide"):
        replace(ONE, data=4, tensor=tensor, experts=experts)


def test_gradients_are_summed_over_replicas_and_an_overlap_hides_most_of_it() -> None:
    layout = replace(ONE, data=4)
    entries = OF.layers * OF.layer_entries() + OF.vocabulary * OF.width
    exposed = step_time(OF, layout, CLUSTER, FREE).data
    assert exposed == pytest.approx(CLUSTER.links.all_reduce(2 * entries, 4, 1))
    assert step_time(OF, replace(layout, overlap=True), CLUSTER, FREE).data < exposed / 2


def test_gradients_that_are_sent_in_float32_are_twice_as_long() -> None:
    links = Links(Link(0.0, 1e9), Link(0.0, 1e9), 8)
    narrow, wide = (
        step_time(OF, replace(ONE, data=4, wide_sums=each), replace(CLUSTER, links=links), FREE).data
        for each in (False, True)
    )
    assert wide == pytest.approx(2 * narrow)


def test_zero_1_scatters_and_gathers_what_an_all_reduce_moves() -> None:
    layout = replace(ONE, data=4)
    plain, sharded = (step_time(OF, replace(layout, zero=zero), CLUSTER, FREE) for zero in (0, 1))
    alpha = CLUSTER.links.inside.latency
    assert sharded.data + sharded.shards == pytest.approx(plain.data + alpha)
    assert sharded.optimizer == pytest.approx(plain.optimizer / 4)


def test_zero_3_waits_for_weights_only_where_layers_are_quicker() -> None:
    layout = replace(ONE, data=4, zero=3, overlap=True)
    layer = layer_passes(OF, layout, CLUSTER, FREE).total
    moved = 3 * CLUSTER.links.all_gather(2 * OF.layer_entries(), 4, 1)
    assert moved < layer
    expected = OF.layers * FREE.contended * moved + first_and_last(CLUSTER.links, 1)
    assert step_time(OF, layout, CLUSTER, FREE).shards == pytest.approx(expected)
    slow = replace(CLUSTER, links=Links(Link(0.0, 1e9), Link(0.0, 1e9), 8))
    waited = OF.layers * (3 * slow.links.all_gather(2 * OF.layer_entries(), 4, 1) - layer)
    assert step_time(OF, layout, slow, FREE).shards == pytest.approx(waited + first_and_last(slow.links, 1))


def test_zero_3_waits_for_all_weights_without_overlap() -> None:
    moved = 3 * CLUSTER.links.all_gather(2 * OF.layer_entries(), 4, 1)
    layout = replace(ONE, batch=32, data=4, zero=3)
    expected = 2 * (OF.layers * moved + first_and_last(CLUSTER.links, 0))
    assert step_time(OF, layout, CLUSTER, FREE).shards == pytest.approx(expected)
    untied = step_time(replace(OF, tied=False), layout, CLUSTER, FREE).shards
    more = CLUSTER.links.all_gather(4 * OF.vocabulary * OF.width, 4, 1) - CLUSTER.links.all_gather(
        2 * OF.vocabulary * OF.width, 4, 1
    )
    assert untied - expected == pytest.approx(2 * 2 * more)


def first_and_last(links: Links, layers: int) -> float:
    """A gather before the first layer and a scatter after the last gradient, of the embedding and of `layers`."""
    sizes = [OF.vocabulary * OF.width, *[OF.layer_entries()] * layers]
    return sum(2 * links.all_gather(2 * each, 4, 1) for each in sizes)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_replicas_that_share_shards_on_a_host_gather_there_and_sum_their_shards_with_others(zero: int) -> None:
    """Hybrid sharding (Zhao et al. 2023, 3.2.2): 8 devices of a host have the shards, 4 hosts hold the same."""
    layout = replace(ONE, batch=128, data=32, zero=zero)
    entries = (OF.layers if zero < 3 else 1) * OF.layer_entries() + (OF.vocabulary * OF.width if zero < 3 else 0)
    inside, shard = CLUSTER.links.all_gather(2 * entries, 8, 1), CLUSTER.links.all_reduce(2 * entries / 8, 4, 8)
    hybrid, whole = (step_time(OF, replace(layout, shard_over=n), CLUSTER, FREE) for n in (8, None))
    if zero < 3:
        assert (hybrid.shards, hybrid.data) == (pytest.approx(inside), pytest.approx(inside + shard))
    else:
        ends = 2 * OF.vocabulary * OF.width
        first = 2 * CLUSTER.links.all_gather(ends, 8, 1) + CLUSTER.links.all_reduce(ends / 8, 4, 8)
        assert hybrid.shards == pytest.approx(OF.layers * (3 * inside + shard) + first)
    assert hybrid.shards < whole.shards
    assert hybrid.optimizer == pytest.approx(4 * whole.optimizer)
    assert step_time(OF, replace(layout, shard_over=32), CLUSTER, FREE) == whole


def test_layers_inputs_go_to_the_host_and_back() -> None:
    layout = replace(ONE, recompute="full", inputs_on_host=True)
    nbytes = 2 * 4 * 1024 * 2048  # of a layer and micro-batch; there are 4 of these
    assert step_time(OF, layout, CLUSTER, FREE).offload == pytest.approx(2 * 4 * OF.layers * nbytes / 1.2e10)
    split = replace(layout, tensor=2, split_inputs=True)
    assert step_time(OF, split, CLUSTER, FREE).offload == pytest.approx(4 * OF.layers * nbytes / 1.2e10)


def test_what_runs_beside_slows_down() -> None:
    assert beside(0.0, 2.0, FITS) == 2.0
    assert beside(1.0, 2.0, FITS) == pytest.approx(2.189)
    assert beside(9.0, 2.0, FITS) == 9.0


def test_offload_takes_the_host_s_link_and_memory() -> None:
    layout = replace(ONE, offload="optimizer")
    entries = OF.layers * OF.layer_entries() + OF.vocabulary * OF.width
    step = step_time(OF, layout, CLUSTER, FREE)
    assert step.optimizer == 0
    assert step.offload == pytest.approx(4 * entries / 1.2e10 + 32 * entries * 8 / 1e11)
    assert step_time(OF, replace(layout, offload="all"), CLUSTER, FREE).offload > step.offload


def test_context_parallel_shares_a_sample_s_tokens() -> None:
    whole, shared = (layer_passes(OF, replace(ONE, context=at), CLUSTER, replace(FREE, ramp=0.0)) for at in (1, 2))
    assert shared.compute == pytest.approx(whole.compute / 2, rel=0.1)


SHARED = replace(ONE, context=4, fused=True)


def test_keys_and_values_go_round_a_ring_and_attention_waits_for_slow_messages_alone() -> None:
    """3 messages forward of a device's keys and values, 3 backward with their gradients (Liu et al. 2023)."""
    slow, quick = (Cluster(DEVICE, Links(Link(0.0, rate), Link(0.0, 1.0), 8)) for rate in (1e6, 1e30))
    own = 2 * OF.context * 2 * OF.width  # 4 samples, of which a device has a fourth
    busy = replace(FREE, contended=0.0)
    waited = layer_passes(OF, SHARED, slow, busy).context
    assert waited == pytest.approx(3 * (own + 2 * own) / 1e6, rel=0.01)
    assert layer_passes(OF, SHARED, quick, busy).context == 0
    assert step_time(OF, replace(SHARED, batch=8), slow, busy).context == pytest.approx(2 * OF.layers * waited)


def test_the_results_of_a_ring_s_turns_are_added_up_in_float32() -> None:
    free = replace(FREE, ramp=0.0)
    ring, gathered = (
        layer_passes(OF, replace(SHARED, gathers_keys=each), CLUSTER, free).compute for each in (False, True)
    )
    assert ring - gathered == pytest.approx(4 * streamed(DEVICE, free, OF.context * OF.width * (10 + 3 * 6)))


def test_keys_and_values_that_are_gathered_first_are_waited_for() -> None:
    once = CLUSTER.links.all_gather(2 * 4 * OF.context * 2 * OF.width, 4, 1)
    assert layer_passes(OF, replace(SHARED, gathers_keys=True), CLUSTER, FREE).context == pytest.approx(3 * once)


def test_the_device_of_the_last_tokens_has_more_scores_unless_parts_are_balanced() -> None:
    balanced, last, whole = (
        layer_passes(of, replace(SHARED, balanced=each), CLUSTER, FREE).compute
        for of, each in ((OF, True), (OF, False), (replace(OF, causal=False), False))
    )
    scores = sum(each.flops for each in products(OF, 1, fused=True) if each.of_scores) / DEVICE.peak["float16"]
    passes = scores / FREE.attention + 2.5 * scores / FREE.attention_back
    assert last - balanced == pytest.approx(0.75 * passes)
    assert whole - balanced == pytest.approx(passes)


def test_the_host_launches_the_kernels_of_each_turn() -> None:
    tiny = Transformer(4, 64, 4, 32, 100)
    one, two = (
        layer_passes(tiny, replace(ONE, micro_batch=1, context=n), CLUSTER, replace(FREE, launch=1.0)).total
        for n in (1, 2)
    )
    assert two - one == pytest.approx(2 * (3 + 4))


def test_passes_add_and_multiply_part_by_part() -> None:
    assert PassBreakdown(1.0, 2.0, 3.0) * 2 + PassBreakdown(1.0) == PassBreakdown(3.0, 4.0, 6.0)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"batch": 0}, "batch=0: it is at least 1"),
        ({"zero": 4}, "zero=4: stages are 0, 1, 2 and 3"),
        ({"data": 8}, "batch=16: 8 replicas with micro-batches of 4 need at least 32 samples"),
        ({"shard_over": 2}, "shard_over=2: must divide 1 replicas"),
        ({"chunks": 2}, "chunks=2: interleaving takes at least 2 stages"),
    ],
)
def test_layouts_that_cannot_be_are_refused(knobs: dict[str, int], says: str) -> None:
    with pytest.raises(CostError, match=says):
        replace(ONE, **knobs)
