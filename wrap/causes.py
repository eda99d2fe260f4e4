"""Causes of errors of torch's that end a wrapped script, which torch does not name."""

from ..engine.base.failures import ONE_SAMPLE, outside
from .shares import Own

OF_SEVERAL = {  # the beginning of an error of torch's, and its cause on several workers
    "SparseAdam does not support dense": "several workers exchange dense gradients. Choose torch.optim.Adam for these "
    "parameters, or one worker",
    "No inf checks were recorded": "a worker without a sample of the batch has no gradients. Choose drop_last=True for "
    "the loader, or sync=bsp",
}


def name_cause(error: BaseException, rank: int, workers: int, own: Own) -> None:
    """Adds a note of its cause to an error. `own`: the worker's share of the batch's samples."""
    if isinstance(error, IndexError) and (found := outside(error)):
        error.add_note(found)
    if isinstance(error, ValueError) and str(error).startswith(ONE_SAMPLE):
        error.add_note(
            f"worker {rank} of {workers} has {own[0]} of the batch's {own[1]} samples, and batch norm cannot train on "
            f"one. Choose a batch_size of {2 * workers} or more and drop_last=True for the loader, fewer workers, or a "
            "model with group norm"
        )
    for words, cause in OF_SEVERAL.items():
        if workers > 1 and str(error).startswith(words):
            error.add_note(cause)
