"""Write recall.jsonl, the default task: read one or two facts, give one number, go on with a story.

    python nondet/tasks/data/make_recall.py

Procedural, from one seed; item i does not depend on how many are made. A small model is right in
20 to 80 % of the items, and the story gives every response room to part.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

SEED = 20261129
ITEMS = 128
NAMES = ("Anna", "Ben", "Chen", "Dana", "Emil", "Fay", "Gita", "Hugo", "Ines", "Jonas")
THINGS = ("apples", "books", "coins", "marbles", "pens", "shells", "stamps", "stones")


def make_item(number: int) -> dict[str, str]:
    """Item ``number``, counted from 0."""
    rng = random.Random(f"{SEED}:{number}")
    many = 1 + number % 2
    names, things = rng.sample(NAMES, many), rng.sample(THINGS, many)
    counts = rng.sample(range(2, 60), many)
    asked = rng.randrange(many)
    facts = " ".join(f"{n} has {c} {t}." for n, c, t in zip(names, counts, things, strict=True))
    name, thing = names[asked], things[asked]
    prompt = (
        f"{facts} How many {thing} does {name} have? "
        f'Write "The answer is" and the number. Then write a short story about {name}.'
    )
    return {"id": f"recall-{number:03d}", "prompt": prompt, "answer": str(counts[asked])}


def main() -> None:
    """Write the file beside this script."""
    lines = [json.dumps(make_item(number)) + "\n" for number in range(ITEMS)]
    Path(__file__).with_name("recall.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()
