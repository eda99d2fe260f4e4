"""A data set that loads other than its `spec` says is refused by name, before a step is trained."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.tasks.base import Data, DataSpec, Field, Split
from paceline.tasks.checks import check_spec, load_checked

SPEC = DataSpec((13,), torch.float32, (), 3, 8, 4)
NUMBERS = DataSpec((13,), torch.float32, (), train_size=8, test_size=4, target_dtype=torch.float32)


class Mine(Data):
    """`inputs` and `targets` stand for the training split."""

    def __init__(self, spec: DataSpec = SPEC, inputs: Tensor | None = None, targets: Tensor | None = None) -> None:
        self.inputs = torch.zeros(8, 13) if inputs is None else inputs
        self.targets = torch.arange(8) % 3 if targets is None else targets
        self._spec = spec

    @property
    def spec(self) -> DataSpec:
        return self._spec

    def load(self) -> tuple[Split, Split]:
        return Split(self.inputs, self.targets), Split(torch.zeros(4, 13), torch.arange(4) % 3)


def test_what_fits_its_spec_is_loaded() -> None:
    train, test = load_checked("mine", Mine())
    assert (len(train), len(test)) == (8, 4)
    load_checked("mine", Mine(replace(SPEC, train_size=None, test_size=None)))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (Mine(replace(SPEC, train_size=1000)), "a train split of 8 samples, and spec.train_size says 1,000"),
        (Mine(replace(SPEC, test_size=5)), "a test split of 4 samples, and spec.test_size says 5"),
        (Mine(targets=torch.zeros(8)), "targets of torch.float32, and spec.target_dtype says torch.int64"),
        (Mine(inputs=torch.zeros(8, 13).double()), "inputs of torch.float64, and spec.input_dtype says torch.float32"),
        (Mine(inputs=torch.zeros(8, 12)), "inputs of [12] each, and spec.input_shape says [13]"),
        (Mine(targets=torch.zeros(8, 1).long()), "targets of [1] each, and spec.target_shape says []"),
        (Mine(targets=torch.arange(8)), "targets from 0 to 7; spec.classes=3 leaves 0 to 2"),
        (Mine(targets=torch.zeros(7).long()), "8 inputs and 7 targets"),
    ],
)
def test_what_does_not_is_refused_with_what_was_said_and_what_was_loaded(data: Mine, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_checked("mine", data)
    assert str(caught.value).startswith("data=mine: load() gives a ") and sentence in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (replace(SPEC, target_dtype=torch.int32), "spec.target_dtype=torch.int32: must be torch.int64 (labels"),
        (replace(SPEC, target_dtype=torch.float32), "spec.classes=3: must be 0 (or left out), as targets of torch.f"),
        (replace(NUMBERS, target_shape=(2, 0)), "spec.target_shape[1]=0: must be 1 or more"),
        (replace(SPEC, target_shape=(0,)), "spec.target_shape[0]=0: must be 1 or more"),
        (replace(SPEC, input_shape=(3, 0)), "spec.input_shape[1]=0: must be 1 or more"),
        (replace(SPEC, inputs={"a": Field((0,))}), "spec.inputs['a'].shape[0]=0: must be 1 or more"),
        (replace(SPEC, classes=0), "spec.classes=0: must be 1 or more"),
        (replace(SPEC, train_size=0), "spec.train_size=0: must be 1 or more"),
        ({"classes": 3}, "spec is a dict; must be a paceline.tasks.base.DataSpec"),
    ],
)
def test_a_spec_that_nothing_can_be_trained_on_is_refused_without_loading(spec: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match="data=mine: ") as caught:
        check_spec("mine", spec)
    assert sentence in str(caught.value)


def test_numbers_are_taken_as_targets_unless_one_is_not_finite() -> None:
    class Numbers(Mine):
        def load(self) -> tuple[Split, Split]:
            return Split(self.inputs, self.targets), Split(torch.zeros(4, 13), torch.zeros(4))

    check_spec("mine", NUMBERS)
    load_checked("mine", Numbers(NUMBERS, targets=torch.linspace(-5, 300, 8)))
    for strange in (float("nan"), float("inf")):
        targets = torch.zeros(8)
        targets[3] = strange
        with pytest.raises(ConfigError, match="NaN or infinite, at first in sample 3; must be finite"):
            load_checked("mine", Numbers(NUMBERS, targets=targets))
    with pytest.raises(ConfigError, match=r"targets of torch\.int64, and spec.target_dtype says torch\.float32"):
        load_checked("mine", Numbers(NUMBERS, targets=torch.zeros(8).long()))


SEVERAL = replace(NUMBERS, inputs={"a": Field((2,)), "b": Field((), torch.int64)}, weights=True, test_size=8)


class Several(Data):
    spec = SEVERAL  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, **changed: object) -> None:
        given = {"inputs": {"a": torch.zeros(8, 2), "b": torch.zeros(8).long()}, "weights": torch.ones(8), **changed}
        self.split = Split(targets=torch.zeros(8), **given)  # pyright: ignore[reportArgumentType]

    def load(self) -> tuple[Split, Split]:
        return self.split, self.split


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"inputs": torch.zeros(8, 2)}, "inputs in a Tensor; spec.inputs says a dict"),
        ({"inputs": (torch.zeros(8, 2), torch.zeros(8))}, "inputs in a tuple; spec.inputs says a dict"),
        ({"inputs": {"a": torch.zeros(8, 2)}}, "inputs ['a']; spec.inputs says ['a', 'b']"),
        (
            {"inputs": {"a": torch.zeros(8, 2), "b": torch.zeros(8)}},
            "inputs['b'] of torch.float32, and spec.inputs['b']",
        ),
        ({"inputs": {"a": torch.zeros(7, 2), "b": torch.zeros(8).long()}}, "of 7 inputs and 8 targets"),
        ({"weights": None}, "without weights, and spec.weights=True says otherwise"),
        ({"weights": torch.ones(8, 2)}, "weights of [8, 2]; must be [8], one for each sample"),
        ({"weights": torch.ones(8).long()}, "weights of torch.int64; must be floating, or torch.bool (a mask)"),
        ({"weights": torch.tensor([1.0] * 5 + [-1.0] * 3)}, "negative or not finite, at first in sample 5"),
        ({"weights": torch.zeros(8)}, "weights that are all 0, so that nothing counts"),
    ],
)
def test_several_inputs_and_weights_are_held_to_the_spec(changed: dict[str, object], sentence: str) -> None:
    load_checked("mine", Several())
    with pytest.raises(ConfigError) as caught:
        load_checked("mine", Several(**changed))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [({}, "must have one or more"), ({"a b": Field(())}, "must be a name in Python"), ({"a": 3}, "must be a Field")],
)
def test_a_spec_of_several_inputs_names_them(inputs: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_spec("mine", replace(NUMBERS, inputs=inputs))  # pyright: ignore[reportArgumentType]
