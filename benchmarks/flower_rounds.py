"""Rounds of Flower's FedAvg in its simulation, with clients that send back what they got.

Run by fedavg.py with a Python that has `flwr[simulation]`: CLIENTS ENTRIES ROUNDS. Prints each round's seconds as JSON.
"""

import json
import sys
import time
from itertools import pairwise

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # pyright: ignore[reportMissingImports]
from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
from flwr.serverapp import Grid, ServerApp  # pyright: ignore[reportMissingImports]
from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]
from flwr.simulation import run_simulation  # pyright: ignore[reportMissingImports]

clients, entries, rounds = map(int, sys.argv[1:])
client_app, server_app = ClientApp(), ServerApp()
closed: list[float] = []


@client_app.train()
def train(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(entries, dtype=np.float32)]),
        num_rounds=rounds + 1,  # the first one starts Ray's actors
        evaluate_fn=lambda number, arrays: closed.append(time.perf_counter()),
    )


run_simulation(server_app, client_app, clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
print(json.dumps([end - start for start, end in pairwise(closed[1:])]))
