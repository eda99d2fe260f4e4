"""compat/foreach.py: lists of tensors, against one tensor after another, which LARS and LAMB take them to be."""

import pytest
import torch

from paceline.compat import foreach

SHAPES = [(3, 4), (5,), ()]


def some(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5 for shape in SHAPES]


SCALARS = [torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64), torch.tensor(3.0)]
IN_PLACE = {
    "add_": (lambda a, b: foreach.add_(a, b, alpha=-0.3), lambda x, y, s: x - 0.3 * y),
    "add_ of a number": (lambda a, b: foreach.add_(a, 0.3), lambda x, y, s: x + 0.3),
    "addcmul_ with a number": (lambda a, b: foreach.addcmul_(a, b, b, 0.3), lambda x, y, s: x + 0.3 * y * y),
    "addcmul_ with scalars": (lambda a, b: foreach.addcmul_(a, b, SCALARS), lambda x, y, s: x + y * s),
    "div_": (lambda a, b: foreach.div_(a, [0.5, 2.0, 3.0]), lambda x, y, s: x / s),
    "lerp_": (lambda a, b: foreach.lerp_(a, b, 0.3), lambda x, y, s: 0.7 * x + 0.3 * y),
    "mul_": (lambda a, b: foreach.mul_(a, b), lambda x, y, s: x * y),
    "mul_ by numbers": (lambda a, b: foreach.mul_(a, [0.5, 2.0, 3.0]), lambda x, y, s: x * s),
    "reciprocal_": (lambda a, b: foreach.reciprocal_(a), lambda x, y, s: 1 / x),
    "sub_": (lambda a, b: foreach.sub_(a, b), lambda x, y, s: x - y),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_list_is_written_as_one_tensor_after_another(name):
    ours, other = some(0), some(1)
    of_lists, of_one = IN_PLACE[name]
    expected = [of_one(x, y, s) for x, y, s in zip(some(0), other, SCALARS, strict=True)]
    of_lists(ours, other)
    torch.testing.assert_close(ours, expected)


def test_what_gives_new_tensors_leaves_the_old():
    x = some(0)
    torch.testing.assert_close(list(foreach.sqrt(x)), [each**0.5 for each in x])
    torch.testing.assert_close(list(foreach.mul(x, SCALARS)), [each * s for each, s in zip(x, SCALARS, strict=True)])
    assert all(torch.equal(a, b) for a, b in zip(x, some(0), strict=True))


def test_a_norm_is_taken_in_the_type_that_is_asked_for():
    [norm] = foreach.norm([torch.full((4,), 1e25)], 2, torch.float64)
    assert norm.dtype == torch.float64 and float(norm) == pytest.approx(2e25)
