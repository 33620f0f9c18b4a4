"""The linear layers of one rank."""

from __future__ import annotations

from torch import Tensor, nn

from .group import Group
from .tree import column_product, leaf_products, tree_sum


class RowParallel(nn.Module):
    """A layer whose inputs are dealt out: every rank holds columns of W, and sums are exchanged.

    weight: (N, K / R). bias: (N,) whole on every rank, added once after the sum.
    leaves: of this rank's part of K; 0 leaves product and sum to torch: the partial sums are
        rounded to the model's type and added by the process group's all_reduce.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, group: Group, leaves: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.group, self.leaves = group, leaves

    def forward(self, x: Tensor) -> Tensor:
        """(..., K / R) -> (..., N), equal on every rank."""
        if not self.leaves:
            y = self.group.add(nn.functional.linear(x, self.weight))
            return y if self.bias is None else y + self.bias
        flat = x.reshape(-1, x.shape[-1])
        own = tree_sum(leaf_products(flat, self.weight, self.leaves))
        total = tree_sum(self.group.gather(own))
        if self.bias is not None:
            total = total + self.bias.float()
        return total.to(x.dtype).view(*x.shape[:-1], -1)


class ColumnParallel(nn.Module):
    """A layer whose outputs are dealt out; ``whole`` is how many there are on all ranks together.

    weight: (n, K), this rank's rows of W. bias: (n,).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, whole: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., n)."""
        flat = x.reshape(-1, x.shape[-1])
        y = column_product(flat, self.weight, self.bias, self.whole)
        return y.view(*x.shape[:-1], -1)
