"""A build where no package of Debian brings fmt, CLI11, nlohmann-json, toml++, xxHash, Boost, prometheus-cpp and Chart.js, as on a
cluster whose modules bring compilers, MPI, HDF5 and libzmq: their files are hidden, no network is there, and CMake takes all of them
from pinned archives. HEDGEROW_TEST_RELEASE=1 builds all of hedgerow so."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("HEDGEROW_CACHE") or Path.home() / ".cache/hedgerow")
ARCHIVES = CACHE / "archives"
PACKAGES = ("libfmt-dev", "libcli11-dev", "nlohmann-json3-dev", "libtomlplusplus-dev", "libxxhash-dev", "libboost*-dev",
            "prometheus-cpp-dev", "libjs-chart.js")
RELEASE = os.environ.get("HEDGEROW_TEST_RELEASE") == "1"
HIDDEN = ("include/fmt", "include/CLI", "include/nlohmann", "include/toml++", "include/xxhash.h", "include/boost", "include/prometheus",
          "share/javascript/chart.js")

# In namespaces of its own: what is removed from /usr is removed from a layer in memory above it, which ends with the process.
# The loopback is brought up (SIOCSIFFLAGS, IFF_UP): without any interface Open MPI's compiler wrapper prints a warning among the
# flags that CMake reads of it.
HIDE = """set -e
mount -t tmpfs hedgerow-test "$0"
mkdir "$0/upper" "$0/work"
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$0/upper,workdir=$0/work" /usr
files=$1
shift
xargs -d '\\n' rm -rf -- <"$files"
python3 -c "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 1))"
exec "$@"
"""
UNSHARE = ("unshare", "-m", "-n", "sh", "-c", HIDE)


def table() -> list[list[str]]:
    said = subprocess.run([str(TOP / "deploy/setup"), "--archives"], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in said.splitlines()]


def files_of_packages() -> list[str]:
    """Files and links; and what setup's packages put where the compiler looks, should dpkg name it otherwise."""
    listed = subprocess.run(["dpkg-query", "-L", *installed()], capture_output=True, text=True, check=True).stdout
    paths = {line for line in listed.splitlines() if line.startswith("/usr/") and (os.path.islink(line) or not os.path.isdir(line))}
    return sorted(paths) + ["/usr/" + name for name in HIDDEN]


def installed() -> list[str]:
    said = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${binary:Package}\n", *PACKAGES],
                          capture_output=True, text=True, check=False).stdout
    return [line.split()[1] for line in said.splitlines() if line.startswith("ii ")]


def why_not() -> str | None:
    missing = [row[2] for row in table() if not (ARCHIVES / row[2]).is_file()]
    if missing:
        return f"{ARCHIVES} lacks {', '.join(missing)}; deploy/setup --archives {ARCHIVES} fetches them"
    if not shutil.which("dpkg-query"):
        return "no dpkg here: whose files are to be hidden is unknown"
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run([*UNSHARE, folder, "/dev/null", "true"], capture_output=True, text=True, check=False)
    if said.returncode:
        return f"files cannot be hidden in a namespace here (it needs root and an overlay over /usr): {said.stderr.strip()}"
    return None


class NoPackages(unittest.TestCase):
    def setUp(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "layer").mkdir()
        self.build = self.folder / "build"

    def hidden(self, *words: str) -> str:
        """What the command prints where the packages' files are not there."""
        (self.folder / "files").write_text("".join(path + "\n" for path in files_of_packages()))
        variables = {name: value for name, value in os.environ.items() if name != "HEDGEROW_ARCHIVES"}
        said = subprocess.run([*UNSHARE, str(self.folder / "layer"), str(self.folder / "files"), *words],
                              cwd=TOP, env=variables, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, f"{words}\n{said.stdout[-6000:]}{said.stderr[-6000:]}")
        return said.stdout

    def configure(self, *words: str) -> str:
        kind = "Release" if RELEASE else "Debug"
        return self.hidden("cmake", "-B", str(self.build), "-G", "Ninja", "-DHEDGEROW_FETCH=ON", f"-DHEDGEROW_ARCHIVES={ARCHIVES}",
                           "-DHEDGEROW_TESTS=OFF", "-DHEDGEROW_CUDA=OFF", "-DHEDGEROW_NCCL=OFF", f"-DCMAKE_BUILD_TYPE={kind}",
                           "-DCMAKE_UNITY_BUILD=" + ("ON" if RELEASE else "OFF"), *words)

    def make(self, *targets: str) -> str:
        return self.hidden("cmake", "--build", str(self.build), "--parallel", "2", "--target", *targets)

    def test_what_the_packages_bring_comes_from_the_archives(self):
        said = self.configure()
        for name, version, file, _, _ in table():
            self.assertIn(f"{name} {version} is not installed; taken from {file}", said)
            self.assertTrue((self.build / "archives" / name).is_dir(), name)
        for line in (self.build / "CMakeCache.txt").read_text().splitlines():
            if line.startswith(("fmt_DIR:", "CLI11_DIR:", "nlohmann_json_DIR:", "prometheus-cpp_DIR:", "Boost_DIR:", "Boost_INCLUDE_DIR:",
                                "TOMLPLUSPLUS_INCLUDE_DIR:", "HEDGEROW_CHART_JS:")):
                self.assertRegex(line, "NOTFOUND$")
        if RELEASE:
            self.make("hedgerow")
            self.assertIn("hedgerow", self.hidden(str(self.build / "bin/hedgerow"), "--version"))
            return
        # What of the libraries is compiled, and a file of ours for each.
        libraries = ["fmt", "core", "hedgerow_xxhash"]
        self.make(*libraries, *[self.object_of(end) for end in (
            "storage/recipe/toml_reader.cpp", "storage/history/columns.cpp", "coordinator/web/server.cpp", "coordinator/web/prometheus.cpp",
            "coordinator/cli/main.cpp", "web_assets.cpp")])
        self.assertIn("taken from", self.hidden("cmake", str(self.build)))  # configured again, nothing is unpacked again
        self.assertIn("no work", self.make(*libraries))

    def test_without_the_page_its_libraries_are_not_taken(self):
        self.configure("-DHEDGEROW_WEB=OFF")
        taken = {path.name for path in (self.build / "archives").iterdir() if path.is_dir()}
        self.assertEqual(taken, {row[0] for row in table()} - {"Boost", "prometheus-cpp", "chart.js"} | {"build"})
        self.make(self.object_of("coordinator/web/absent.cpp"))

    def object_of(self, end: str) -> str:
        units = json.loads((self.build / "compile_commands.json").read_text())
        outputs = [re.search(r" -o (\S+)", unit["command"])[1] for unit in units if unit["file"].endswith("/" + end)]
        self.assertTrue(outputs, end)
        return outputs[0]


if __name__ == "__main__":
    unittest.main()
