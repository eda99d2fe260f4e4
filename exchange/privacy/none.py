"""Nothing is done so that a model gives away little of the data that it was trained on.

Use it where the data are public, or whoever gets the model, or a part of it, may know them.

Equation: g <- g.

Source: none is needed.
"""

from ...strategies.core.privacy import Privacy


class NoPrivacy(Privacy): ...
