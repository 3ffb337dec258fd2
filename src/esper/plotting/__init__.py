"""What pictures and pages share: plots as SVG, HTML, Pareto sets, durations."""
