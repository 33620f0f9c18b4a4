r"""Where a response states its answer: in ``\boxed{}``, after an answer phrase, or all of it.

Never the last number. Reading is linear in the length of the text.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\f?boxed\s*\{")
_PHRASE = re.compile(
    r"(?:^|[\s*_(>])(?:(?:the|my)\s+)?(?:(?:final|correct)\s+)?answer"
    r"(?:\s+is|\s*\**\s*[:=])\s*:?[\s*_]*",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"=\s*([^=\n]{1,80}?)\s*\Z")
_END = re.compile(r"\n|\.(?=\s|\Z)|[;!?](?=\s|\Z)|\*\*|,\s+[a-zA-Z]")
_SHORT = 80  # characters of a response that is nothing but its answer


def boxes(text: str) -> tuple[list[str], bool]:
    """Contents of the outermost boxes in order, and whether the last one is left open."""
    found: list[str] = []
    place = 0
    while opened := _BOX.search(text, place):
        end = _closing(text, opened.end())
        if end is None:
            return found, True
        found.append(text[opened.end() : end].strip())
        place = end + 1
    return found, False


def _closing(text: str, start: int) -> int | None:
    depth, place = 1, start
    for brace in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            place = start + brace.start()
            return place
    return None


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
    phrases = [_span(final, match.end()) for match in _PHRASE.finditer(final)]
    complete = [span for span, ended in phrases if span and (ended or not truncated)]
    if complete or truncated:
        return complete
    closing = final.strip()
    last = closing.rsplit("\n", 1)[-1]
    equals = _EQUALS.search(last[-200:])
    if equals:
        return [equals[1].rstrip(".").strip()]
    return [closing] if closing and len(closing) <= _SHORT and "\n" not in closing else []


def _span(text: str, start: int) -> tuple[str, bool]:
    end = _END.search(text, start)
    stop = end.start() if end else len(text)
    return text[start:stop].strip().strip("*_").strip(), end is not None
