"""deploy/grafana: the rules by promtool, with their own tests; that each metric that dashboard and rules name is one that
a real run serves; and a real Prometheus that scrapes such a run with its secret.

Catches: an alert that never comes, a metric that was renamed, an answer that Prometheus does not read.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

GRAFANA = job.REPOSITORY / "deploy" / "grafana"
PAGE = job.REPOSITORY / "coordinator" / "web" / "README.md"
# Served while there is something to say only: a run under way has or has not got a time to go.
AT_TIMES = {"hedgerow_run_eta_seconds", "hedgerow_eta_seconds", "hedgerow_block_seconds_since_progress",
            "hedgerow_tokens_per_second", "hedgerow_worker_last_heartbeat_timestamp_seconds"}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bhedgerow_[a-z_]+", text))


def names_of_rules() -> set[str]:
    return names_in("\n".join(re.sub(r"#.*", "", line) for line in (GRAFANA / "alerts.yml").read_text().splitlines()))


def expressions() -> list[str]:
    """Of the dashboard."""
    board = json.loads((GRAFANA / "dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


class Folder(unittest.TestCase):
    """A copy of deploy/grafana with a secret."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="hedgerow-grafana-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name) / "grafana"
        shutil.copytree(GRAFANA, self.folder)
        (self.folder / "web.secret").write_text("0123456789abcdef\n")

    def promtool(self, *words: str, given: str | None = None) -> None:
        if not shutil.which("promtool"):
            self.skipTest("no promtool here: install the package prometheus")
        said = subprocess.run(["promtool", *words], cwd=self.folder, input=given, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)


class Files(Folder):
    def test_promtool_accepts_rules_and_settings(self) -> None:
        self.promtool("check", "rules", "alerts.yml")
        self.promtool("check", "config", "prometheus.yml")

    def test_each_alert_comes_and_does_not_come_without_its_cause(self) -> None:
        self.promtool("test", "rules", "alerts_test.yml")
        defined = set(re.findall(r"alert: (\w+)", (self.folder / "alerts.yml").read_text()))
        self.assertEqual(set(re.findall(r"alertname: (\w+)", (self.folder / "alerts_test.yml").read_text())), defined)
        self.assertEqual(set(re.findall(r"^\| `(Hedgerow\w+)`", (self.folder / "README.md").read_text(), re.M)), defined)

    def test_the_panels_are_beside_one_another_and_ask_the_data_source_that_was_chosen(self) -> None:
        board = json.loads((self.folder / "dashboard.json").read_text())
        places = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(places & cells, panel["title"])
            places |= cells
            self.assertEqual(panel["datasource"]["uid"], "${datasource}")
            self.assertEqual({target["datasource"]["uid"] for target in panel["targets"]}, {"${datasource}"})
        self.assertLess(max(x for x, _ in places), 24)


class Scraped(Folder):
    def get(self, address: str, secret: str = "", **query: str) -> str:
        request = urllib.request.Request(address + ("?" + urllib.parse.urlencode(query) if query else ""),
                                         headers={"Authorization": f"Bearer {secret}"} if secret else {})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def query(self, expression: str) -> list[dict]:
        try:
            answer = json.loads(self.get(self.prometheus + "/api/v1/query", query=expression))
        except (urllib.error.URLError, ConnectionError):
            return []  # it is not up yet
        return answer["data"]["result"]

    def scrape(self, target: str, secret: str) -> None:
        """Starts a Prometheus with prometheus.yml, which scrapes `target` twice a second."""
        if not shutil.which("prometheus"):
            self.skipTest("no prometheus here: install the package prometheus")
        (self.folder / "web.secret").write_text(secret + "\n")
        settings = self.folder / "prometheus.yml"
        text, count = re.subn(r'targets: \[".*"\]', f'targets: ["{target}"]', settings.read_text())
        self.assertEqual(count, 1)
        settings.write_text(re.sub(r"_interval: 15s", "_interval: 500ms", text))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.prometheus = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(["prometheus", f"--config.file={settings}", f"--storage.tsdb.path={self.folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def test_a_prometheus_scrapes_a_run_and_answers_what_dashboard_and_rules_ask(self) -> None:
        one = job.Job({"transfer.max_steps": 40, "finetune.max_steps": 100})  # under way until all was asked
        self.addCleanup(one.close)
        seen: dict[str, str] = {}  # all that was ever served, by the name of a metric
        with one.started("run", "--run", one.run_directory, "--recipe", one.recipe) as run:
            printed = next(line.split()[1] for line in run.stderr if line.startswith("page: "))
            address = urllib.parse.urlsplit(printed)
            secret = (one.run_directory / "web.secret").read_text().strip()
            metrics = f"http://{address.netloc}/metrics"
            self.scrape(address.netloc, secret)

            def looked() -> bool | None:
                text = self.get(metrics, secret)
                seen.update((name, text) for name in names_in(text))
                return "hedgerow_finetune_loss" in seen or None

            job.wait_until(looked, run, 90)
            self.promtool("check", "metrics", given=seen["hedgerow_finetune_loss"])
            found = job.wait_until(lambda: self.query('hedgerow_tasks{stage="transfer",state="done"} == 2') or None, run, 30)
            self.assertEqual(found[0]["metric"]["instance"], address.netloc)
            for expression in expressions():
                asked = expression.replace("$instance", ".*")
                with self.subTest(expression=expression):
                    if not names_in(asked) & AT_TIMES:
                        job.wait_until(lambda: self.query(asked) or None, run, 20)
            alerts = json.loads(self.get(self.prometheus + "/api/v1/rules"))["data"]["groups"][0]["rules"]
            self.assertEqual({rule["health"] for rule in alerts}, {"ok"}, alerts)
            # What else fills this machine's disk meanwhile is not the run's doing: Files asks when the disk's alerts come.
            active = {rule["name"] for rule in alerts if rule["state"] != "inactive"}
            self.assertEqual(active - {"HedgerowDiskFillsUp", "HedgerowDiskLow"}, set(), alerts)
            run.communicate(timeout=90)
        self.assertEqual(run.returncode, 0)
        asked = set().union(names_of_rules(), *map(names_in, expressions()))
        self.assertGreater(len(asked), 12)
        self.assertEqual(asked - set(seen), set(), "nobody serves these")
        documented = set(re.findall(r"^\| `(hedgerow_[a-z_]+)", PAGE.read_text(), re.M))
        self.assertEqual(set(seen) - documented, set(), f"{PAGE} does not say what these are")


if __name__ == "__main__":
    unittest.main()
