"""The metrics: token arrays in, numbers with intervals out. Pure NumPy and SciPy, no torch.

ragged, responses, load     arrays and run folders
prefix, divergence          where responses part; Div_Index, Div_Percent, unique outputs
survival                    Kaplan-Meier and cumulative incidence of agreement
accuracy, agreement         Std@Acc, best and worst accuracy, flips, TARr@N, TARa@N
length, probability, scan   spread of lengths and of the top-1 probability, |dlogprob|, KL
candidates, fork            near ties, gaps at the fork
rl                          sampling against training: k1, k2, k3, effective sample size
attribution, groups         which factor makes responses part
intervals                   Wilson, Clopper-Pearson, bootstrap over items, what a sample can show
paper_mode                  the published conventions
run_tables, setting_tables, verdict     tables and verdict of ``nondet.analysis``
sides, gate                 two runs side by side, for ``nondet.compare`` and ``nondet.check``
"""
