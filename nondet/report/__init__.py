"""Reports: everything in them is computed again from the run folders.

>>> from nondet.report import write_report
>>> write_report([Path("outputs/latest")], Path("outputs/latest/report"))
"""

from nondet.report.write import ReportResult, write_report

__all__ = ["ReportResult", "write_report"]
