"""Typesets the formulas of docstrings: LaTeX for cards, which GitHub and the Hub show; a picture of it for the site."""

import io
import re

from matplotlib.figure import Figure

_GREEK = "sigma|psi|theta|gamma"
_TO_LATEX = (
    (r" = \(([^()]+)\) / (sqrt\(.+\))$", r" = \\frac{\1}{\2}"),
    (r" = (.+) / (sqrt\(.+\))$", r" = \\frac{\1}{\2}"),
    (r"sqrt\(([^()]+)\)", r"\\sqrt{\1}"),
    (r"\b[a-z]*_[a-z]{3,}\b", lambda name: rf"\mathrm{{{name[0].replace('_', ' ')}}}".replace(" ", r"\ ")),
    (r"(?<![\w\\{])\(?[a-z]{2,}(?: (?:a|[a-z]{2,})\b(?![(\[_]))*\)?(?![\w(\[{}])", r" \\text{ \g<0> } "),
    (rf"\b({_GREEK})\b(?=[( ])", r"\\\1"),
    (r"(?<!\\)\bsum_", r"\\sum_"),
    (r"(?<![\\\w])([A-Za-z]{2,})(2?)(?=[(\[])", lambda name: rf"\,\operatorname{{{name[1]}}}" + (name[2] and "_2")),
    (r"\b([A-Za-z])(\d)\b", r"\1_\2"),
    (r"([\^_])(\w+)", r"\1{\2}"),
    (r" \. ", r" \\cdot "),
    (r"<=", r"\\leq "),
    (r">=", r"\\geq "),
    (r", ", r",\\ "),
)
"""Patterns of a formula in plain text, in order, and what stands for them in LaTeX."""


def latex(formula: str) -> str:
    """A formula of a docstring in LaTeX."""
    for pattern, replacement in _TO_LATEX:
        formula = re.sub(pattern, replacement, formula)
    return formula.replace("  ", " ")


def picture(formula: str) -> str:
    """A formula in LaTeX as an SVG of the text's colour."""
    figure, file = Figure(), io.StringIO()
    figure.text(0, 0, f"${formula}$", fontsize=14, math_fontfamily="cm")
    figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    svg = re.sub(r"\n\s*", " ", file.getvalue().partition("<svg ")[2])
    return f'<svg class="formula" role="img" aria-label="{formula}" fill="currentColor" {svg}'
