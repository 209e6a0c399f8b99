"""A run's variants as one picture, with matplotlib: the divergence from the teacher against the bytes of a sequence's state.

  plot_variants.py --rows ROWS.json --out FILE.png

ROWS.json is what `hedgerow metrics --variants --json` prints. A point a variant, bars from the least to the most of its seeds, a
line through the front, a dash for the untrained window of the same bytes; beside it the same against the planned time of the whole
job, where that is known. Writes {"written": path} to stdout. Exit 5 where Python has no matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable

from common import run_main
from pictures import read_command_line, save, start_pyplot


def main() -> int:
    found, out = read_command_line(__doc__, "rows")
    pyplot = start_pyplot()
    rows = [row for row in found["variants"] if row["kl"]]
    jobs = [row for row in rows if row.get("whole_job")]
    figure, panels = pyplot.subplots(ncols=2 if jobs else 1, figsize=(13 if jobs else 8, 5), layout="constrained", squeeze=False)

    def draw(axes, shown: list[dict], cost: Callable[[dict], float], label: str, title: str) -> None:
        for row in shown:
            kl = row["kl"]
            axes.errorbar(cost(row), kl["median"], yerr=[[kl["median"] - kl["least"]], [kl["most"] - kl["median"]]], marker="o",
                          capsize=3, color=f"C{rows.index(row) % 10}", label=row["variant"])
        front = [(cost(row), row["kl"]["median"]) for row in shown]
        front = sorted(own for own in front if not any(other[0] <= own[0] and other[1] <= own[1] and other != own for other in front))
        axes.plot(*zip(*front), color="grey", linewidth=0.8, zorder=0)
        axes.set(xlabel=label, ylabel="KL to the teacher beyond two windows, nats", title=title)

    draw(panels[0][0], rows, lambda row: row["state_bytes"] / 1e6, "MB of state a sequence", "variants and their front")
    free = [(row["state_bytes"] / 1e6, row["window_kl"]) for row in rows if row.get("window_kl") is not None]
    if free:
        panels[0][0].scatter(*zip(*free), marker="_", color="black", label="untrained window of the same bytes")
    if jobs:
        has_gpus = any(row["whole_job"]["gpu_hours"] > 0 for row in jobs)
        draw(panels[0][1], jobs,
             lambda row: row["whole_job"]["gpu_hours"] if has_gpus else row["whole_job"]["seconds"] / 3600,
             "GPU-hours planned for the whole job" if has_gpus else "hours planned for the whole job", "quality against time")
    panels[0][0].legend(fontsize=8)
    save(figure, out)
    return 0


if __name__ == "__main__":
    run_main(main)
