"""The matrix of Yuan et al. (NeurIPS 2025, arXiv 2506.09501): run it, or as much as fits.

matrix.py    a scale (scales/*.yaml) as cells, one a run; the factors come from configs/sweep
missing.py   what a cell needs that is not here
estimate.py  tokens, GPU hours and disk of a scale, from the assumptions in speeds.yaml
launch.py    run the cells here or through a launcher; cells.json says what became of each
numbers.py   the metrics of groups of runs, all from nondet.metrics
tables.py    the paper's tables, ours beside published (tables.yaml maps them to cells)
figures.py   the paper's figures; forks.py: one place where answers part
ordering.py  does the published ordering hold, with intervals; claims.py: in words
page.py      the page, the Markdown and the files of a report
h200.py      a scale without Hydra, many runs at once on one or two GPUs
pack.py      stored runs made small enough for git
"""
