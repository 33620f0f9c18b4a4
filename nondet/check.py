"""A gate for continuous integration: ``python -m nondet.check A B`` or ``... check STUDY``.

With two folders: did anything change from A to B? With one: do the settings and repeats of this
study agree? Prints the verdict and its reasons. Exit codes: 0 identical, 1 different, 2 usage,
3 inconclusive.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from nondet.compare import compare, finer, parser, write_outputs
from nondet.metrics.gate import USAGE, Gate, Matched, decide, rows_differing, undecided
from nondet.metrics.run_tables import run_labels
from nondet.metrics.sides import compare_stored
from nondet.study import Study, StudyError, load_study


def check_study(
    study: Study, *, level: str = "tokens", rate: float = 0.1, allow: float = 0.0
) -> Gate:
    """Every complete run of one study against its first; repeats are the control.

    Raises:
        StudyError: runs do not answer the same items.
    """
    labels = run_labels(study)
    missing = [
        f"{labels[run.id]} did not complete: {run.record.get('reason')}." for run in study.failed
    ]
    missing += study.absent()
    runs = study.complete
    if len(runs) < 2:
        missing.append(f"{len(runs)} complete runs: there is nothing to compare.")
    matched, controls, sentences = [], [], []
    for run in runs[1:]:
        # A repeat is compared with the first run of its own setting: that is the control.
        key = study.setting_key(run)
        base = next(other for other in runs if study.setting_key(other) == key)
        try:
            if base.id != run.id:
                found = compare_stored(base, run)
                controls.append((rows_differing(found, level), found.items, labels[run.id]))
                sentences += finer(found, labels[run.id], level)
                if key == study.setting_key(runs[0]):
                    missing += [f"{labels[run.id]}: {words}" for words in undecided(found, level)]
            if key != study.setting_key(runs[0]):
                label = f"{labels[runs[0].id]} and {labels[run.id]}"
                found = compare_stored(runs[0], run)
                matched.append(Matched(label, runs[0].id, run.id, found))
        except ValueError as error:
            raise StudyError(f"{run.folder}: not comparable, {error}") from None
    items = len(set(runs[0].item_ids)) if runs else 0
    code, reasons = decide(matched, controls, items, missing, level=level, rate=rate, allow=allow)
    return Gate(code, [*reasons, *sentences], level, rate, items, matched, allow=allow)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    made = parser("check", "Fail when responses changed, between two studies or within one.")
    made.add_argument("a", type=Path)
    made.add_argument("b", type=Path, nargs="?")
    options = made.parse_args(arguments)
    chosen = {"level": options.level, "rate": options.rate, "allow": options.allow}
    try:
        a = load_study([options.a])
        if options.b is None:
            gate = check_study(a, **chosen)
        else:
            gate = compare(a, load_study([options.b]), **chosen)
        write_outputs(gate, options, {"a": str(options.a), "b": options.b and str(options.b)})
    except (StudyError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    print(gate.word)
    for reason in gate.reasons:
        print(f"  {reason}")
    return gate.exit_code


if __name__ == "__main__":
    sys.exit(main())
