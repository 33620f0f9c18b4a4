# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Floating-point addition is not associative
#
# A language model with temperature 0 always takes the most probable next token. Ask it the same
# question twice and you expect the same answer. Yet the answer may change with the number of
# *other* questions that happen to be in the same batch. This notebook shows the root of that, with
# nothing but additions.

# %% [markdown]
# ## Numbers that disappear
#
# A float keeps about 16 decimal digits. Beside 10²⁰ there is no room left for 0.1:

# %%
print((0.1 + 1e20) - 1e20)
print(0.1 + (1e20 - 1e20))

# %% [markdown]
# The same three numbers, added in another order, give 0.0 or 0.1. Mathematics says that the order
# of a sum does not matter; for floats it does.

# %% [markdown]
# ## Eight numbers, how many sums?
#
# Four numbers of very different size and their opposites add up to exactly 0. A well-known
# demonstration (Horace He and others, Thinking Machines Lab, 2025) shuffles such numbers 10,000
# times and counts 102 different sums. There are only 8! = 40,320 orders in which eight numbers can
# be added one after the other, so we try them all.

# %%
from collections import Counter
from functools import reduce
from itertools import permutations
from operator import add

sizes = [1e-10, 1e-5, 1e-2, 1.0]
numbers = sizes + [-size for size in sizes]
sums = Counter(reduce(add, order) for order in permutations(numbers))
print(f"{len(sums)} different sums; exactly 0 in {sums[0.0] / sums.total():.0%} of the orders")
print("largest:", max(sums))

# %% [markdown]
# One sum, hundreds of results, and none of them is a mistake: each is what IEEE arithmetic
# prescribes for its order. (How many there are depends on the numbers and on the precision. We add
# with `reduce`, because from Python 3.12 on the built-in `sum` keeps track of the rounding errors
# and would hide the effect.)

# %% [markdown]
# ## One row, alone or among 2,048
#
# A model is mostly matrix products, and each element of a product is a long sum. A fast program
# picks the order of that sum by the *shape* of the matrices: how many rows there are decides how
# the work is cut into pieces. So we multiply one row with a matrix, once alone and once as the
# first of 2,048 rows. Mathematically the two results are the same row.

# %%
import platform

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
rows = torch.randn(2048, 1024)
weights = torch.randn(1024, 1024)


def alone_and_among(dtype: torch.dtype) -> tuple[int, float]:
    """Elements of the first row that change with company, and by how much at most."""
    batch, matrix = rows.to(dtype), weights.to(dtype)
    alone = torch.mm(batch[:1], matrix)[0]
    among = torch.mm(batch, matrix)[0]
    difference = (alone - among).abs().float()
    return int((difference != 0).sum()), float(difference.max())


for dtype in (torch.bfloat16, torch.float32):
    changed, largest = alone_and_among(dtype)
    print(f"{dtype}: {changed} of 1024 elements differ, by up to {largest:.3g}")
print("on", platform.machine(), "with torch", torch.__version__)

# %% [markdown]
# How many elements differ depends on the processor and on the library: on some machines it is
# none for one of the two formats. Two things hold everywhere:
#
# * **Running the same thing twice gives the same bits.** There is no randomness here.

# %%
assert torch.equal(torch.mm(rows, weights), torch.mm(rows, weights))

# %% [markdown]
# * **The difference is one of rounding.** It is as small as the number format is fine: bf16 keeps
#   8 significant bits, float32 keeps 24.
#
# ## From a rounding error to another answer
#
# A rounding error changes the probabilities a little. Most of the time the most probable token
# stays the same. But every few hundred tokens the two best candidates are nearly tied, and then a
# tiny difference decides. From that token on, the model reads another text and writes another
# answer. [The next notebook](02_where_answers_part.ipynb) looks at where that happens.
#
# The cure is to fix the order of every sum whatever the shape: *batch-invariant* kernels.

# %%
from nondet.invariant import invariant_kernels

with invariant_kernels():
    for dtype in (torch.bfloat16, torch.float32):
        changed, largest = alone_and_among(dtype)
        print(f"invariant kernels, {dtype}: {changed} of 1024 elements differ")
        assert changed == 0
