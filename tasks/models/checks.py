"""Checks that data have the properties that a model needs, each refused in one sentence."""

from math import prod

from ...conf.errors import ConfigError
from ..base import DataSpec

SPARSE = "sparse_logistic_regression"  # the model for sparse data


def need_numbers(model: str, spec: DataSpec) -> None:
    """Raises ConfigError unless a sample is a float tensor with one label, or with numbers to predict."""
    need_floats(model, spec)
    if spec.target_shape and spec.targets == "labels":
        if prod(spec.target_shape) == 1:
            raise ConfigError(
                f"model={model} predicts one label a sample, and the labels of these data have the shape [samples, "
                f"{', '.join(map(str, spec.target_shape))}]. Save them as [samples]."
            )
        raise ConfigError(
            f"model={model} predicts one label a sample, and these data have {list(spec.target_shape)}. Choose "
            "model=gpt for a text, or model=unet for images."
        )


def need_floats(model: str, spec: DataSpec) -> None:
    """Raises ConfigError unless a sample is a float tensor, whatever its targets are."""
    if spec.features is not None:
        raise ConfigError(f"model={model} takes dense samples; these are sparse. Choose model={SPARSE}.")
    if spec.input_dtype.is_floating_point:
        return
    if _is_text(spec):
        raise ConfigError(f"model={model} takes numbers; these data are tokens. Choose model=gpt.")
    raise ConfigError(
        f"model={model} takes floating numbers, and the inputs of these data are {spec.input_dtype}. Choose "
        "data.floats=true, which data=arrays and data=hugging_face have, let your own Dataset return them, or choose a "
        "model of your own for tokens."
    )


def need_labels(model: str, spec: DataSpec) -> None:
    """Raises ConfigError where targets are numbers."""
    if spec.targets != "labels":
        raise ConfigError(f"model={model} classifies, and the targets of these data are numbers. Choose model=linear.")


def need_image(model: str, spec: DataSpec, smallest: int) -> None:
    """Raises ConfigError unless a sample is [channels, height, width], both sides at least `smallest`."""
    need_numbers(model, spec)
    if len(spec.input_shape) != 3 or min(spec.input_shape[1:]) < smallest:
        raise ConfigError(
            f"model={model} needs images [channels, height, width] of at least {smallest}x{smallest}; "
            f"a sample of these data has the shape {list(spec.input_shape)}."
        )


def need_tokens(model: str, spec: DataSpec) -> None:
    """Raises ConfigError unless a sample is a row of tokens, each with the next one as its target."""
    if spec.input_dtype.is_floating_point or not _is_text(spec):
        targets = f"{spec.targets} {list(spec.target_shape)}"
        raise ConfigError(
            f"model={model} predicts the next token of a text, and a sample of these data has inputs "
            f"{spec.input_dtype} {list(spec.input_shape)} and targets {targets}. Choose data=text, or data=arrays with "
            "tokens and the token after each as whole numbers [samples, tokens]."
        )


def _is_text(spec: DataSpec) -> bool:
    """Returns True if each token, or number, of a row has a label."""
    return len(spec.input_shape) == 1 and spec.target_shape == spec.input_shape and spec.targets == "labels"


def need_divisor(knob: str, value: int, of: int, what: str) -> None:
    """Raises ConfigError, with the nearest that would do, unless `value` divides `of`, which is `what`."""
    if of % value:
        below = max(n for n in range(1, min(value, of) + 1) if of % n == 0)
        above = min((n for n in range(value, of + 1) if of % n == 0), default=None)
        nearest = f"{below}" if above is None else f"{below} or {above}"
        raise ConfigError(f"model.{knob}={value} does not divide {what}. Choose {nearest}.")


def need_pixels(model: str, spec: DataSpec) -> None:
    """Raises ConfigError unless a sample is an image [channels, height, width] with a label for each pixel."""
    is_image = spec.features is None and spec.input_dtype.is_floating_point and len(spec.input_shape) == 3
    if not is_image or spec.targets != "labels" or spec.target_shape != spec.input_shape[1:]:
        raise ConfigError(
            f"model={model} labels each pixel of an image; a sample of these data has the shape "
            f"{list(spec.input_shape)} and targets {list(spec.target_shape)}. Choose data=disks."
        )
