"""Models whose forward or constructor looks at values, as ordinary PyTorch code does: [n, 8] -> [n, 2]."""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

FORWARDS = (
    "item",
    "branch",
    "finite",
    "mask",
    "nonzero",
    "unique",
    "tolist",
    "numpy",
    "formatted",
    "generator",
    "zeros",
    "from_numpy",
    "packed",
    "routed",
    "int_of_max",
    "where",
    "running",
    "loop",
    "sorted",
    "topk_item",
    "arange",
)
CONSTRUCTORS = (
    "linspace",
    "deviation",
    "largest",
    "buffer",
    "numpy_weights",
    "data_of_numpy",
    "orthogonal",
    "weight_norm",
    "spectral_norm",
    "clipped",
    "permuted",
    "rescaled",
)


class Looking(nn.Module):
    """Its forward looks at values in the way that `kind` says."""

    seen: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.gru = nn.GRU(2, 6, batch_first=True)
        self.register_buffer("seen", torch.zeros(()))
        if kind == "generator":
            self.draws = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.hidden(x)))

    def hidden(self, x: Tensor) -> Tensor:
        h = self.first(x)
        match self.kind:
            case "plain":
                return h
            case "item":
                return h * (1 + 0.01 * x.mean().item())
            case "branch":
                return h * 0.5 if x.max() > 1 else h
            case "finite":
                assert torch.isfinite(x).all()
                return h
            case "mask":
                return h + x[x > 0].mean()
            case "nonzero":
                return h.index_add(0, (x[:, 0] > 0).nonzero()[:, 0], h[x[:, 0] > 0])
            case "unique":
                return h / len(torch.unique(x.round()))
            case "tolist":
                return h + sum(x.mean(dim=0).tolist())
            case "numpy":
                return h * float(np.clip(x.detach().numpy(), 0, 1).mean())
            case "formatted":
                self.note = f"{x.mean():.3f}"
                return h
            case "generator":
                return h + 0.01 * torch.randn(h.shape, generator=self.draws)
            case "zeros":
                return h + torch.zeros(6)
            case "from_numpy":
                return h * torch.from_numpy(np.ones(6, dtype=np.float32))
            case "packed":
                lengths = 1 + (x[:, 0] > 0).long() * 3
                packed = pack_padded_sequence(x.view(-1, 4, 2), lengths.cpu(), batch_first=True, enforce_sorted=False)
                return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0].mean(dim=1)
            case "routed":
                chosen, out = h[:, :3].argmax(dim=1), torch.zeros_like(h)
                for i, expert in enumerate(self.experts):
                    rows = torch.where(chosen == i)[0]
                    out = out.index_add(0, rows, expert(h[rows]))
                return out
            case "int_of_max":
                return h[:, : max(6, int(x.abs().max()))]
            case "where":
                return torch.cat([h[torch.where(x[:, 0] > 0)], h[torch.where(x[:, 0] <= 0)]])
            case "running":
                self.seen.mul_(0.9).add_(0.1 * x.detach().abs().mean())
                return h / max(float(self.seen), 1e-3)
            case "loop":
                for _ in range(int((x[0, 0] > 0).item()) + 1):
                    h = torch.tanh(h)
                return h
            case "sorted":
                return h * sorted(x[:, 0].detach().cpu())[0]
            case "topk_item":
                return h * (h > h.flatten().topk(3).values[-1].item())
            case "arange":
                return h + torch.arange(6) / max(1, x.shape[0])
            case _:
                raise AssertionError(self.kind)


class Built(nn.Module):
    """Its constructor looks at values in the way that `kind` says."""

    scale: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        first, second = nn.Linear(8, 6), nn.Linear(6, 2)
        self.rate = 0.0
        match kind:
            case "linspace":
                self.rate = [r.item() for r in torch.linspace(0, 0.1, 3)][1]
            case "deviation":
                if first.weight.std() > 1:
                    nn.init.zeros_(first.bias)
            case "largest":
                self.rate = min(first.weight.abs().max().item(), 0.1)
            case "buffer":
                self.register_buffer("scale", torch.tensor([0.1, 0.2]))
                self.rate = float(self.scale[0])
            case "numpy_weights":
                with torch.no_grad():
                    first.weight.copy_(torch.from_numpy(np.random.default_rng(0).normal(size=(6, 8))).float())
            case "data_of_numpy":
                first.weight.data = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 8)).astype("float32"))
            case "orthogonal":
                first = parametrizations.orthogonal(first)
            case "weight_norm":
                first = parametrizations.weight_norm(first)
            case "spectral_norm":
                first = parametrizations.spectral_norm(first)
            case "clipped":
                first.weight.data = first.weight.data[first.weight.data < math.inf].view(6, 8)
            case "permuted":
                self.order = torch.randperm(6).tolist()
            case "rescaled":
                first.weight.data /= float(first.weight.norm())
            case _:
                raise AssertionError(kind)
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.dropout(torch.relu(self.first(x)), self.rate, self.training))
