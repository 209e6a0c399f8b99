"""The pages of deploy/: every command of ours in them is one that the programs know, every link leads somewhere, and the steps that one
machine can take are taken, as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import kustomize

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", TOP / "deploy/README.md", TOP / "deploy/seventy-billion.md", TOP / "deploy/choose-an-attention.md"] + sorted(TOP.glob("deploy/*/README.md"))
BIN = Path(os.environ["HEDGEROW_BIN"])
MODEL = os.environ.get("HEDGEROW_TEST_MODEL")


def blocks(page: Path) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)


def lines(page: Path) -> list[str]:
    """Of its blocks, and what stands in its sentences as `hedgerow ...`."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return [line for block in blocks(page) for line in block.splitlines() if line.strip() and not line.startswith("#")] + \
        re.findall(r"`(hedgerow(?:-worker)? [^`]*)`", text)


def block_with(page: str, text: str) -> list[str]:
    """The commands of the block that holds `text`, without their comments."""
    block = next(block for block in blocks(TOP / page) if text in block)
    return [re.sub(r"\s+#.*$", "", line) for line in block.splitlines()]


class HowToChange(unittest.TestCase):
    """Steps of "How to change it" and "Add a ...": their files are there, and a name is in a file of its step."""

    FILE = r"(_[a-z]+)?\.(hpp|cpp|py|cuh|js|md|toml)"

    def setUp(self):
        said = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            self.skipTest("no git here: the files of the project are not known")
        self.tracked = said.stdout.split()

    def files_of(self, token: str, folders: set[Path]) -> set[str]:
        """Files that a token names, from one of the folders: itself, with an ending, or all below it."""
        found = set()
        for folder in folders:
            path = re.escape(str(folder / token).removeprefix("./"))
            found |= {file for file in self.tracked if re.fullmatch(f"{path}(/.*|{self.FILE})?", file)}
        return found

    def test_each_file_and_each_name_of_a_step_is_where_it_says(self):
        checked = 0
        built = "".join((TOP / file).read_text() for file in self.tracked if file.endswith("CMakeLists.txt"))
        known = {Path(file).stem for file in self.tracked} | set(re.findall(r"\w+", built))  # tests and programs
        for page in filter(lambda file: file.endswith("README.md"), self.tracked):
            lists = re.findall(r"^#{2,3} (?:How to change it|Add a [^\n]+)\n(.*?)(?=^#{1,3} |\Z)", (TOP / page).read_text(), re.M | re.S)
            for step in (step for text in lists for step in re.findall(r"^\d+\. (.*?)(?=^\d+\. |\n\n|\Z)", text, re.M | re.S)):
                tokens = [token for token in re.findall(r"`([^`]+)`", step.replace("\n", " ")) if not re.search(r"[<>{}*= ]|^-", token)]
                files: set[str] = set()
                names = []
                for token in tokens:
                    beside = {Path(page).parent, Path(), *(Path(file).parent for file in files)}
                    if found := self.files_of(token, beside):
                        files |= found
                    elif "/" in token:
                        self.fail(f"{page}: there is no {token}")
                    elif re.fullmatch(r"[A-Za-z_]\w{3,}(\(\))?", token):
                        names.append(token.removesuffix("()"))
                text = "".join((TOP / file).read_text(errors="replace") for file in files)
                for name in names if files else []:
                    self.assertTrue(re.search(rf"\b{name}\b", text) or name in known,
                                    f"{page}: {name} is in none of the files that its step names")
                    checked += 1
        self.assertGreater(checked, 30, "the pages are read wrongly")


