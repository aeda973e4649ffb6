import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "comparison"))  # results that nobody has run
