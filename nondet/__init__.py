"""nondet: how much a language model's answers depend on things that should not matter."""

__version__ = "0.1.0"
