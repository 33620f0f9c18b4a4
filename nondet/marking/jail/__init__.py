"""The confined side of the sandbox. Standard library only: it runs in an interpreter of its own."""
