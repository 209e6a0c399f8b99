"""The curves of a study as one picture, with matplotlib.

  plot_study.py --result STUDY.json --out STUDY.png

STUDY.json is what `hedgerow lab STUDY --out DIR` writes: a line a seed, a colour an attention. Writes {"written": path} to
stdout. Exit 5 where Python has no matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        print("Python has no matplotlib; deploy/requirements-tests.txt names the version", file=sys.stderr)
        return 5
    matplotlib.use("Agg")
    from matplotlib import pyplot

    result = json.loads(arguments.result.read_text(encoding="utf-8"))
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, trials) in enumerate(result["curves"].items()):
        for trial in trials:
            steps, scores = zip(*trial["points"])
            axes.plot(steps, scores, color=f"C{number % 10}", linestyle="--" if number >= 10 else "-",
                      label=name if trial["seed"] == 0 else None)
    axes.set(xlabel=result.get("step_title", "step"), ylabel=result["score_title"], title=result["curve_title"])
    axes.legend()
    figure.savefig(arguments.out, dpi=120)
    print(json.dumps({"written": str(arguments.out)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
