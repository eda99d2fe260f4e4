"""A Hugging Face `config.json` as overrides of model=gpt. Nothing is downloaded, and no code of a model runs."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..conf.errors import ConfigError
from ..tracking.files import UnusableFileError, read_json
from ..tracking.text import plain, shown

LLAMAS = ("llama", "mistral", "mixtral", "qwen2", "qwen3")  # RMSNorm, rotary positions, a gated feed-forward layer
FAMILIES = (*LLAMAS, "gpt2")
MOST_BYTES = 2**20
MOST = 2**31 - 1
DEEPEST, WIDEST = 4096, 2**20  # of model=gpt
MOST_LEFT_OUT = 0.003  # of the parameters
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# Defaults that the families' classes have in transformers
KV_HEADS = {"mistral": 8, "mixtral": 8, "qwen2": 32, "qwen3": 32}
WINDOW = 4096
USUAL_CONTEXT = 1024  # of data=tokens


@dataclass
class HuggingFaceModel:
    """`knobs`: of model=gpt. `context`: the longest. `notes`: the differences that are left."""

    knobs: dict[str, Any]
    vocabulary: int
    context: int
    notes: list[str] = field(default_factory=list[str])

    def overrides(self, typed: Collection[str] = ()) -> list[str]:
        """Returns the model and, unless data are typed, tokens that it takes; without keys that are typed."""
        words = {"model": "gpt", **{f"model.{key}": str(value).lower() for key, value in self.knobs.items()}}
        if "data" not in typed:
            words |= {"data": "tokens", "data.vocabulary": str(self.vocabulary)}
            words |= {"data.context": str(self.context)} if self.context < USUAL_CONTEXT else {}
        return [f"{key}={value}" for key, value in words.items() if key not in typed]


def read_model(path: Path) -> HuggingFaceModel:
    """`path`: the file, or its folder. Raises `ConfigError` for what model=gpt does not compute."""
    file = path
    try:
        file = path / "config.json" if path.is_dir() else path
        values = read_json(file, MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"--hf {shown(str(file))}: cannot be read ({error.strerror})") from None
    except UnusableFileError as error:
        raise ConfigError(f"--hf {shown(str(file))}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"--hf {shown(str(file))}: must be a mapping")
    config = _Config(file, values)
    family = values.get("model_type")
    if family not in FAMILIES:
        raise config.error("model_type", f"is not known. There are {', '.join(FAMILIES)}")
    for key in EXPERTS:
        if family != "mixtral" and values.get(key) not in (None, 0, 1):
            raise config.error(key, "experts are read of mixtral alone. Type model.experts and model.active")
    return _gpt2(config) if family == "gpt2" else _llama(config, family)


@dataclass(frozen=True)
class _Config:
    file: Path
    values: dict[str, Any]

    def error(self, key: str, why: str) -> ConfigError:
        told = f"{key}={shown(plain(self.values[key]))}" if key in self.values else f"{key} is missing"
        return ConfigError(f"--hf {shown(str(self.file))}: {told}: {why}")

    def get(self, key: str, default: Any) -> Any:
        """Returns the value; the default for a key that is missing or null."""
        value = self.values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, most: int = MOST) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.error(key, f"must be a whole number, at least 1 and at most {most:,}")
        return value

    def share(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise self.error(key, "must be a number, at least 0 and less than 1")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value


def _gpt2(config: _Config) -> HuggingFaceModel:
    width, heads = _width_and_heads(config, "n_embd", "n_head")
    dropout = config.share("resid_pdrop", 0.1)
    for key in ("embd_pdrop", "attn_pdrop"):
        if config.share(key, 0.1) != dropout:
            raise config.error(key, f"model.dropout is one number, and resid_pdrop={dropout}")
    if config.flag("add_cross_attention"):
        raise config.error("add_cross_attention", "model=gpt has no encoder to look at")
    found = HuggingFaceModel({}, config.whole("vocab_size"), config.whole("n_positions"))
    _activation(config, found, "activation_function", "gelu_new", "gelu")
    found.knobs = {
        "vocabulary": found.vocabulary,
        "context": found.context,
        "n_layer": config.whole("n_layer", most=DEEPEST),
        "n_head": heads,
        "width": width,
        "ffn_width": config.whole("n_inner", 4 * width, WIDEST),
        "tied": config.flag("tie_word_embeddings", True),
        "dropout": dropout,
    }
    return found


def _llama(config: _Config, family: str) -> HuggingFaceModel:
    width, heads = _width_and_heads(config, "hidden_size", "num_attention_heads")
    kv_heads = config.whole("num_key_value_heads", KV_HEADS.get(family, heads))
    head = width // heads
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"does not divide num_attention_heads={heads}")
    if config.whole("head_dim", head) != head:
        raise config.error("head_dim", f"heads of model=gpt have hidden_size / num_attention_heads = {head} entries")
    if head % 2:
        raise config.error("num_attention_heads", f"heads of {head} entries have no pairs to turn for rotary positions")
    if config.share("attention_dropout", 0.0):
        raise config.error("attention_dropout", "model=gpt drops activations and attention alike. Choose 0")
    found = HuggingFaceModel({}, config.whole("vocab_size"), config.whole("max_position_embeddings"))
    found.context = _windowed(config, family, found)
    _activation(config, found, "hidden_act", "silu", "silu")
    found.knobs = {
        "vocabulary": found.vocabulary,
        "context": found.context,
        "n_layer": config.whole("num_hidden_layers", most=DEEPEST),
        "n_head": heads,
        "width": width,
        "n_kv_head": kv_heads,
        "ffn_width": config.whole("intermediate_size", most=WIDEST),
        "gated": True,
        "rms_norm": True,
        "rotary": _base(config, found),
        "tied": config.flag("tie_word_embeddings"),
        "bias": False,
    }
    if family == "mixtral":
        found.knobs["experts"] = config.whole("num_local_experts", 8)
        found.knobs["active"] = config.whole("num_experts_per_tok", 2, found.knobs["experts"])
        found.notes.append(
            "model_type=mixtral: model=gpt does not divide the weights of experts by their sum, which changes no size"
        )
    _biases(config, family, found)
    if family == "qwen3":
        raise config.error(
            "model_type",
            "its norms of queries and keys, which model=gpt lacks, keep a tenth more activations. Without them it is "
            + " ".join(found.overrides()),
        )
    return found


def _width_and_heads(config: _Config, width_key: str, heads_key: str) -> tuple[int, int]:
    width, heads = config.whole(width_key, most=WIDEST), config.whole(heads_key)
    if width % heads:
        raise config.error(heads_key, f"does not divide {width_key}={width}")
    return width, heads


def _windowed(config: _Config, family: str, found: HuggingFaceModel) -> int:
    """Returns the longest context in which each token sees all former ones: that of a window, where there is one."""
    kinds = config.get("layer_types", [])
    sliding = config.flag("use_sliding_window") or (isinstance(kinds, list) and "sliding_attention" in kinds)
    if family in ("mistral", "mixtral"):
        missing = family == "mistral" and "sliding_window" not in config.values  # its class has one by default
        sliding = missing or config.values.get("sliding_window") is not None
    if family == "llama" or not sliding:
        return found.context
    window = config.whole("sliding_window", WINDOW)
    if window < found.context:
        found.notes.append(f"sliding_window={window}: model=gpt has no windows, so that contexts have at most {window}")
    return min(window, found.context)


def _base(config: _Config, found: HuggingFaceModel) -> float:
    """Returns the base of rotary positions, of this version of transformers or of former ones."""
    key = "rope_scaling" if config.values.get("rope_scaling") is not None else "rope_parameters"
    scaling = config.get(key, {})
    if not isinstance(scaling, dict):
        raise config.error(key, "must be a mapping")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        found.notes.append(f"{key}: model=gpt does not scale angles ({shown(kind)}), which changes no figure")
    values = config.values | {key: value for key, value in scaling.items() if config.values.get(key) is None}
    both = replace(config, values=values)
    if both.get("partial_rotary_factor", 1) != 1:
        raise both.error("partial_rotary_factor", "model=gpt turns whole heads. Choose 1")
    base = both.get("rope_theta", 10000.0)
    if not isinstance(base, int | float) or isinstance(base, bool) or not 1 < base < float("inf"):
        raise both.error("rope_theta", "must be a number above 1")
    return float(base)


def _activation(config: _Config, found: HuggingFaceModel, key: str, default: str, kind: str) -> None:
    name = config.get(key, default)
    if not isinstance(name, str):
        raise config.error(key, "must be a name")
    if not name.startswith(kind):
        found.notes.append(f"{key}={shown(name)}: model=gpt computes {kind}, which changes no size")


def _biases(config: _Config, family: str, found: HuggingFaceModel) -> None:
    """Takes biases of all linear layers. Others are left out, if they are few."""
    knobs = found.knobs
    width, ffn_width, layers = knobs["width"], knobs["ffn_width"], knobs["n_layer"]
    key_width = width * knobs["n_kv_head"] // knobs["n_head"]
    of_queries = family == "qwen2"  # and of keys and values
    attention = family != "mistral" and config.flag("attention_bias")
    feed_forward = family == "llama" and config.flag("mlp_bias")
    if attention and feed_forward:
        knobs["bias"] = True
        return
    left_out = (width + 2 * key_width) * (of_queries or attention) + width * (attention and not of_queries)
    left_out = layers * (left_out + (2 * ffn_width + width) * feed_forward)
    matrices = layers * (2 * width * (width + key_width) + 3 * width * ffn_width)
    share = left_out / (matrices + found.vocabulary * width * (2 - knobs["tied"]))
    key = "mlp_bias" if feed_forward else "attention_bias" if attention else "model_type"
    if share > MOST_LEFT_OUT:
        raise config.error(
            key, f"model=gpt has biases in all linear layers or in none, and these are {share:.1%} of the parameters"
        )
    if left_out:
        found.notes.append(
            f"{key}={plain(config.values[key])}: {left_out:,} biases are left out, {share:.2g} of the parameters"
        )
