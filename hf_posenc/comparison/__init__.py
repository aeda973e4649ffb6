"""Comparing schemes: a plan, its runs, one table of results, few tests, and a report.

`plan_file` reads a `plan`. `executor` runs it; `run` makes one run, on data from `tasks` and `probes`, and `baselines`
measures what has to be beaten. `results` holds what was written, as one table; `statistics` computes means and tests,
and `report` writes the report. `compare` is the public door to all.
"""

from .compare import Comparison
from .executor import execute
from .plan import Plan
from .plan_file import read_plan
from .report import Summary
from .results import load_plan, read_table

__all__ = ["Comparison", "Plan", "Summary", "execute", "load_plan", "read_plan", "read_table"]
