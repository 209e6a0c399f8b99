"""What tests/run says at its end, of JUnit files as ctest writes them.

Catches: a failure whose output stands nowhere near the end, a test that could not be started and counts as skipped, a skip
without its reason, a last line that is not the counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

SUMMARIZE = Path(__file__).resolve().parent / "summarize_tests.py"
SUITE = """\
[ RUN      ] Cuda/Hybrid.Holds/0
[       OK ] Cuda/Hybrid.Holds/0 (0 ms)
%s[----------] 4 tests from Cuda/Hybrid (0 ms total)

[==========] 4 tests from 1 test suite ran. (1 ms total)
[  PASSED  ] %d tests.
%s"""
GOOGLETEST_SKIP = "a_test.cpp:9: Skipped\nno CUDA device\n\n[  SKIPPED ] It (0 ms)\n"
PYTHON_SKIP = "..\nOK\nSKIPPED links_test.Links.test_cut: the ip command is absent\n"


def case(name: str, status: str, output: str = "", inner: str = "") -> str:
    return (f'<testcase name={quoteattr(name)} classname={quoteattr(name)} time="1.25" status="{status}">{inner}'
            f"<system-out>{escape(output)}</system-out></testcase>")


def passed(name: str, output: str = "") -> str:
    return case(name, "run", output)


def failed(name: str, output: str) -> str:
    return case(name, "fail", output, '<failure message=""/>')


def skipped(name: str, output: str, message: str = "SKIP_RETURN_CODE=77") -> str:
    return case(name, "notrun", output, f'<skipped message="{message}"/>')


class Summary(unittest.TestCase):
    def summarize(self, *cases: str, code: int) -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "junit.xml"
            file.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            done = subprocess.run([sys.executable, SUMMARIZE, file], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.splitlines()

    def test_the_last_line_counts_and_what_passed_is_not_named(self) -> None:
        self.assertEqual(self.summarize(passed("A.One"), passed("A.Two"), code=0), ["2 passed, 0 failed, 0 skipped"])

    def test_a_failures_last_forty_lines_stand_right_before_the_counts(self) -> None:
        red, plain = "[NON-XML-CHAR-0x1B][31m", "[NON-XML-CHAR-0x1B][0m"
        output = "".join(f"line {number}\n" for number in range(100)) + f"{red}AssertionError{plain}\n"
        lines = self.summarize(failed("faults.storm", output), passed("A.One"), skipped("B.Two", GOOGLETEST_SKIP), code=1)
        begin = lines.index("---- the end of faults.storm (1.2 s)")
        self.assertEqual(lines[begin + 1:], [*(f"line {number}" for number in range(61, 100)), "AssertionError",
                                             "FAILED faults.storm (1.2 s)", "1 passed, 1 failed, 1 skipped"])

    def test_what_many_failures_printed_fits_into_what_is_kept_of_a_run(self) -> None:
        output = ("x" * 200 + "\n") * 100 + "its last words\n"
        for count in (1, 12):
            with self.subTest(count):
                lines = self.summarize(*(failed(f"A.Test{number}", output) for number in range(count)), code=1)
                self.assertEqual(lines.count("its last words"), count)
                self.assertLess(len("\n".join(lines)), 3100 if count == 1 else 12000)

    def test_skips_are_counted_by_reason_and_suite(self) -> None:
        lines = self.summarize(*(skipped(f"Gpu/Cuda/CudaHybrid.Holds/{number}", GOOGLETEST_SKIP) for number in range(16)),
                               skipped("Gpu/OtherDevice.GreedyTextIsTheCpus", GOOGLETEST_SKIP),
                               skipped("faults.links_test", PYTHON_SKIP), skipped("A.Off", "", "Disabled"), passed("A.One"), code=0)
        self.assertEqual(lines, ["skipped, Disabled: A (1)",
                                 "skipped, no CUDA device: CudaHybrid (16), OtherDevice (1)",
                                 "skipped, the ip command is absent: faults.links_test (1)",
                                 "1 passed, 0 failed, 19 skipped"])

    def test_a_suite_counts_by_its_tests(self) -> None:
        skips = [f"Cuda/Hybrid.Holds/{number}" for number in (1, 2)]
        said = "".join(f"[ RUN      ] {skip}\na_test.cpp:9: Skipped\n{reason}\n\n[  SKIPPED ] {skip} (0 ms)\n"
                       for skip, reason in zip(skips, ("no CUDA device", "no fp8")))
        listed = "[  SKIPPED ] 2 tests, listed below:\n" + "".join(f"[  SKIPPED ] {skip}\n" for skip in skips)
        failures = ("[  FAILED  ] 2 tests, listed below:\n[  FAILED  ] Cuda/Hybrid.Holds/0, where GetParam() = 1.5\n"
                    "[  FAILED  ] Cuda/Hybrid.Holds/3, where GetParam() = 2\n\n 2 FAILED TESTS\n")
        reasons = ["skipped, no CUDA device: Hybrid (1)", "skipped, no fp8: Hybrid (1)"]
        self.assertEqual(self.summarize(passed("Cuda/Hybrid", SUITE % (said, 2, listed)), code=0),
                         [*reasons, "2 passed, 0 failed, 2 skipped"])
        lines = self.summarize(failed("Cuda/Hybrid", SUITE % (said, 0, listed + failures)), passed("A.One"), code=1)
        self.assertEqual((lines[:2], lines[-2:]), (reasons, ["FAILED Cuda/Hybrid (1.2 s)", "1 passed, 2 failed, 2 skipped"]))
        begin = SUITE.index("[---")  # what is left of a long output
        self.assertEqual(self.summarize(passed("Cuda/Hybrid", SUITE[begin:].replace("%s", listed).replace("%d", "2")), code=0),
                         ["skipped, no reason given: Hybrid (2)", "2 passed, 0 failed, 2 skipped"])
        died = "[ RUN      ] Hybrid.Holds\nSegmentation fault\n"
        self.assertEqual(self.summarize(failed("Hybrid", died), passed("A.One"), code=1)[-1], "1 passed, 1 failed, 0 skipped")
        # All tests passed and the process ended otherwise: a leak, a crash behind the last test.
        self.assertEqual(self.summarize(failed("Hybrid", SUITE % ("", 4, "")), code=1)[-1], "4 passed, 1 failed, 0 skipped")

    def test_a_module_that_passed_says_which_of_its_tests_were_skipped(self) -> None:
        lines = self.summarize(passed("faults.paused_test", PYTHON_SKIP + PYTHON_SKIP), code=0)
        self.assertEqual(lines, ["skipped in part, the ip command is absent: faults.paused_test (2)",
                                 "1 passed, 0 failed, 0 skipped"])

    def test_a_program_that_is_missing_failed_and_was_not_skipped(self) -> None:
        lines = self.summarize(skipped("A.One", "Unable to find executable: /a", "Unable to find executable"),
                               passed("A.Two"), code=1)
        self.assertEqual(lines[-2:], ["FAILED A.One (1.2 s)", "1 passed, 1 failed, 0 skipped"])

    def test_a_run_in_which_nothing_passed_failed(self) -> None:
        self.assertEqual(self.summarize(skipped("A.One", GOOGLETEST_SKIP), code=1)[-1], "0 passed, 0 failed, 1 skipped")


if __name__ == "__main__":
    unittest.main()
