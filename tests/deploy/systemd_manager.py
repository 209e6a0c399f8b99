"""A real systemd, as a user's manager, on machines that were not booted with it: units start, fail and restart there as they would
anywhere. It lives in a control group of its own, seen through a cgroup namespace in which that group is the root: systemd moves every
process that it finds in the root of its tree, and here those are its own alone. Needs root, /lib/systemd/systemd, a cgroup2 tree."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")
LOG_LEVEL = os.environ.get("SYSTEMD_LOG_LEVEL", "notice")
TREES = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
# In the group first, so that the namespace begins there. systemd refuses to be a user's manager where /run/systemd/system is missing.
BEGIN = """set -eu
echo $$ >"$1/cgroup.procs"
exec unshare --mount --cgroup sh -euc '
  mount --make-rprivate /
  mount -t cgroup2 none /sys/fs/cgroup
  mkdir -p /run/systemd
  mount -t tmpfs none /run/systemd
  mkdir /run/systemd/system
  grep -qx "0::/" /proc/self/cgroup
  exec /lib/systemd/systemd --user --log-target=console --log-level=$2' sh "$@"
"""


def why_not() -> str:
    """Empty if a manager can be had here."""
    if os.geteuid() != 0:
        return "needs root, for a mount namespace and a control group"
    if not SYSTEMD.exists() or not shutil.which("systemctl"):
        return "no systemd on this machine"
    if tree() is None:
        return "no cgroup2 tree that can be written"
    try:
        subprocess.run(["unshare", "--mount", "--cgroup", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "no mount and cgroup namespaces here"
    return ""


def tree() -> Path | None:
    return next((path for path in TREES if (path / "cgroup.controllers").exists() and os.access(path, os.W_OK)), None)


class Manager:
    """Use as a context; nothing of it is left behind."""

    def __enter__(self) -> Manager:
        self.folder = Path(tempfile.mkdtemp(prefix="hedgerow-systemd-"))
        self.units = self.folder / "config/systemd/user"
        self.units.mkdir(parents=True)
        (self.folder / "run").mkdir(mode=0o700)
        self.group = tree() / self.folder.name
        self.group.mkdir()
        self.variables = dict(os.environ, XDG_RUNTIME_DIR=str(self.folder / "run"), XDG_CONFIG_HOME=str(self.folder / "config"))
        self.variables.pop("DBUS_SESSION_BUS_ADDRESS", None)
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(["sh", "-c", BEGIN, "sh", str(self.group), LOG_LEVEL], env=self.variables,
                                        stdout=self.log, stderr=self.log, start_new_session=True)
        try:
            self.until(lambda: (self.folder / "run/systemd/private").exists() or self.process.poll() is not None, "a socket")
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        deadline = time.monotonic() + 20
        while self.kill_all() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.process.wait()
        self.log.close()
        for folder, _, _ in os.walk(self.group, topdown=False):
            os.rmdir(folder)
        shutil.rmtree(self.folder)

    def kill_all(self) -> bool:
        """Everything in the control group; False once nothing is."""
        found = False
        for folder, _, _ in os.walk(self.group):
            for pid in (Path(folder) / "cgroup.procs").read_text().split():
                found = True
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.process.poll()
        return found

    def control(self, *words: str) -> str:
        """systemctl; raises with what it says if it fails."""
        done = subprocess.run(["nsenter", "--target", str(self.process.pid), "--mount", "--cgroup", "systemctl", "--user", *words],
                              env=self.variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"systemctl {' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def property(self, unit: str, name: str) -> str:
        return self.control("show", "--property", name, "--value", unit)

    def until(self, condition, what: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {seconds} s:\n" + (self.folder / "log").read_text()[-3000:])
            time.sleep(0.02)
