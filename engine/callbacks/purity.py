"""Measures how well the clusters of k-means match the classes of labelled data, at each evaluation.

Of N test samples, with omega_j those whose nearest centre is j and c_i those of class i,

    purity = 1/N sum_j max_i |omega_j and c_i|

Source: Manning, Raghavan and Schuetze, "Introduction to Information Retrieval", 2008, section 16.3, equation 182. It is
1 with a centre for each sample, so it compares runs with as many centres.
"""

import torch
from torch import nn

from ...batches import call
from ...tasks.models.kmeans import KMeans
from .base import Callback, EvaluationView, Metrics

AT_ONCE = 512  # samples


class Purity(Callback):
    """Records the purity of clusters. Labels are read by the evaluation alone: training does not look at them."""

    def check_model(self, model: nn.Module) -> None:
        if not isinstance(model, KMeans):
            raise ValueError("looks at clusters, which model=kmeans has; leave this callback out")
        if not model.labelled:
            raise ValueError("counts a label for each sample, and these data have other targets; leave it out")

    def each_evaluation(self, view: EvaluationView) -> Metrics:
        clusters: list[torch.Tensor] = []
        labels: list[torch.Tensor] = []
        for first in range(0, len(view.test), AT_ONCE):
            taken = view.test.take(slice(first, first + AT_ONCE))
            clusters.append(call(view.model, taken.inputs.to(view.device))[:, 1:].argmin(dim=1).cpu())
            labels.append(taken.targets)
        return {"purity": purity(torch.cat(clusters), torch.cat(labels))}


def purity(clusters: torch.Tensor, labels: torch.Tensor) -> float:
    """Both [n] int64."""
    classes = int(labels.max()) + 1
    table = torch.bincount(clusters * classes + labels, minlength=(int(clusters.max()) + 1) * classes)
    return table.view(-1, classes).amax(dim=1).sum().item() / len(labels)
