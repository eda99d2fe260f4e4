"""Schedules of a user's own."""


def v_shaped(workers, micro_batches, chunks):
    """Worker i has stage i and, on the way back, stage 2 p - 1 - i: the last worker hands on to itself."""
    forward = [[f"{s}F{j}" for j in range(micro_batches)] for s in range(2 * workers)]
    backward = [[f"{s}B{j}" for j in range(micro_batches)] for s in range(2 * workers)]
    return [forward[i] + forward[-1 - i] + backward[-1 - i] + backward[i] for i in range(workers)]


def broken(workers, micro_batches, chunks):
    raise KeyError("nothing here")
