"""Comparing schemes: a plan, its runs, one table of results, few tests, and a report.

`plan_file` reads a `plan`. `executor` runs it; `run` makes one run, on data from `tasks` and `probes`, and `baselines`
measures what has to be beaten. `results` holds what was written, as one table; `statistics` computes means and tests,
and `report` writes the report.
"""

from .executor import execute
from .plan import Plan
from .plan_file import read_plan
from .report import Comparison, write_report
from .results import load_plan, read_table

__all__ = ["Comparison", "Plan", "execute", "load_plan", "read_plan", "read_table", "write_report"]
