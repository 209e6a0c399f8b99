"""Reads the JUnit files that ctest wrote and says what was skipped and why, how what failed ended, and the counts.

  summarize_tests.py FILE.xml...      exit 1 if a test failed or none ran

The last line is "N passed, N failed, N skipped". What went wrong stands right before it, the end of each failed test's output
first: where a run is followed from afar, its last lines are all that is seen.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from dataclasses import dataclass, field

NO_REASON = "no reason given"
TAIL_LINES = 40
TAIL_CHARACTERS = 3000
ALL_TAILS_CHARACTERS = 9000  # what many failures share: of a run that is followed from afar, 12,000 are kept


@dataclass
class Results:
    passed: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # name and seconds, output
    more_failed: int = 0  # tests of suites that stand once in `failed`, less one each
    skipped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # names by reason
    skipped_in_part: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # of passed modules, a name each time


def of_suite(name: str, output: str) -> tuple[int, dict[str, list[str]], int] | None:
    """Of an entry that is a suite of GoogleTest: how many of its tests passed, which were skipped, by reason, and how many failed.

    A long output has lost its begin, and with it some of the reasons; the counts and the names of what was skipped stand last.
    """
    ran = re.findall(r"^\[==========\] (\d+) tests? from \d+ test suites? ran", output, re.MULTILINE)
    if not ran or "." in name or suite_of(name + ".") == name + ".":
        return None
    listed = output[output.rindex("[==========]"):]
    failed = re.findall(r"^\[  FAILED  \] [^\n.]+\.", listed, re.MULTILINE)
    left_out = re.findall(r"^\[  SKIPPED \] ([^\s.]+\.\S+)$", listed, re.MULTILINE)
    reasons = dict(zip(reversed(left_out), reversed(skip_reasons(output))))
    skipped: dict[str, list[str]] = defaultdict(list)
    for test in left_out:
        skipped[reasons.get(test, NO_REASON)].append(test)
    return int(ran[-1]) - len(failed) - len(left_out), skipped, len(failed)


def skip_reasons(output: str) -> list[str]:
    """Those that GoogleTest or our Python tests printed."""
    found = re.findall(r": Skipped\n(.+?)\n", output) or re.findall(r"^SKIPPED [^:\n]*: (.+)$", output, re.MULTILINE)
    return [reason.strip() for reason in found]


def without_colours(output: str) -> str:
    """ctest spells out what XML cannot hold."""
    return re.sub(r"\[NON-XML-CHAR-0x1B\]\[[0-9;]*[A-Za-z]", "", output)


def tail(output: str, characters: int) -> str:
    kept = "\n".join(without_colours(output).rstrip().splitlines()[-TAIL_LINES:])
    return kept if len(kept) <= characters else "..." + kept[-characters + 3:]


def suite_of(name: str) -> str:
    """Of Gpu/Cuda/CudaHybrid.PropagatesNan/cuda CudaHybrid; a Python module, and what else has a name of its own, is one."""
    suite = name.partition(".")[0].rpartition("/")[2]
    return suite if suite[:1].isupper() else name


def by_suite(names: list[str]) -> str:
    return ", ".join(f"{suite} ({count})" for suite, count in sorted(Counter(map(suite_of, names)).items()))


def read(path: str, results: Results) -> None:
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, status = case.get("name", "?").partition("  # GetParam")[0], case.get("status", "")
        output = case.findtext("system-out") or ""
        failure = (f"{name} ({float(case.get('time', 0)):.1f} s)", output)
        element = case.find("skipped")
        if suite := of_suite(name, output):
            count, skipped, failures = suite
            results.passed += [name] * count
            for reason, names in skipped.items():
                results.skipped[reason] += names
            if failures or (element is None and status != "run"):
                results.failed.append(failure)
                results.more_failed += max(0, failures - 1)
            continue
        if element is not None or status in ("notrun", "disabled"):
            message = element.get("message", "") if element is not None else ""
            if message.startswith("Unable to find"):  # not built, which is no reason to skip
                results.failed.append(failure)
            else:
                results.skipped[(skip_reasons(output) or [message or NO_REASON])[0]].append(name)
        elif status == "run":
            results.passed.append(name)
            for reason in skip_reasons(output):
                results.skipped_in_part[reason].append(name)
        else:
            results.failed.append(failure)


def main() -> int:
    results = Results()
    for path in sys.argv[1:]:
        read(path, results)
    for title, reasons in (("skipped", results.skipped), ("skipped in part", results.skipped_in_part)):
        for reason, names in sorted(reasons.items()):
            print(f"{title}, {reason}: {by_suite(names)}")
    room = ALL_TAILS_CHARACTERS // max(1, len(results.failed))
    for name, output in results.failed:
        print(f"---- the end of {name}\n{tail(output, min(TAIL_CHARACTERS, room))}")
    for name, _ in results.failed:
        print(f"FAILED {name}")
    print(f"{len(results.passed)} passed, {len(results.failed) + results.more_failed} failed, {sum(map(len, results.skipped.values()))} skipped")
    return 1 if results.failed or not results.passed else 0


if __name__ == "__main__":
    sys.exit(main())
