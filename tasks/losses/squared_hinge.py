"""The squared hinge loss of each class against all others: with model=linear, a support vector machine with a smooth
loss.

Fan, Chang, Hsieh, Wang, Lin 2008, "LIBLINEAR: A Library for Large Linear Classification", JMLR 9, equation 2 with
xi = max(0, 1 - y w^T x)^2 (L2-loss), one such problem for each class r (their section 2.2, one-vs-the-rest):

    l(f, y) = sum_r max(0, 1 - s_r f_r)^2,  s_r = 1 where r = y, else -1

as a mean over the predictions. It is what scikit-learn's LinearSVC minimises unless it is told otherwise. Unlike the
hinge it has a gradient everywhere, so that gradient descent with a fixed rate goes to its minimum.

The regulariser beta / 2 |W|^2 is `optimizer.weight_decay` = beta, as of the hinge loss (hinge.py).
"""

from torch import Tensor

from .hinge import MarginTask, one_vs_rest


class SquaredHinge(MarginTask):
    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return one_vs_rest(outputs, targets).square().sum(dim=-1)
