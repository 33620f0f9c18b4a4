"""Marking: a pure function of the text, so that the marker adds no noise of its own."""

from nondet.marking.base import Answered, Mark, Marker, Outcome
from nondet.marking.registry import MARKERS, get_marker
from nondet.marking.table import mark_table

__all__ = ["MARKERS", "Answered", "Mark", "Marker", "Outcome", "get_marker", "mark_table"]
