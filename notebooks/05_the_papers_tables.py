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
# # 5. The paper's tables, recomputed
#
# Yuan and others (NeurIPS 2025, arXiv 2506.09501) publish accuracies for some of their settings,
# and the standard deviation over them. `results/published/` holds what is printed. Here we compute
# the deviations again with nondet's own function and look at what does not fit.

# %%
from pathlib import Path

import numpy as np
import pandas as pd

from nondet.metrics.accuracy import binomial_se, std_of_counts

folder = Path("../results/published")
accuracies = pd.read_csv(folder / "accuracies.csv", dtype={"printed_std": str})
accuracies.head(3)

# %% [markdown]
# ## Std@Acc from the printed accuracies
#
# The published scorer rounds accuracies before it takes the deviation; the column `scored` holds
# them so rounded, `correct` the number of right responses behind them. `rounded` repeats the
# paper's way, `exact` starts from the counts. The yardstick is the standard error that independent
# draws would have.

# %%
rows = []
for (source, model, task, dtype), part in accuracies.groupby(
    ["source", "model", "task", "dtype"], sort=False
):
    printed, n = part["printed_std"].iloc[0], int(part["responses"].iloc[0])
    scale = 100 if part["unit"].iloc[0] == "percent" else 1
    digits = len(printed.partition(".")[2])
    counts = part["correct"].tolist()
    spread = np.std(part["scored"], ddof=1) if part["correct"].nunique() > 1 else 0.0
    rows.append(
        {
            "table": source,
            "model": model,
            "task": task,
            "dtype": dtype,
            "settings": len(part),
            "printed": printed,
            "rounded": f"{spread:.{digits}f}",
            "exact": round(scale * std_of_counts(counts, n), digits + 1),
            "yardstick": round(scale * binomial_se(np.mean(counts) / n, n), digits + 1),
        }
    )
table = pd.DataFrame(rows)
assert (table["printed"] == table["rounded"]).all()
table

# %% [markdown]
# Every printed deviation comes out again, to the last printed digit. Where `exact` differs in that
# digit, the difference is the scorer's rounding and nothing else.
#
# Read the last column too: for 30 items in bf16 the deviation is as large as the yardstick, so the
# batch size moves the score as much as other questions would. In fp32 it is far below.

# %% [markdown]
# ## What does not fit
#
# Typing tables in by hand and checking them against each other finds contradictions. They are
# marked wherever nondet prints a published number beside its own.

# %%
pd.read_csv(folder / "suspects.csv").fillna("")

# %% [markdown]
# ## The twelve settings as summary values

# %%
values = pd.read_csv(folder / "values.csv")
spread = values[values["metric"] == "std_at_acc"]
spread.pivot_table(index=["task", "model"], columns="dtype", values="value", sort=False)
