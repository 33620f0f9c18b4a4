r"""Where a response states its answer: in ``\boxed{}``, after an answer phrase, or all of it.

Never the last number. Reading is linear in the length of the text.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\f?boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_PHRASE = re.compile(
    r"(?<![^\W_])answer(?:[ ]{1,3}is|[ ]{0,3}\*{0,3}[ ]{0,3}[:=])[ ]{0,3}:?[\s*_]{0,9}",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"=\s*([^=\n]{1,80}?)\s*\Z")
_END = re.compile(r"\n|\.(?=\s|\Z|\*)|[;!?](?=\s|\Z)|\*\*|,\s+(?:[a-zA-Z]{2,})")
_LONGEST = 2000  # characters looked at after an answer phrase
_SHORT = 80  # characters of a response that is nothing but its answer


def boxes(text: str) -> tuple[list[str], bool]:
    """Contents of the outermost boxes in order, and whether the last one is left open.

    A box that holds nothing but a box is opened up.
    """
    found: list[str] = []
    place = 0
    while opened := _BOX.search(text, place):
        end = _closing(text, opened.end())
        if end is None:
            return found, True
        found.append(_unwrapped(text[opened.end() : end].strip()))
        place = end + 1
    return found, False


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def _unwrapped(text: str) -> str:
    while opened := _BOX.match(text):
        end = _closing(text, opened.end())
        if end is None or end != len(text) - 1:
            break
        text = text[opened.end() : end].strip()
    return text


def after_thought(text: str) -> str | None:
    """What follows a finished chain of thought; None when it was opened and never closed."""
    _head, mark, tail = text.rpartition("</think>")
    if mark:
        return tail
    return None if text.lstrip().startswith("<think>") else text


def answer_spans(text: str, truncated: bool = False) -> list[str]:
    """Texts that the response gives as its answer; several when it gives several.

    Boxes win over phrases, phrases over a closing "= value", that over a response of one short
    line. A box that is left open, and anything at the cut end of a truncated response, does not
    count: the number there may lack digits.
    """
    final = after_thought(text)
    if final is None:
        return []
    found, left_open = boxes(final)
    if found or left_open:
        return [] if left_open else found
    phrases = _spans(final)
    complete = [span for span, ended in phrases if span and (ended or not truncated)]
    if complete or truncated:
        return complete
    closing = final.strip()
    last = closing.rsplit("\n", 1)[-1]
    equals = _EQUALS.search(last[-200:])
    if equals:
        return [equals[1].strip().removesuffix(".").strip()]
    return [closing] if closing and len(closing) <= _SHORT and "\n" not in closing else []


def _spans(text: str) -> list[tuple[str, bool]]:
    """What follows each answer phrase, and whether it was seen to end there.

    A phrase within what follows another one takes its place ("the answer is: the answer is 5").
    """
    found = list(_PHRASE.finditer(text))
    spans = []
    for match, later in zip(found, [*found[1:], None], strict=False):
        start = match.end()
        # A longer answer than that is none, and looking for its end must not cost the whole text.
        limit = min(len(text), start + _LONGEST, later.start() if later else len(text))
        end = _END.search(text, start, limit)
        if end is None and later is not None and limit == later.start():
            continue
        stop = end.start() if end else limit
        spans.append((text[start:stop].strip().strip("*_").strip(), end is not None))
    return spans
