"""Advice in words, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.explorer.advice import Advice


def report(advice: Advice) -> str:
    """Return the measured scores as a table, and the recommendation in a few sentences."""
    width = max(len(measured.candidate.title) for measured in advice.measured)
    lines = ["", f"{'candidate':{width}}  private  hardly any noise (NOT private)"]
    lines += [
        f"{measured.candidate.title:{width}}  {measured.score:7.3f}  {measured.without_noise:.3f}"
        for measured in advice.measured
    ]
    lines += [f"left out: {reason}" for reason in advice.left_out]
    best, privacy = advice.best, advice.publication["privacy"]
    lines.append(
        f"\nRecommended: {best.candidate.title}, {advice.score} {best.score:.3f} ± {best.margin:.3f} on "
        f"{advice.counted} records of the sample. At epsilon {privacy['epsilon']:g}, delta {privacy['delta']:g} "
        f"privacy is expected to cost {100 * advice.loss:.1f} points of {advice.score}."
    )
    title, baseline = max(advice.baselines.items(), key=lambda pair: pair[1])
    if baseline >= best.score:
        lines.append(f"Without any model, {title} has {baseline:.3f}: look for better features first.")
    lines.append("The means and scales below are of the sample: they are public from now on.")
    return "\n".join(lines)
