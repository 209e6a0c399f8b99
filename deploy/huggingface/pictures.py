"""What the scripts that draw have alike: a JSON file in, pictures out, matplotlib without a screen.

Exit 5 where Python has no matplotlib: deploy/setup installs it for the tests alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from common import EXIT_ENVIRONMENT


def read_command_line(description: str, source: str) -> tuple[Any, Path]:
    """The JSON value of --<source> FILE, and the path of --out."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{source}", dest="source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    return json.loads(arguments.source.read_text(encoding="utf-8")), arguments.out


def start_pyplot() -> Any:
    """matplotlib.pyplot, which draws into files."""
    try:
        import matplotlib
    except ImportError:
        print("Python has no matplotlib; deploy/requirements-tests.txt names the version", file=sys.stderr)
        sys.exit(EXIT_ENVIRONMENT)
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def save(figure: Any, path: Path) -> None:
    """Writes the picture, and {"written": path} to stdout."""
    figure.savefig(path, dpi=120)
    print(json.dumps({"written": str(path)}), flush=True)
