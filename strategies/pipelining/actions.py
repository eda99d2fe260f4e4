"""The actions of a pipeline's workers, one list for each worker.

Actions are written as torch.distributed.pipelining writes them: `2F0` is the forward pass of stage 2 for micro-batch 0.

    F   forward pass
    B   backward pass: gradients of the inputs and of the weights
    I   gradients of the inputs alone
    W   gradients of the weights alone, after I
    U   update of the stage's weights, after the backward pass of a micro-batch

`2SEND_F0` sends what `2F0` put out to stage 3, which takes it with `3RECV_F0`; `2SEND_B0` sends the gradient of stage
2's input to stage 1, which takes it with `1RECV_B0`.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, get_args

Kind = Literal["F", "B", "I", "W", "U"]
Transfer = Literal["SEND_F", "RECV_F", "SEND_B", "RECV_B"]
KINDS: tuple[str, ...] = get_args(Kind)
TRANSFERS: tuple[str, ...] = get_args(Transfer)


class Action(NamedTuple):
    stage: int
    kind: Kind | Transfer
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


Schedule = Sequence[Sequence[Action]]  # [worker][place in time]

_WRITTEN = re.compile(rf"(\d+)({'|'.join((*TRANSFERS, *KINDS))})(\d+)")


def parse(text: str) -> Action:
    """Parses an action such as 2F0. Raises `ValueError`."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        kinds = ", ".join(KINDS)
        raise ValueError(f"{text!r} is no action: a stage, one of {kinds}, and a micro-batch, such as 2F0")
    stage, kind, micro_batch = found.groups()
    return Action(int(stage), cast("Kind | Transfer", kind), int(micro_batch))