class Words(unittest.TestCase):
    def test_every_option_of_our_programs_in_the_pages_is_known_to_them(self):
        known: dict[tuple[str, str], str] = {}
        found = 0
        for page in PAGES:
            for line in lines(page):
                for program, command, rest in re.findall(r"(?:^|/bin/|[\s;&|'])(hedgerow|hedgerow-worker) (?!hedgerow)([a-z][a-z-]*)(?![a-z/-])([^;&|#']*)", line):
                    key = (program, command)
                    if key not in known:
                        asked = [str(BIN / program), "help", command] if program == "hedgerow" else [str(BIN / program), command, "--help"]
                        said = subprocess.run(asked, capture_output=True, text=True, check=False)
                        self.assertEqual(said.returncode, 0, f"{page}: {line}\n{said.stderr}")
                        known[key] = said.stdout
                    for word in re.findall(r"--[a-z][a-z-]+", rest):
                        self.assertRegex(known[key], rf"(?m)^ .*{word}\b", f"{page}: {line}")
                        found += 1
        self.assertGreater(found, 20, "the pages are read wrongly")

    def test_every_option_of_our_scripts_in_the_pages_is_in_their_help(self):
        found = 0
        for page in PAGES:
            for script, rest in re.findall(r"(deploy/(?:setup|container/gather|container/build))([^\n#]*)", "\n".join(lines(page))):
                said = subprocess.run([str(TOP / script), "--help"], capture_output=True, text=True, check=True).stdout
                for word in re.findall(r"--[a-z][a-z-]+", rest):
                    self.assertIn(word, said, f"{page}: {script}{rest}")
                    found += 1
        self.assertGreater(found, 0, "the pages are read wrongly")

    def test_links_between_pages_lead_to_a_file_and_a_heading(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
                if target.startswith("http"):
                    continue
                name, _, anchor = target.partition("#")
                file = (page.parent / name).resolve() if name else page
                self.assertTrue(file.exists(), f"{page}: {target}")
                if anchor:
                    headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
                    slugs = [re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings]
                    self.assertIn(anchor, slugs, f"{page}: {target}")

    def test_manifests_that_are_named_can_be_rendered(self):
        if not shutil.which("kubectl"):
            self.skipTest("no kubectl here")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(TOP / "deploy/kubernetes", Path(folder) / "deploy/kubernetes")
            for line in block_with("deploy/kubernetes/README.md", "kubectl kustomize"):
                said = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, check=False)
                if "unknown field" in said.stderr:
                    self.skipTest("this kubectl has a Kustomize from before version 4")
                self.assertEqual(said.returncode, 0, said.stderr)


class KeysForPods(unittest.TestCase):
    """Step 3 of deploy/kubernetes: what each Secret holds is what its side of a connection reads, and no more."""

    def test_each_secret_holds_the_keys_of_its_side(self):
        made, *_ = block_with("deploy/kubernetes/README.md", "create secret generic")
        # Of a doctor's findings only that on the keys is wanted here, and soon.
        quick = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", HEDGEROW_WORKER="/bin/false", HEDGEROW_PYTHON="/bin/false")
        base = kustomize.render(TOP / "deploy/kubernetes/base")
        copy = next(container for container in kustomize.containers(base) if container["name"] == "keys")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run(made, shell=True, cwd=folder, env=quick, capture_output=True, check=True)
            found = {}
            for line in block_with("deploy/kubernetes/README.md", "create secret generic"):
                secret = re.search(r"create secret generic (\S+)", line)
                if not secret:
                    continue
                mounted = folder / secret[1]
                mounted.mkdir()
                for file in re.findall(r"--from-file (\S+)", line):
                    shutil.copy(folder / file, mounted)
                    (mounted / Path(file).name).chmod(0o440)  # fsGroup's doing
                shell = copy["command"][-1]
                for path, place in {"/secret": mounted, "/memory": folder / f"{secret[1]}-run", "/run-volume": folder / "volume"}.items():
                    shell = shell.replace(path, str(place))
                subprocess.run(["/bin/sh", "-c", shell], check=True)
                said = subprocess.run([str(BIN / "hedgerow"), "doctor", "--json", "--dir", str(folder / f"{secret[1]}-run")], env=quick,
                                      capture_output=True, text=True, check=False)
                found[secret[1]] = next((check["level"], check["found"]) for check in json.loads(said.stdout)["checks"] if check["check"] == "keys")
        self.assertEqual(found, {"hedgerow-coordinator-keys": ("ok", "the coordinator's"), "hedgerow-worker-keys": ("ok", "a worker's")})


