"""torch's stack of hooks for saved tensors."""

import torch
from torch.autograd.graph import saved_tensors_hooks

from paceline.compat.saved_hooks import without_saved_hooks


def test_hooks_are_put_aside_and_come_back_in_their_order() -> None:
    seen: list[str] = []

    def hooks(name: str) -> saved_tensors_hooks:
        return saved_tensors_hooks(lambda tensor: (seen.append(name), tensor)[1], lambda tensor: tensor)

    x = torch.ones(2, requires_grad=True)
    with hooks("outer"):
        with hooks("inner"):
            without_saved_hooks(x.exp)
            assert seen == [], "torch keeps these hooks elsewhere: a worker may abort at its end (exit status 134)"
            x.exp()
        x.exp()
    assert seen == ["inner", "outer"]
