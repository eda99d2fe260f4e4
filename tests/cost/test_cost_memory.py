"""What a device holds: Korthikanti's activations, ZeRO's states, and which stage holds most."""

from dataclasses import replace

import pytest

from paceline.cost.layout import ParallelLayout
from paceline.cost.memory import CONTEXT, HALF_GRADIENTS, SHARE, WHOLE_CONTEXT, Software, held, layer_activations
from paceline.cost.transformer import Factors, Transformer

GPT_3 = Transformer(layers=96, width=12288, heads=96, context=2048, vocabulary=51200)
S, H, A = 2048, 12288, 96


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("b", [1, 4])
def test_activations_are_those_of_korthikanti_2022(t: int, b: int) -> None:
    layout = ParallelLayout(batch=8, micro_batch=b, tensor=t)
    once = S * b * H
    assert layer_activations(GPT_3, layout) == pytest.approx(once * (10 + 24 / t + 5 * A * S / (H * t)))
    sequence = replace(layout, sequence=True)
    assert layer_activations(GPT_3, sequence) == pytest.approx(once / t * (34 + 5 * A * S / H))
    selective = replace(sequence, recompute="selective")
    assert layer_activations(GPT_3, selective) == pytest.approx(34 * once / t)
    others = replace(sequence, recompute="others")  # scores are not kept either
    assert layer_activations(GPT_3, others) == layer_activations(GPT_3, selective)
    assert layer_activations(GPT_3, replace(layout, recompute="full")) == pytest.approx(2 * once)


def test_states_are_16_bytes_an_entry_and_zero_shards_them() -> None:
    layout = ParallelLayout(batch=64, micro_batch=1, data=64)
    entries = GPT_3.layers * GPT_3.layer_entries() + GPT_3.vocabulary * GPT_3.width
    states = [held(GPT_3, replace(layout, zero=zero)) for zero in (0, 1, 2, 3)]
    plain = [each.parameters + each.gradients + each.optimizer for each in states]
    layers_gathered = 4 * GPT_3.layer_entries()
    assert plain[0] == pytest.approx(16 * entries)
    assert plain[1] == pytest.approx((4 + 12 / 64) * entries)
    assert plain[2] == pytest.approx((2 + 14 / 64) * entries)
    assert plain[3] == pytest.approx(16 / 64 * entries + layers_gathered)
    hybrid = held(GPT_3, replace(layout, zero=1, shard_over=8))
    assert hybrid.optimizer == pytest.approx(12 / 8 * entries)


def test_frozen_matrices_have_neither_gradients_nor_states() -> None:
    of = replace(GPT_3, factors=Factors(8, narrow=True))
    layout = ParallelLayout(batch=8, micro_batch=1, tensor=8, stages=8)
    whole, adapted = held(GPT_3, layout), held(of, layout)
    factors = of.factor_entries() / 64
    assert adapted.gradients == pytest.approx(2 * factors) and adapted.optimizer == pytest.approx(12 * factors)
    assert adapted.parameters - whole.parameters == pytest.approx(2 * factors)


def test_recomputing_operators_keeps_the_input_attention_s_result_and_every_second_product() -> None:
    layout = ParallelLayout(batch=4, micro_batch=4, recompute="operators")
    once = S * 4 * H
    kept = 1 + 1 + 1 + 1 + 4  # the input; attention's result, queries, values, up
    assert layer_activations(GPT_3, layout) == pytest.approx(2 * once * kept)


def test_layers_that_are_not_recomputed_keep_all() -> None:
    none = ParallelLayout(batch=4, micro_batch=4)
    kept = [
        layer_activations(GPT_3, layout)
        for layout in (none, replace(none, recompute="full"), replace(none, recompute="full", recomputed=0.25))
    ]
    assert kept[2] == pytest.approx(0.75 * kept[0] + 0.25 * kept[1])


def test_experts_are_held_by_the_devices_that_share_them() -> None:
    of = replace(GPT_3, experts=16, active=2)
    layout = ParallelLayout(batch=64, micro_batch=1, data=64, fused=True)
    experts = of.layers * of.expert_entries()
    rest = of.layers * of.layer_entries() + of.vocabulary * of.width - experts
    found = [held(of, replace(layout, experts=n, zero=zero)) for n, zero in ((1, 0), (16, 0), (16, 1))]
    states = [each.parameters + each.gradients + each.optimizer for each in found]
    assert states[0] == pytest.approx(16 * (rest + experts))
    assert states[1] == pytest.approx(16 * (rest + experts / 16))
    assert states[2] == pytest.approx((4 + 12 / 64) * rest + (4 + 12 / 4) * experts / 16)
    plain, mixed = (layer_activations(each, layout) for each in (GPT_3, of))
    assert mixed - plain == pytest.approx(4 * S * 4 * H + 4 * S * 2 * H)  # a feed-forward more; 2 inputs and outputs


def test_the_first_stage_holds_the_activations_of_as_many_micro_batches_as_there_are_stages() -> None:
    layout, frees = ParallelLayout(batch=32, micro_batch=1, stages=8, tensor=8), Software(keeps_results=False)
    activations = held(GPT_3, layout, frees).activations
    assert activations == pytest.approx(12 * 8 * layer_activations(GPT_3, layout))
    assert held(GPT_3, layout).activations - activations == pytest.approx(8 * 2 * S * H)  # each one's result
    few = replace(layout, batch=2)
    assert held(GPT_3, few, frees).activations == pytest.approx(12 * 2 * layer_activations(GPT_3, few))
    interleaved = held(GPT_3, replace(layout, chunks=3), frees).activations
    assert interleaved / activations == pytest.approx(1 + 7 / 24)


