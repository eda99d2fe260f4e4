"""A Hugging Face config.json as overrides of model=gpt."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.advise.hugging_face import read_model
from paceline.conf.errors import ConfigError
from paceline.engine.api.preparing import prepare

LLAMA_3 = {  # meta-llama/Meta-Llama-3-8B
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
LLAMA_3_2 = LLAMA_3 | {  # meta-llama/Llama-3.2-1B
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": None,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 32.0},
    "tie_word_embeddings": True,
}
MISTRAL = LLAMA_3 | {  # mistralai/Mistral-7B-v0.1
    "model_type": "mistral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
MIXTRAL = LLAMA_3 | {  # mistralai/Mixtral-8x7B-v0.1
    "model_type": "mixtral",
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN = LLAMA_3 | {  # Qwen/Qwen2.5-0.5B
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
QWEN_3 = QWEN | {"model_type": "qwen3", "head_dim": 64}
GPT_2 = {  # openai-community/gpt2
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "resid_pdrop": 0.1,
}


def written(folder: Path, values: Any) -> Path:
    (folder / "config.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("values", "parameters"),
    [
        (LLAMA_3, 8_030_261_248),
        (LLAMA_3_2, 1_235_814_400),
        (MISTRAL, 7_241_732_096),
        (QWEN, 494_032_768 - 24 * (896 + 2 * 128)),  # less the biases of queries, keys and values
        (GPT_2, 124_439_808),
        (MIXTRAL, 46_702_792_704),
    ],
)
def test_a_published_model_has_its_number_of_parameters(values: dict[str, Any], parameters: int, tmp_path) -> None:
    found = read_model(written(tmp_path, values))
    experiment = prepare([*found.overrides(), "strategy=single", "batch_size=1"])
    assert experiment.plan().parts[0].memory["parameters"] == 4 * parameters


def test_the_knobs_are_those_of_our_presets(tmp_path: Path) -> None:
    for name, values in (("llama_8b", LLAMA_3), ("mixtral_8x7b", MIXTRAL)):
        knobs = read_model(written(tmp_path, values) / "config.json").knobs
        ours = prepare([f"model={name}", "data=tokens"]).experiment.model.knobs
        assert {key: ours[key] for key in knobs} == knobs | {"context": None}


def test_what_changes_no_figure_is_said(tmp_path: Path) -> None:
    found = read_model(written(tmp_path, LLAMA_3_2 | {"hidden_act": "gelu"}))
    assert found.knobs["rotary"] == 500000.0 and len(found.notes) == 2
    assert "rope_parameters: model=gpt does not scale angles (llama3)" in found.notes[1]
    assert "hidden_act=gelu" in found.notes[0]
    (note,) = read_model(written(tmp_path, QWEN)).notes
    assert note == "model_type=qwen2: 27,648 biases are left out, 5.6e-05 of the parameters"


def test_a_window_bounds_the_context_as_within_it_all_is_seen(tmp_path: Path) -> None:
    found = read_model(written(tmp_path, MISTRAL))
    assert found.knobs["context"] == found.context == 4096 and "sliding_window=4096" in found.notes[0]
    assert read_model(written(tmp_path, MISTRAL | {"sliding_window": None})).context == 32768
    assert read_model(written(tmp_path, QWEN | {"use_sliding_window": True, "sliding_window": 512})).context == 512


def test_biases_everywhere_are_taken_and_typed_keys_win(tmp_path: Path) -> None:
    found = read_model(written(tmp_path, LLAMA_3 | {"attention_bias": True, "mlp_bias": True}))
    assert found.knobs["bias"] is True and not found.notes
    words = found.overrides({"model.n_layer", "data"})
    assert not any(word.startswith(("model.n_layer=", "data")) for word in words)
    words = read_model(written(tmp_path, GPT_2 | {"n_positions": 512})).overrides()
    assert "data.context=512" in words and "model.dropout=0.1" in words


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (LLAMA_3 | {"model_type": "mamba"}, "=mamba: is not known. There are llama, mistral, mixtral, qwen2, "),
        ({}, "model_type is missing: is not known"),
        (LLAMA_3 | {"model_type": ["llama"]}, 'model_type=["llama"]: is not known'),
        (LLAMA_3 | {"num_local_experts": 8}, "num_local_experts=8: experts are read of mixtral alone. Type model.exp"),
        (MIXTRAL | {"num_experts_per_tok": 9}, "=9: must be a whole number, at least 1 and at most 8"),
        (LLAMA_3 | {"head_dim": 256}, "head_dim=256: heads of model=gpt have hidden_size / num_attention_heads = 128"),
        (LLAMA_3 | {"num_attention_heads": 30}, "num_attention_heads=30: does not divide hidden_size=4096"),
        (LLAMA_3 | {"num_key_value_heads": 5}, "num_key_value_heads=5: does not divide num_attention_heads=32"),
        (LLAMA_3 | {"hidden_size": -4096}, "hidden_size=-4096: must be a whole number, at least 1 and "),
        (LLAMA_3 | {"hidden_size": 4096.0}, "hidden_size=4096.0: must be a whole number"),
        (LLAMA_3 | {"vocab_size": True}, "vocab_size=true: must be a whole number"),
        (LLAMA_3 | {"vocab_size": 10**300}, "(101 more characters): must be a whole number"),
        (LLAMA_3 | {"num_hidden_layers": 5000}, "=5000: must be a whole number, at least 1 and at most 4,096"),
        (LLAMA_3 | {"intermediate_size": None}, "intermediate_size=null: must be a whole number"),
        (LLAMA_3 | {"num_attention_heads": 4096, "num_key_value_heads": 8}, "heads of 1 entries have no pairs"),
        (LLAMA_3 | {"attention_dropout": 0.1}, "attention_dropout=0.1: model=gpt drops activations"),
        (LLAMA_3 | {"rope_theta": float("inf")}, "rope_theta=Infinity: must be a number above 1"),
        (LLAMA_3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: model=gpt turns whole heads"),
        (LLAMA_3 | {"rope_scaling": "x"}, "rope_scaling=x: must be a mapping"),
        (LLAMA_3 | {"attention_bias": "yes"}, "attention_bias=yes: must be true or false"),
        (QWEN | {"hidden_size": 56, "intermediate_size": 56, "vocab_size": 9}, "of the parameters"),
        (QWEN_3, "model_type=qwen3: its norms of queries and keys, which model=gpt lacks"),
        (QWEN_3, "Without them it is model=gpt model.vocabulary=151936"),
        (GPT_2 | {"attn_pdrop": 0.0}, "attn_pdrop=0.0: model.dropout is one number, and resid_pdrop=0.1"),
        (GPT_2 | {"add_cross_attention": True}, "add_cross_attention=true: model=gpt has no encoder"),
        ("[1]", "must be a mapping"),
        ('{"model_type": "llama"', "is not valid JSON"),
        ("[" * 5000, "nested more than 64 deep"),
        (" " * 2**20 + "{}", "is larger than 1,048,576 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_mapped_is_refused_by_key(values: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read_model(written(tmp_path, values))
    assert str(refused.value).startswith(f"--hf {tmp_path}/config.json: ") and says in str(refused.value)
