"""The curves of a study as one picture, with matplotlib.

  plot_study.py --result STUDY.json --out STUDY.png

STUDY.json is what `hedgerow lab STUDY --out DIR` writes: a line a seed, a colour an attention. Writes {"written": path} to
stdout. Exit 5 where Python has no matplotlib.
"""

from __future__ import annotations

from common import run_main
from pictures import read_command_line, save, start_pyplot


def main() -> int:
    result, out = read_command_line(__doc__, "result")
    pyplot = start_pyplot()

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, trials) in enumerate(result["curves"].items()):
        for trial in trials:
            steps, scores = zip(*trial["points"])
            axes.plot(steps, scores, color=f"C{number % 10}", linestyle="--" if number >= 10 else "-",
                      label=name if trial["seed"] == 0 else None)
    axes.set(xlabel=result.get("step_title", "step"), ylabel=result["score_title"], title=result["curve_title"])
    axes.legend()
    save(figure, out)
    return 0


if __name__ == "__main__":
    run_main(main)
