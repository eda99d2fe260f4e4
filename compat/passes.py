"""Passes of torch that are under way in this thread, and modes of torch that a thread keeps."""

import torch

_C = torch._C


def is_within_pass() -> bool:
    """Returns True in a backward pass, under autocast, in inference mode, and under modes that see every operation."""
    return (
        _C._current_graph_task_id() != -1
        or _C._len_torch_dispatch_stack() > 0
        or _C._len_torch_function_stack() > 0
        or torch.is_autocast_enabled("cpu")
        or torch.is_inference_mode_enabled()
    )
