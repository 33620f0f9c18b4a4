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
# # 4. Reading a study in pandas
#
# A study is a folder, a run is a folder in it, and a run holds two files: `run.json` says what was
# asked for and what was in force, `tokens.parquet` has one row a response. Nothing more is needed,
# and any tool that reads Parquet can read it.

# %%
import os
from pathlib import Path

import numpy as np
import pandas as pd

from nondet.study import load_study

folder = Path(os.environ.get("NONDET_STUDY", "../tests/data/study"))
study = load_study([folder])
pd.DataFrame(
    {"run": run.id, "setting": study.label(run), "repeat": run.repeat, "status": run.status}
    for run in study.runs
)

# %% [markdown]
# ## All responses in one table

# %%
columns = ["item_id", "tokens", "text", "finish_reason", "logprobs", "answer", "correct"]
responses = pd.concat(
    run.table(columns).to_pandas().assign(setting=study.label(run), repeat=run.repeat)
    for run in study.complete
)
responses["length"] = responses["tokens"].map(len)
responses.groupby(["setting", "repeat"]).agg(
    items=("item_id", "nunique"), length=("length", "mean"), right=("correct", "mean")
)

# %% [markdown]
# ## How many different responses does an item get?
#
# Token lists as tuples can be counted. One distinct response means that all runs agree.

# %%
distinct = responses.groupby("item_id")["tokens"].agg(lambda rows: len(set(map(tuple, rows))))
distinct.sort_values(ascending=False).rename("different responses").to_frame().head()

# %% [markdown]
# ## A fork, by hand
#
# The item with the most responses, in two settings that differ: where do they part, and what were
# the candidates? `top_ids` and `top_logprobs` hold the K best candidates of every token, row by
# row, so they become a matrix of T tokens x K candidates.

# %%
item = distinct.idxmax()
rows = responses[(responses["item_id"] == item) & (responses["repeat"] == 0)]
first = rows.iloc[0]
other = next(
    (row for _, row in rows.iterrows() if not np.array_equal(row["tokens"], first["tokens"])), first
)
common = min(first["length"], other["length"])
differs = first["tokens"][:common] != other["tokens"][:common]
fork = int(np.argmax(differs)) if differs.any() else common
print(f"{item}: {first['setting']} and {other['setting']} part at token {fork}")
print("...", repr(first["text"][:70]))
print("...", repr(other["text"][:70]))


# %%
def candidates(setting: str) -> pd.DataFrame:
    """The candidates of one setting at the fork."""
    run = next(run for run in study.complete if study.label(run) == setting)
    row = run.table().filter(pd.Series(run.item_ids).eq(item).to_numpy()).slice(0, 1).to_pylist()[0]
    ids = np.array(row["top_ids"]).reshape(-1, run.top_k)
    logprobs = np.array(row["top_logprobs"]).reshape(-1, run.top_k)
    place = min(fork, len(ids) - 1)
    table = pd.DataFrame({"token": ids[place], "logprob": logprobs[place]})
    return table.assign(probability=np.exp(table["logprob"]))


pd.concat({name: candidates(name) for name in (first["setting"], other["setting"])}, axis=1)

# %% [markdown]
# Two candidates within a few thousandths of each other, in opposite order on the two sides: that
# is a fork caused by rounding. The report's viewer shows the same for every item:
# `python -m nondet.report outputs/latest`.
