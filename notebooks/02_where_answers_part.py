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
# # 2. Where answers part
#
# Two runs of the same model on the same questions, with nothing changed but the batch size: up to
# which token do they say the same? This notebook reads a small study stored with the project.
# `README.md` in its folder says which model, which questions and which machine. To look at a study
# of your own, set the environment variable `NONDET_STUDY` to its folder, for example
# `outputs/latest`.

# %%
import os
from pathlib import Path

from IPython.display import display

from nondet.analysis import analyse
from nondet.report import study_panels
from nondet.study import load_study

folder = Path(os.environ.get("NONDET_STUDY", "../tests/data/study"))
study = load_study([folder])
analysis = analyse(study, 0)
print(analysis.verdict)
for reason in analysis.reasons:
    print("-", reason)

# %% [markdown]
# ## First the control
#
# Before we blame the batch size we must know that the *same* setting, run again in a fresh
# process, gives the same answers. A study repeats at least one setting for that.

# %%
analysis.controls

# %% [markdown]
# ## How many answers change?
#
# Each run is compared with a reference that has the same number format. A mark says which share
# of the items got another response; the line is its 95 % interval (Wilson's). With few items the
# line is long: that is what few items can tell.

# %%
panels = study_panels([folder])
panels["diverged"]

# %% [markdown]
# ## How long do they agree?
#
# The *divergence* of an item is the first token, counted from 0, at which two responses differ.
# A response that ends, or is cut by the token limit, before anything differed is not proof of
# agreement for ever: we only know that it agreed that far. Medicine has the same problem, patients
# who leave a trial before it ends, and solved it in 1958: the Kaplan–Meier curve. It shows the
# share that still agrees after each token, using every response as far as it was seen.

# %%
panels["survival"]

# %% [markdown]
# The small numbers below the curve say how many responses were still compared at that token. A
# curve that rests on three responses is not worth much, and its band says so.
#
# The other question is: of all items, which share ever gets another answer? There, a response that
# ends identical has *finished*; it cannot diverge any more.

# %%
panels["incidence"]

# %% [markdown]
# ## Item by item
#
# The same without any curve: each row is an item, each column a token. Blue agrees with the
# reference. The tick marks the first fork.

# %%
for name, panel in panels.items():
    if name.startswith("raster"):
        display(panel)

# %% [markdown]
# ## Is it rounding, or is it a bug?
#
# If rounding is to blame, forks happen where the two best candidates are nearly tied: the gap
# between them is smaller than the noise that rounding puts on the log-probabilities. A fork with
# a wide gap is something else, and worth a look at the engine.

# %%
panels["fork_gap"]
