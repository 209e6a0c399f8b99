"""The claims of studies as one table in Markdown.

  study_table.py RESULT.json..

Each RESULT.json is what `hedgerow lab STUDY --out DIR` writes. A row a claim: study, claim, paper, ours, verdict, seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    arguments = parser.parse_args()
    print("| study | claim | paper | ours | verdict | seeds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for path in arguments.results:
        result = json.loads(path.read_text(encoding="utf-8"))
        for claim in result["claims"]:
            cells = [result["study"], *(str(claim[key]) for key in ("claim", "paper", "ours", "verdict", "seeds"))]
            print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
