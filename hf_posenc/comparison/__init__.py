"""Comparing schemes: a plan, its runs, one table of results, few tests, and a report.

`plan_file` reads a `plan`. `executor` runs it; `run` makes one run, on data from `tasks` and `probes`, and `baselines`
measures what has to be beaten. `results` holds what was written, as one table; `statistics` computes means and tests,
and `report` writes the report.
"""

from .executor import Execution, execute
from .plan import Plan, PlannedRun, Task
from .plan_file import read_plan
from .probes import PROBES, make_halves, make_probes
from .report import Comparison, write_report
from .results import load_plan, read_table

__all__ = [
    "PROBES",
    "Comparison",
    "Execution",
    "Plan",
    "PlannedRun",
    "Task",
    "execute",
    "load_plan",
    "make_halves",
    "make_probes",
    "read_plan",
    "read_table",
    "write_report",
]
