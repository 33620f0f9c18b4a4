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
# # 3. How far scores and lengths spread
#
# A benchmark score is an average of right and wrong answers. If answers depend on the batch size,
# so does the score. By how much, and is that more than chance?

# %%
import os
from pathlib import Path

from nondet.analysis import analyse
from nondet.metrics.accuracy import binomial_se
from nondet.report import study_panels
from nondet.study import load_study

folder = Path(os.environ.get("NONDET_STUDY", "../tests/data/study"))
analysis = analyse(load_study([folder]), 0)
panels = study_panels([folder])

# %% [markdown]
# ## Accuracy by setting
#
# Bars are accuracies, lines their 95 % intervals. At the right: how many items turned right (+)
# and wrong (−) against the reference, and the p-value of McNemar's exact test, which asks whether
# the two numbers differ by more than chance. Look at the flips first: two settings can have the
# same accuracy and still disagree on many items.

# %%
panels["accuracy"]

# %% [markdown]
# ## Std@Acc
#
# Yuan and others (2025) summarise the spread as the sample standard deviation of the accuracy over
# settings. It is computed here from the counts of right answers, so that equal accuracies give
# exactly 0.

# %%
columns = ["group", "settings", "items", "value", "low", "high", "range", "binomial_se"]
analysis.std_at_acc[columns]

# %% [markdown]
# `binomial_se` is the yardstick: the standard error that the accuracy would have if every item were
# drawn anew. A spread as large as the yardstick means that changing the batch size is as bad as
# asking other questions. The paper's most quoted number reads like this:

# %%
print("Std@Acc of DeepSeek-R1-Distill-Qwen-7B on AIME'24, bf16: 9.15 points")
print(f"yardstick for 30 items at 45 %: {100 * binomial_se(0.45, 30):.1f} points")

# %% [markdown]
# ## Answers, best and worst
#
# `TARr@N` is the share of items whose responses are the same token by token in all N settings,
# `TARa@N` the share with the same final answer. The best possible accuracy counts an item when any
# setting got it right, the worst when all did.

# %%
answers = analysis.answers
answers[answers["kind"] == "all"][["metric", "value", "low", "high", "n"]]

# %% [markdown]
# ## Lengths
#
# Answers that part also end at different places. For each item: the shortest and the longest
# response over the settings. Where the token limit cuts most responses the lengths agree by force;
# `truncated_share` says how many were cut.

# %%
panels["lengths"]

# %%
columns = ["group", "settings", "items", "value", "low", "high", "truncated_share", "mean_length"]
analysis.avg_std_output_length[columns]
