"""Prompt texts as data, with where they come from.

The paper's own prompts (Yuan et al., arXiv 2506.09501v2, appendix A) are those of SkyThought, from
which its evaluation is derived; they are taken from there, NovaSky-AI/SkyThought (Apache-2.0),
skythought/tools/tasks/*/*.yaml and livecodebench.yaml at 9d64fd1, because a reproduction must ask
the same question. All others are ours.
"""

from __future__ import annotations

SOURCES = {
    "boxed": "SkyThought aime.yaml (regular_template), math500.yaml; paper A.1",
    "boxed_after": "SkyThought aime.yaml (sky_template)",
    "letter": "SkyThought gpqa_diamond.yaml; options joined as in gpqa_diamond_handler.py",
    "stdin": "SkyThought livecodebench.yaml (stdin_template); paper A.2",
    "function": "SkyThought livecodebench.yaml (non_stdin_template); paper A.2",
    "complete": "ours",
    "options": "ours",
    "tagged": "ours",
}
PROMPTS = {
    "boxed": "Return your final response within \\boxed{}. %(problem)s",
    "boxed_after": "%(problem)s\nReturn your final response within \\boxed{}",
    "letter": (
        "Return your final response within \\boxed{} and only include the letter choice "
        "(A, B, C, or D) as your final response. %(question)s\n%(options)s"
    ),
    "stdin": (
        "Generate an executable Python function generated from the given prompt. The function "
        "should take stdin as input and print the output. Simply call the function after the "
        "definition. %(problem)s"
    ),
    "function": (
        "Generate an executable Python function generated from the given prompt. Return the "
        "function body without invoking it at the final solution. %(problem)s"
    ),
    "complete": (
        "Complete this Python function. Reply with the whole function in one ```python block."
        "\n\n%(problem)s"
    ),
    "options": (
        "%(question)s\n\n%(options)s\n\n"
        "Think it through, then end with one line: Answer: X, where X is the letter."
    ),
    "tagged": "%(problem)s\n\nWrite the final answer between <answer> and </answer>.",
}


def fill(name: str, **fields: str) -> str:
    """A prompt with its fields filled in; braces in the fields stay as they are."""
    return PROMPTS[name] % fields
