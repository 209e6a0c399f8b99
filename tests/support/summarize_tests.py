"""Reads the JUnit files that ctest wrote and says what failed, what was skipped and why, and the counts.

  summarize_tests.py FILE.xml...      exit 1 if a test failed or none ran

The last line is "N passed, N failed, N skipped".
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict

NO_REASON = "no reason given"


def skip_reason(output: str) -> str:
    """The reason that a GoogleTest or one of our Python tests printed, else ctest's own message."""
    if found := re.search(r": Skipped\n(.+?)\n", output):
        return found.group(1).strip()
    if found := re.search(r"^SKIPPED [^:]*: (.+)$", output, re.MULTILINE):
        return found.group(1).strip()
    return NO_REASON


def main() -> int:
    passed, failed, skipped = [], [], defaultdict(list)
    for path in sys.argv[1:]:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name, status = case.get("name", "?"), case.get("status", "")
            output = case.findtext("system-out") or ""
            element = case.find("skipped")
            if element is not None or status in ("notrun", "disabled"):
                reason = skip_reason(output)
                if reason == NO_REASON and element is not None and element.get("message"):
                    reason = element.get("message", "")
                if "not found" in reason.lower() and "unable to find" in reason.lower():
                    failed.append(f"{name} ({reason})")
                else:
                    skipped[reason].append(name)
            elif status == "run":
                passed.append(name)
            else:
                failure = case.find("failure")
                failed.append(name + (f" ({failure.get('message')})" if failure is not None else ""))
    for reason, names in sorted(skipped.items()):
        print(f"skipped, {reason}:")
        for name in sorted(names):
            print(f"  {name}")
    for name in failed:
        print(f"FAILED {name}")
    print(f"{len(passed)} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
