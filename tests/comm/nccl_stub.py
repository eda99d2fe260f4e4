"""A process group that behaves as torch's of nccl does, and a stream with events as CUDA has them, both on a CPU.

A collective is over once all workers have put their tensors into the run's store. Nobody is told of a death, no wait
has a timeout, and `wait` only makes the stream wait.
"""

import torch
import torch.distributed as dist


class Stream:
    """Keeps what this worker's GPU does, in order."""

    def __init__(self, comm):
        self.comm, self.after = comm, []

    def event(self):
        return Event(self)


class Event:
    def __init__(self, stream):
        self.stream = stream

    def record(self):
        self.recorded, self.after = self.stream.comm.now(), list(self.stream.after)

    def query(self):
        return all(work.is_completed() for work in self.after)

    @property
    def at(self):
        assert self.query(), "elapsed_time of an event that the stream has not come to"
        return max([self.recorded, *(work.ended for work in self.after)])

    def elapsed_time(self, other):
        return 1e3 * (other.at - self.at)


class Work:
    def __init__(self, group, tensor, number, reduce):
        self.group, self.tensor, self.reduce, self.ended = group, tensor, reduce, None
        self.number, self.keys = number, [f"{number}/{rank}" for rank in range(group.comm.size)]
        group.store.set(self.keys[group.comm.rank], tensor.numpy().tobytes())

    def is_completed(self):
        if self.ended is None:
            self.group.comm.key_values.post(f"polled {self.number}", "")
            if self.group.store.check(self.keys):
                parts = [self.group.store.get(key) for key in self.keys]
                like = self.tensor.dtype
                self.tensor.copy_(self.reduce([torch.frombuffer(bytearray(part), dtype=like) for part in parts]))
                self.ended = self.group.comm.now()
        return self.ended is not None

    def wait(self, *timeout):
        self.group.stream.after.append(self)
        return True

    def get_future(self):
        """Is complete at once, as a GPU's future is: whoever asks for its value waits in the stream."""
        self.wait()
        future = torch.futures.Future()
        future.set_result([self.tensor])
        return future


class Nccl:
    def __init__(self, comm, stream):
        self.comm, self.stream, self.made, self.aborted = comm, stream, 0, 0
        self.gloo = comm.group  # for messages, which go by way of the hosts
        self.store = dist.PrefixStore("nccl", comm.store)

    def allreduce(self, tensors, opts):
        return self._launched(tensors[0], lambda parts: torch.stack(parts).amax(0))

    def broadcast(self, tensors, opts):
        """Returns no work, as torch's own functions ask for it."""
        self._launched(tensors[0], lambda parts: parts[opts.rootRank]).wait()

    def send(self, *told):
        return self.gloo.send(*told)

    def recv(self, *told):
        return self.gloo.recv(*told)

    def _launched(self, tensor, reduce):
        self.made += 1
        return Work(self, tensor, self.made, reduce)

    def abort(self):
        self.aborted += 1


def on_gpus(comm):
    """Has `comm` take its worker for one on a GPU from now on. Returns its group of nccl."""
    stream = Stream(comm)
    group = Nccl(comm, stream)
    object.__setattr__(comm._worker, "event", stream.event)
    comm._worker.groups.of_nccl.append(group)
    comm.group, comm._sums = group, None
    comm.make_group = lambda *_: group
    return group
