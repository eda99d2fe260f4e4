"""What is cut of each stage of a pipeline."""

from collections import Counter
from collections.abc import Sequence

from torch import nn

from .find import Kind, kinds_of, vocabulary_of


def kinds_of_stages(
    model: nn.Module, stages: Sequence[nn.Module], degree: int, vocabulary: bool
) -> list[dict[str, Kind]]:
    """By name, as `find.kinds_of` says it of a whole model: pairs within a stage, and the model's `vocabulary`.

    A weight that several stages share is cut alike in all of them: as part of the vocabulary, or not at all. Raises
    `LayoutError` for what cannot be cut into `degree` pieces.
    """
    held = Counter(name for stage in stages for name, _ in stage.named_parameters())
    shared = {name for name, times in held.items() if times > 1}
    words = vocabulary_of(model) if vocabulary else []
    found: list[dict[str, Kind]] = []
    for stage in stages:
        layers = dict(stage.named_modules(remove_duplicate=False))
        # where a stage shares the embedding's matrix alone, there is a name, and no layer
        own = [name for name in words if isinstance(layers.get(name), nn.Linear | nn.Embedding)]
        found.append(kinds_of(stage, degree, vocabulary=own, whole=shared))
    return found
