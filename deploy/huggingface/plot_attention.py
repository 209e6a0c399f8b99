"""Attention weights of single heads as pictures, with matplotlib.

  plot_attention.py --maps MAPS.json --out DIR

MAPS.json is what `hedgerow probe --maps --pictures` writes. A picture a head, DIR/layer-L-head-H.png: the last queries' weights on
the first keys and on the last keys, of the softmax and, where there is one, of the student beside it, on one logarithmic scale.
Writes {"written": path} to stdout for each. Exit 5 where Python has no matplotlib.
"""

from __future__ import annotations

from common import run_main
from pictures import read_command_line, save, start_pyplot

LEAST_WEIGHT = 1e-4  # as dark as 0


def main() -> int:
    maps, out = read_command_line(__doc__, "maps")
    pyplot = start_pyplot()
    from matplotlib.colors import LogNorm

    for one in maps:
        kinds = [kind for kind in ("softmax", "student") if kind in one]
        # The two corners of a kind stand side by side; between the kinds is more room.
        figure = pyplot.figure(figsize=(6.4 * len(kinds), 3.6), layout="constrained")
        parts = figure.subfigures(1, len(kinds), squeeze=False)[0]
        queries = one["queries"]
        for kind, part in zip(kinds, parts):
            part.suptitle(kind)
            both = part.subplots(1, 2, sharey=True)
            for axes, corner in zip(both, ("first", "last")):
                keys = one[f"{corner}_keys"]
                weights = [[max(weight, LEAST_WEIGHT) for weight in row] for row in one[kind][corner]]
                image = axes.imshow(weights, norm=LogNorm(LEAST_WEIGHT, 1), cmap="magma", interpolation="nearest",
                                    extent=(keys[0] - 0.5, keys[-1] + 0.5, queries[-1] + 0.5, queries[0] - 0.5))
                axes.set(xlabel=f"{corner} keys", ylabel="query" if corner == "first" else None)
            part.colorbar(image, ax=both, label="weight" if kind == kinds[-1] else None)
        figure.suptitle(f"layer {one['layer']}, head {one['head']}, sequence {one['sequence']}")
        save(figure, out / f"layer-{one['layer']}-head-{one['head']}.png")
        pyplot.close(figure)
    return 0


if __name__ == "__main__":
    run_main(main)