def test_a_float32_copy_of_gradients_makes_it_20_bytes_and_is_sharded_as_the_optimizer_s_state() -> None:
    layout = ParallelLayout(batch=64, micro_batch=1, data=64)
    entries = GPT_3.layers * GPT_3.layer_entries() + GPT_3.vocabulary * GPT_3.width
    for zero, states in ((0, 20.0), (1, 4 + 16 / 64)):
        need = held(GPT_3, replace(layout, zero=zero), HALF_GRADIENTS)
        assert need.parameters + need.gradients + need.optimizer == pytest.approx(states * entries)


def test_inputs_kept_for_recomputation_are_cut_over_tensor_devices_or_go_to_the_host() -> None:
    layout = ParallelLayout(batch=1, micro_batch=1, tensor=4, recompute="full", split_inputs=True)
    assert layer_activations(GPT_3, layout) == pytest.approx(2 * S * H / 4)
    assert layer_activations(GPT_3, replace(layout, inputs_on_host=True)) == 0


def test_the_last_stage_holds_the_logits() -> None:
    wide = replace(GPT_3, vocabulary=4_000_000)
    layout = ParallelLayout(batch=2, micro_batch=1, stages=2)
    once = S * 4_000_000
    assert held(wide, replace(layout, stages=1)).logits == 14 * once
    assert held(wide, replace(layout, stages=1), Software(loss=4)).logits == 4 * once
    again = layer_activations(wide, layout)  # takes the loss's place
    assert held(wide, replace(layout, recompute="full")).logits == pytest.approx(14 * once - again)


def test_a_runtime_and_a_share_are_kept_back() -> None:
    need = held(GPT_3, ParallelLayout(batch=1, micro_batch=1))
    assert need.context == CONTEXT and need.lost == pytest.approx(SHARE * (need.total - need.lost - CONTEXT))
    assert held(GPT_3, ParallelLayout(batch=1, micro_batch=1), HALF_GRADIENTS).context == WHOLE_CONTEXT > CONTEXT


def test_without_dropout_there_are_no_masks_and_eight_bit_inputs_take_half() -> None:
    layout = ParallelLayout(batch=1, micro_batch=1, recompute="selective")
    once = S * H
    bare = replace(GPT_3, dropout=False)
    assert layer_activations(GPT_3, layout) - layer_activations(bare, layout) == pytest.approx(2 * once)
    eight = layer_activations(bare, replace(layout, dtype="float8"))
    assert layer_activations(bare, layout) - eight == pytest.approx((2 + 4) * once)


LLAMA = Transformer(
    layers=32, width=4096, heads=32, context=8192, vocabulary=128256, kv_heads=8, inner=14336, gated=True, tied=False,
    positions=False, dropout=False,
)  # fmt: skip


def test_layers_that_are_not_fused_keep_float32_copies_and_keys_may_be_copied_for_each_head() -> None:
    layout, once = ParallelLayout(batch=1, micro_batch=1, fused=True), 8192 * 4096
    plain = layer_activations(LLAMA, layout)
    assert layer_activations(LLAMA, layout, Software(fused=False)) - plain == 2 * (4 + 2 - 2) * once + 2 * 8192 * 14336
    assert layer_activations(LLAMA, layout, Software(repeats_keys=True)) - plain == 2 * 2 * 0.75 * once
    assert layer_activations(GPT_3, layout, Software(fused=False)) == layer_activations(GPT_3, layout)


def test_of_the_layer_whose_operators_are_recomputed_there_is_what_it_has_not_kept() -> None:
    layout = ParallelLayout(batch=8, micro_batch=1, data=8, recompute="operators", fused=True, zero=3)
    kept = 2 * 8192 * (4096 + 1024 + 4096 + 14336)  # queries, values, attention's result, gate
    full, operators = (layer_activations(LLAMA, replace(layout, recompute=kind)) for kind in ("full", "operators"))
    assert operators - full == kept
    again = held(LLAMA, layout).activations - 32 * operators
    assert again == pytest.approx(layer_activations(LLAMA, replace(layout, recompute="none")) - kept)


def test_buckets_of_data_parallel_runs_are_a_second_copy_of_gradients() -> None:
    layout = ParallelLayout(batch=16, micro_batch=1, data=8)
    plain = held(GPT_3, layout).gradients
    assert held(GPT_3, layout, Software(buckets=True)).gradients == 2 * plain
    alone = replace(layout, batch=2, data=1)
    assert held(GPT_3, alone, Software(buckets=True)).gradients == plain


def test_fsdp_gathers_the_head_and_gradients_come_when_activations_go() -> None:
    layout = ParallelLayout(batch=8, micro_batch=1, data=8, zero=3, fused=True)
    head = held(LLAMA, layout, Software(gathers_head=True)).parameters - held(LLAMA, layout).parameters
    assert head == pytest.approx(2 * 128256 * 4096)
    frees = Software(frees_gradients=True)
    assert held(LLAMA, layout).gradients > 0 and held(LLAMA, layout, frees).gradients == 0
    several = replace(layout, batch=16)
    assert held(LLAMA, several, frees).gradients == held(LLAMA, several).gradients


def test_tools_count_the_context_and_what_the_allocator_loses_or_not() -> None:
    need = held(LLAMA, ParallelLayout(batch=1, micro_batch=1), Software(states=4))
    assert need.total - need.reserved == CONTEXT
    assert need.reserved - need.allocated == pytest.approx(SHARE * need.allocated)
    assert need.optimizer == pytest.approx(2 * need.gradients)


def test_offload_leaves_states_to_the_host() -> None:
    layout = ParallelLayout(batch=1, micro_batch=1)
    assert held(GPT_3, replace(layout, offload="optimizer")).optimizer == 0
    assert held(GPT_3, replace(layout, offload="all")).parameters == 0
