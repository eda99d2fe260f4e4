"""Tells by their messages which errors of CUDA's libraries say that a GPU has no memory left. They have no class.

These libraries take memory beside torch's allocator (pytorch #128601). NCCL does so as it connects and with each new
kind of call, and says so in the last line of a longer message (NVIDIA/nccl #1235, rwth-i6/returnn #1626).
"""

_SIGNS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 'out of memory'",
    "Cuda failure 2 'out of memory'",
)


def says_full(message: str) -> bool:
    return any(sign in message for sign in _SIGNS)
