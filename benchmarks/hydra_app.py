"""A script as a user of Hydra's multirun would write it: each job spawns two workers that train digits by torch DDP.

python -m benchmarks.hydra_app --multirun +lr=0.1,0.05 +epochs=1 prints of each job how many seconds its training loop
took, and when it ended.
"""

import os
import socket
import time
from typing import Any

import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 32


def work(rank: int, port: int, lr: float, epochs: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    digits: Any = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32)[rank:1437:2] / 16
    y = torch.tensor(digits.target)[rank:1437:2]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9)
    start = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for i in range(0, len(x), BATCH):
            taken = order[i : i + BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(replica(x[taken]), y[taken]).backward()
            optimizer.step()
    if rank == 0:
        print(f"loop {time.perf_counter() - start} {time.time()}", flush=True)
    dist.barrier()
    os._exit(0)  # torch's destructors abort now and then


@hydra.main(version_base="1.3", config_path=None)
def main(config: DictConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, float(config.lr), int(config.epochs)), nprocs=2)


if __name__ == "__main__":
    main()
