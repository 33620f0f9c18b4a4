"""Reports: everything in them is computed again from the run folders.

>>> from nondet.report import write_report
>>> write_report([Path("outputs/latest")], Path("outputs/latest/report"))
"""

from nondet.report.write import ReportResult, study_panels, write_report

__all__ = ["ReportResult", "study_panels", "write_report"]
