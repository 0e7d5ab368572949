"""What the benchmark scripts of this folder have in common.

Reading order: `jobs` (processes with limits, and what they used), `figures` (medians and spreads),
`tables` (Markdown), `charts` (SVG), `machine` (where it ran), `programs` (Regatta's)."""
