"""Comparing schemes: a plan, its runs, one table of results, few tests, and a report.

`plan_file` reads a `plan`. `executor` runs it, by the `engine` of this process or a Ray `cluster`; `run` makes one run,
on data from `tasks` and `probes`, and `baselines` measures what has to be beaten. `results` holds what was written, as
one table; `statistics` computes means and tests, `summary` holds them, and `report` writes the report of `tables` and
`pictures`. `compare` is the public door to all.
"""

from .compare import Comparison
from .executor import execute
from .plan import Plan
from .plan_file import read_plan
from .results import load_plan, read_table
from .summary import Summary

__all__ = ["Comparison", "Plan", "Summary", "execute", "load_plan", "read_plan", "read_table"]
