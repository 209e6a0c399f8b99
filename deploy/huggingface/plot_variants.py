"""A run's variants as one picture, with matplotlib: the divergence from the teacher against the bytes of a sequence's state.

  plot_variants.py --rows ROWS.json --out FILE.png

ROWS.json is what `hedgerow metrics --variants --json` prints. A point a variant, bars from the least to the most of its seeds, a
line through the front. Writes {"written": path} to stdout. Exit 5 where Python has no matplotlib.
"""

from __future__ import annotations

from common import run_main
from pictures import read_command_line, save, start_pyplot


def main() -> int:
    found, out = read_command_line(__doc__, "rows")
    pyplot = start_pyplot()

    rows = [row for row in found["variants"] if row["kl"]]
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, row in enumerate(rows):
        megabytes, kl = row["state_bytes"] / 1e6, row["kl"]
        axes.errorbar(megabytes, kl["median"], yerr=[[kl["median"] - kl["least"]], [kl["most"] - kl["median"]]], marker="o",
                      capsize=3, color=f"C{number % 10}", label=row["variant"])
    front = sorted((row["state_bytes"] / 1e6, row["kl"]["median"]) for row in rows if row["on_front"])
    axes.plot(*zip(*front), color="grey", linewidth=0.8, zorder=0)
    axes.set(xlabel="MB of state a sequence", ylabel="KL to the teacher beyond two windows, nats", title="variants and their front")
    axes.legend(fontsize=8)
    save(figure, out)
    return 0


if __name__ == "__main__":
    run_main(main)
