"""Comparing schemes: a plan, its runs, statistics over seeds and examples, and a report.

`plan_file` reads a `plan`. `executor` runs it; `run` makes one run, on data from `tasks` and `probes`.
`results_folder` reads what was written, and `records` checks each JSON file. `study` computes the numbers of a folder
with `statistics` and `spread`, and `power` says what its comparisons could find; `findings` puts them into sentences,
and `report` and `charts` write the report.
"""

from typing import TYPE_CHECKING

from hf_posenc._lazy import lazy_names

if TYPE_CHECKING:
    from .executor import Execution, execute
    from .plan import Plan, PlannedRun, SchemeFile, Task
    from .plan_file import read_plan
    from .probes import PROBES, make_halves, make_probes
    from .results_folder import load_plan, load_runs

__all__ = [
    "PROBES",
    "Execution",
    "Plan",
    "PlannedRun",
    "SchemeFile",
    "Task",
    "execute",
    "load_plan",
    "load_runs",
    "make_halves",
    "make_probes",
    "read_plan",
]

__getattr__ = lazy_names(__name__, __file__)
