"""A training loop of one's own, on paceline's replicas and under its meters. See docs/wrap.md.

>>> from paceline.wrap import wrap
>>> with wrap(model, optimizer, loader, "sync=local_sgd", name="mine") as run:
...     for batch in run.loader:
...         run.optimizer.zero_grad()
...         run.backward(run.model(**batch).loss)
...         run.optimizer.step()
"""

from .errors import ScriptError
from .run import Run, wrap

__all__ = ["Run", "ScriptError", "wrap"]
