"""A real Slurm on one machine, as root: munged, slurmctld and a slurmd a node, all in one temporary directory.

Everything is a descendant of this process (also what daemonizes: this process is their subreaper), so that close() finds and
ends all of it: daemons, steps, and whatever jobs left. No systemd, nothing outside the directory, ports of its own.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Callable, TypeVar

T = TypeVar("T")

PR_SET_CHILD_SUBREAPER = 36
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "mpirun"]
START_S = 30
STAYS_S = 3
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY"}

CONF = """\
ClusterName=hedgerow
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
TmpFS={root}/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=20
KillWait=15
SchedulerParameters=sched_interval=1,bf_interval=1
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def parents() -> dict[int, int]:
    """Parent by pid, of every process that there is."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, open_ends = [], [root]
    while open_ends:
        for child in children.get(open_ends.pop(), []):
            found.append(child)
            open_ends.append(child)
    return found


def environment_of(pid: int) -> dict[str, str]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def wait_until(condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """What the condition gives once it gives something, looked at five times a second."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (found := condition()) is not None:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {timeout_s} s")


class Cluster:
    """`partitions`: {"name": {"nodes": [...], "cpus": of each, "cores": the machine's that they may use}}."""

    def __init__(self, partitions: dict[str, dict]) -> None:
        if os.geteuid() != 0:
            raise unittest.SkipTest("Slurm's daemons start jobs as their users: root is needed")
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            raise unittest.SkipTest(f"not installed: {', '.join(missing)} (Debian's slurm-wlm, munge, openmpi-bin)")
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._temporary = tempfile.TemporaryDirectory(prefix="hedgerow-slurm-", ignore_cleanup_errors=True)
        self.root = Path(self._temporary.name)
        self._partitions = partitions
        self._daemons: dict[str, subprocess.Popen] = {}
        self._closing = threading.Event()
        self._ended_since: dict[str, float] = {}
        self._write_configuration()
        self.environment = {**os.environ, "SLURM_CONF": str(self.root / "slurm.conf")}
        try:
            self._start()
        except (AssertionError, OSError) as error:  # what wait_until says, and a program that cannot be started
            logs = "\n".join(log.read_text()[-500:] for log in sorted(self.root.glob("*.log")))
            self.close()
            raise unittest.SkipTest(f"Slurm does not come up here: {error}\n{logs}") from error
        self._hastener = threading.Thread(target=self._hasten)
        self._hastener.start()

    def _write_configuration(self) -> None:
        self.root.chmod(0o755)
        (self.root / "munge").mkdir(mode=0o755)
        (self.root / "state").mkdir()
        key = self.root / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        nodes = [(node, kind["cpus"]) for kind in self._partitions.values() for node in kind["nodes"]]
        ports = free_ports(1 + len(nodes))
        host = socket.gethostname().split(".")[0]
        text = CONF.format(host=host, root=self.root, port=ports[0])
        for (node, cpus), port in zip(nodes, ports[1:]):
            (self.root / node).mkdir()
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}\n"
        for name, kind in self._partitions.items():
            text += f"PartitionName={name} Nodes={','.join(kind['nodes'])} State=UP\n"
        (self.root / "slurm.conf").write_text(text)

    def _daemon(self, name: str, *words: str | Path, cores: set[int] | None = None) -> None:
        log = (self.root / f"{name}.log").open("a")
        self._daemons[name] = subprocess.Popen(
            list(map(str, words)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env=getattr(self, "environment", os.environ),
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None)
        log.close()

    def _start(self) -> None:
        munge = self.root / "munge"
        self._daemon("munged", "munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                     f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log")
        wait_until(lambda: True if (munge / "socket").exists() else None, START_S, "munged's socket")
        self._daemon("slurmctld", "slurmctld", "-D")
        for kind in self._partitions.values():
            for node in kind["nodes"]:
                self.start_node(node)
        wait_until(lambda: True if set(self.ask("sinfo", "-h", "-o", "%T").split()) == {"idle"} else None, START_S,
                   "idle nodes")

    def start_node(self, node: str) -> None:
        kind = next(kind for kind in self._partitions.values() if node in kind["nodes"])
        self._daemon(node, "slurmd", "-D", "-N", node, cores=kind.get("cores"))

    def kill_node(self, node: str) -> None:
        """As if its power went: the daemon, its steps, and everything that they started."""
        self._daemons[node].kill()
        self._daemons[node].wait()
        everyone = parents()
        for pid in descendants(os.getpid()):
            if environment_of(pid).get("SLURMD_NODENAME") == node:
                kill(pid)
                if name_of(everyone.get(pid, 0)).startswith("slurmstepd"):
                    kill(everyone[pid])

    def take_for_dead(self, node: str) -> None:
        """What Slurm does once a node has not answered for SlurmdTimeout: its jobs end as NODE_FAIL, or go back to the queue. A node
        that comes back sooner has its job completing until Slurm looks again, which is a minute and more."""
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=dead")

    def ask(self, *words: str | Path) -> str:
        """What one of Slurm's commands says; empty if it fails, as while a job is unknown."""
        done = subprocess.run(list(map(str, words)), env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def said(self) -> str:
        """What Slurm knows of its jobs, and the end of its controller's log: for a test that failed."""
        return (self.ask("squeue", "-r", "-t", "all", "-o", "%i %j %T %r %M %N") +
                (self.root / "slurmctld.log").read_text()[-6000:])

    def is_gone(self, job: str) -> bool | None:
        """True once the job and all its tasks have ended for good; None until then, and while Slurm does not say.

        On its way back to the queue a job has ended for a moment, so it must stay ended for a while.
        """
        states = {word for line in self.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
                  for number, word in [line.split()] if number.split("_")[0] == job}
        if not states or not states <= ENDED:
            self._ended_since.pop(job, None)
            return None
        since = self._ended_since.setdefault(job, time.monotonic())
        return True if time.monotonic() - since > STAYS_S else None

    def wait_until_gone(self, job: str, timeout_s: float) -> None:
        wait_until(lambda: self.is_gone(job), timeout_s, f"the end of job {job}")

    def processes_on(self, node: str, *words: str) -> list[int]:
        """Of jobs on this node, whose program has this base name and whose arguments begin with these words."""
        found = []
        for pid in descendants(os.getpid()):
            try:
                line = [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
            except OSError:
                continue
            if [Path(line[0]).name, *line[1:]][:len(words)] == list(words) and \
                    environment_of(pid).get("SLURMD_NODENAME") == node:
                found.append(pid)
        return found

    def _hasten(self) -> None:
        """Slurm holds a requeued job back for two minutes, which are nobody's to test. Not to the very second, though, in which its
        last round ended: credentials are revoked by the second, and the job would fail as one of a revoked credential."""
        hastened: dict[str, float] = {}
        while not self._closing.wait(0.5):
            for line in self.ask("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i %r").splitlines():
                job, _, reason = line.partition(" ")
                if reason == "BeginTime" and time.monotonic() - hastened.get(job, -math.inf) > 10:
                    hastened[job] = time.monotonic()
                    self.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")

    def close(self) -> None:
        self._closing.set()
        if hasattr(self, "_hastener"):
            self._hastener.join()
        deadline = time.monotonic() + 20
        # New ones come while the old go: until none is left that is ours.
        while time.monotonic() < deadline:
            alive = [pid for pid in descendants(os.getpid()) if self._is_ours(pid)]
            if not alive:
                break
            for pid in alive:
                kill(pid)
            self._reap()
            time.sleep(0.1)
        self._reap()
        self._temporary.cleanup()

    def _is_ours(self, pid: int) -> bool:
        for daemon in self._daemons.values():
            if daemon.pid == pid:
                return daemon.poll() is None
        return name_of(pid).startswith("slurmstepd") or \
            environment_of(pid).get("SLURM_CONF") == str(self.root / "slurm.conf")

    def _reap(self) -> None:
        """Orphans that became our children; the daemons are Popen's to wait for."""
        known = {daemon.pid for daemon in self._daemons.values()}
        for pid, parent in parents().items():
            if parent == os.getpid() and pid not in known:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass
