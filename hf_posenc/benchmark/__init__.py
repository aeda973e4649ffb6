"""How fast the encoder is: schemes and peers of equal dimensions on the same batches, in turns.

Contenders take turns on every batch and are compared within the turn, so that what else the machine does hits all
alike; a ratio is the median over the turns.
"""

from .contenders import PEERS, SIZES, LinearLayers, build_model, count_flops, linear_shapes, make_step
from .parts import PARTS, profile_parts, sum_parts
from .run import machine, run_benchmark
from .startup import measure_startup
from .tables import profile_table, serving_table, speed_table, startup_table, targets_table, write_results
from .targets import TARGETS, Target, judge, run_targets
from .work import make_batches, peak_memory, ratio, take_turns

__all__ = [
    "PARTS",
    "PEERS",
    "SIZES",
    "TARGETS",
    "LinearLayers",
    "Target",
    "build_model",
    "count_flops",
    "judge",
    "linear_shapes",
    "machine",
    "make_batches",
    "make_step",
    "measure_startup",
    "peak_memory",
    "profile_parts",
    "profile_table",
    "ratio",
    "run_benchmark",
    "run_targets",
    "serving_table",
    "speed_table",
    "startup_table",
    "sum_parts",
    "take_turns",
    "targets_table",
    "write_results",
]