@unittest.skipUnless(MODEL, "HEDGEROW_TEST_MODEL is not set")
class Steps(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        words = "The coordinator keeps a journal of what was granted and committed, and a worker keeps its lease by its heartbeat. "
        (self.folder / "text.txt").write_text("".join(f"{i}. {words}\n" for i in range(4000)))
        self.variables = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}")

    def sh(self, line: str) -> str:
        line = line.replace("MODEL_DIR", shlex.quote(MODEL)).replace("/shared", str(self.folder))
        said = subprocess.run(line, shell=True, cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, f"{line}\n{said.stdout}{said.stderr}")
        return said.stdout

    def small_recipe(self, changes: dict[str, str], name: str = "recipe.toml") -> None:
        """What `init` wrote, with fewer steps, and what the page says to change."""
        path = self.folder / name
        text = path.read_text()
        small = {"max_steps": "2", "seq_len": "128", "window_size": "16", "recall_cache": "16", "validate_every": "1",
                 "max_sequences": "24", "enabled": "false"}
        for key, value in (small | changes).items():
            text, count = re.subn(rf"(?m)^{key} = [^#\n]*", f"{key} = {value} ", text)
            self.assertGreater(count, 0, f"init writes no {key}")
        path.write_text(text)

    def test_the_steps_for_one_machine_end_in_a_run_that_is_done(self):
        for line in block_with("deploy/README.md", "hedgerow init")[3:]:
            self.sh(line)
            if "hedgerow init" in line:
                self.small_recipe({})
        state = json.loads(self.sh("hedgerow status --run my-run --json"))
        self.assertEqual(state["state"], "done")

    def test_the_steps_that_choose_an_attention_end_in_the_recipe_of_a_whole_job(self):
        for line in block_with("deploy/choose-an-attention.md", "--study"):
            said = self.sh(line)
            if "--study" in line:
                # Seven variants and the recipe, a seed each; half of this window is 8.
                self.small_recipe({}, "study.toml")
                path = self.folder / "study.toml"
                text = re.sub(r"(?m)^attention\.window_size = \d+", "attention.window_size = 8", path.read_text())
                text = re.sub(r"(?m)^attention\.recall_cache = \d+", "attention.recall_cache = 8", text)
                path.write_text(re.sub(r"(?m)^seeds = 2\n", "", text))
            if "metrics" in line:
                self.assertEqual(len(said.splitlines()), 9, said)
        self.assertIn("feature_dim = 64 ", (self.folder / "whole.toml").read_text())

    def test_the_steps_for_several_machines_can_be_taken_by_processes_of_one(self):
        peers, keys, run, worker = block_with("deploy/README.md", "--peers 2")
        expand = lambda line: line.replace("/shared", str(self.folder))
        start = lambda line: subprocess.Popen(expand(line), shell=True, cwd=self.folder, env=self.variables, stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT, text=True)
        other = start(peers)
        self.sh(peers)
        self.assertEqual(other.wait(60), 0, other.stdout.read())
        other.stdout.close()
        self.sh(keys)
        self.sh(block_with("deploy/README.md", "hedgerow init")[4])
        # With a finetune stage, for which the worker leaves and behind which it is wanted again.
        self.small_recipe({"local": "0", "bind": '"*"', "port": "0", "advertise": '"127.0.0.1"', "enabled": "true"})
        processes = [start(worker), start(run)]  # in no order
        deadline = time.monotonic() + 240
        try:
            for process in processes:
                out, _ = process.communicate(timeout=max(1, deadline - time.monotonic()))
                self.assertEqual(process.returncode, 0, out)
        finally:
            for process in processes:
                if process.poll() is None:
                    self.sh(f"hedgerow stop --run {self.folder}/my-run")
                    process.communicate()


if __name__ == "__main__":
    unittest.main()
