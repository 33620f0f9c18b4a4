"""Tensor parallelism for backend=hf: one process a rank, and sums that do not depend on how many.

``check``  what a model and a number of ranks must have in common, before anything starts
``tree``   the fixed order of additions: leaves of K, added by a binary tree
``layers`` the linear layers of one rank
``shard``  cutting a loaded model by its own ``tp_plan``
``group``  the ranks as one rank sees them: sums, gathers, agreement
``team``   rank 0 starts the others, feeds them and notices when one dies
``rank``   the main program of ranks 1 and up
"""
