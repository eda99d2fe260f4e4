"""Advice where a loss, or an evaluation, is no longer a number."""

from torch import Tensor

from ...batches import Samples, tensors_of
from ...strategies.core.protocols import what_may_help
from .job import Job


def holds_unknown(inputs: Samples) -> bool:
    """Returns whether some of the inputs are NaN or infinite."""
    tensors: list[Tensor] = [*tensors_of(inputs)]
    return any(each.is_floating_point() and not bool(each.isfinite().all()) for each in tensors)


def why_not_finite(job: Job, inputs: Samples, step: int) -> str:
    """Returns what may help, where the loss of these inputs is not finite."""
    if holds_unknown(inputs):
        return "the batch itself holds values that are NaN or infinite: look at the data"
    if step == 0 and job.sync.traits.synchronous:
        return "nothing was updated yet, so that it is the model as it begins that gives this, at any optimizer.lr"
    return what_may_help(job.sync)
