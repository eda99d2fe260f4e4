"""What a model needs of its data, refused in one sentence where it does not hold."""

from ..base import DataSpec
from ..errors import TaskConfigError

SPARSE = "sparse_logistic_regression"  # the model for sparse data


def need_numbers(model: str, spec: DataSpec) -> None:
    """Raises TaskConfigError unless a sample is a float tensor with one label, or with numbers to predict."""
    if spec.features is not None:
        raise TaskConfigError(f"model={model} takes dense samples; these are sparse: use model={SPARSE}.")
    if not spec.input_dtype.is_floating_point or (spec.target_shape and spec.targets == "labels"):
        raise TaskConfigError(f"model={model} classifies numbers; these data are tokens: use model=gpt.")


def need_floats(model: str, spec: DataSpec) -> None:
    """Raises TaskConfigError unless a sample is a float tensor, whatever its targets are."""
    if spec.features is not None:
        raise TaskConfigError(f"model={model} takes dense samples; these are sparse: use model={SPARSE}.")
    if not spec.input_dtype.is_floating_point:
        raise TaskConfigError(
            f"model={model} takes distances between samples, which tokens have not; use data of numbers, such as "
            "data=digits."
        )


def need_labels(model: str, spec: DataSpec) -> None:
    """Raises TaskConfigError where targets are numbers."""
    if spec.targets != "labels":
        raise TaskConfigError(f"model={model} classifies, and the targets of these data are numbers: use model=linear.")


def need_image(model: str, spec: DataSpec, smallest: int) -> None:
    """Raises TaskConfigError unless a sample is [channels, height, width], both sides at least `smallest`."""
    need_numbers(model, spec)
    if len(spec.input_shape) != 3 or min(spec.input_shape[1:]) < smallest:
        raise TaskConfigError(
            f"model={model} needs images [channels, height, width] of at least {smallest}x{smallest}; "
            f"a sample of these data has the shape {list(spec.input_shape)}."
        )


def need_tokens(model: str, spec: DataSpec) -> None:
    """Raises TaskConfigError unless a sample is a row of tokens, each with the next one as its target."""
    is_text = len(spec.input_shape) == 1 and spec.target_shape == spec.input_shape and spec.targets == "labels"
    if spec.input_dtype.is_floating_point or not is_text:
        raise TaskConfigError(f"model={model} predicts the next token of a text; use data=text.")


def need_divisor(knob: str, value: int, of: int, what: str) -> None:
    """Raises TaskConfigError, with the nearest that would do, unless `value` divides `of`, which is `what`."""
    if of % value:
        below = max(n for n in range(1, min(value, of) + 1) if of % n == 0)
        above = min((n for n in range(value, of + 1) if of % n == 0), default=None)
        nearest = f"{below}" if above is None else f"{below} or {above}"
        raise TaskConfigError(f"model.{knob}={value} does not divide {what}; choose {nearest}.")


def need_pixels(model: str, spec: DataSpec) -> None:
    """Raises TaskConfigError unless a sample is an image [channels, height, width] with a label for each pixel."""
    is_image = spec.features is None and spec.input_dtype.is_floating_point and len(spec.input_shape) == 3
    if not is_image or spec.targets != "labels" or spec.target_shape != spec.input_shape[1:]:
        raise TaskConfigError(
            f"model={model} labels each pixel of an image; a sample of these data has the shape "
            f"{list(spec.input_shape)} and targets {list(spec.target_shape)}: use data=disks."
        )
