"""A run's variants as one picture, with matplotlib: the divergence from the teacher against the bytes of a sequence's state.

  plot_variants.py --rows ROWS.json --out FILE.png

ROWS.json is what `hedgerow metrics --variants --json` prints. A point a variant, bars from the least to the most of its seeds, a
line through the front. Writes {"written": path} to stdout. Exit 5 where Python has no matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        print("Python has no matplotlib; deploy/requirements-tests.txt names the version", file=sys.stderr)
        return 5
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in json.loads(arguments.rows.read_text(encoding="utf-8"))["variants"] if row["kl"]]
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, row in enumerate(rows):
        megabytes, kl = row["state_bytes"] / 1e6, row["kl"]
        axes.errorbar(megabytes, kl["median"], yerr=[[kl["median"] - kl["least"]], [kl["most"] - kl["median"]]], marker="o",
                      capsize=3, color=f"C{number % 10}", label=row["variant"])
    front = sorted((row["state_bytes"] / 1e6, row["kl"]["median"]) for row in rows if row["on_front"])
    axes.plot(*zip(*front), color="grey", linewidth=0.8, zorder=0)
    axes.set(xlabel="MB of state a sequence", ylabel="KL to the teacher beyond two windows, nats", title="variants and their front")
    axes.legend(fontsize=8)
    figure.savefig(arguments.out, dpi=120)
    print(json.dumps({"written": str(arguments.out)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
