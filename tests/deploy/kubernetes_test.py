"""The manifests of deploy/kubernetes against Kubernetes' schemas, against each other, and against the programs that they start.
Nothing here needs a cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import tomllib
import unittest
from importlib import resources
from pathlib import Path

import kustomize
import mpijob_schema
import yaml

try:
    import jsonschema
    import kubernetes_validate
    from referencing import Registry, Resource
except ImportError as missing:
    raise unittest.SkipTest(f"{missing}; deploy/setup --tests installs it") from missing

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "deploy/kubernetes"
EXAMPLE = FOLDER / "overlays/example"
BIN = Path(os.environ["HEDGEROW_BIN"])
# backoffLimitPerIndex is stable since 1.33; the newest that the package knows tells of what is to go.
VERSIONS = ["1.33", "1.37"]
REACTIONS = {1: "Count", 2: "FailJob", 3: "FailIndex", 4: "Ignore", 5: "Count"}


def exit_codes() -> dict[str, int]:
    text = (TOP / "storage/base/error.hpp").read_text()
    return {name: int(code) for name, code in re.findall(r"^  k(\w+) = (\d+),", text, re.M)}


def stop_patience() -> int:
    return int(re.search(r"kStopTimeout\{(\d+)\}", (TOP / "coordinator/serve/coordinator.cpp").read_text())[1])


def pods(objects: list[dict]):
    """(name, pod spec, labels) of everything that makes pods."""
    for found in objects:
        name = f"{found['kind']}/{found['metadata']['name']}"
        if found["kind"] == "MPIJob":
            for role, replica in found["spec"]["mpiReplicaSpecs"].items():
                yield f"{name}/{role}", replica["template"]["spec"], replica["template"]["metadata"]["labels"]
        elif "template" in found.get("spec", {}):
            yield name, found["spec"]["template"]["spec"], found["spec"]["template"]["metadata"]["labels"]


def validate_mpi_job(found: dict, version: str) -> None:
    definitions = json.loads(
        resources.files("kubernetes_validate").joinpath(f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json").read_text())
    registry = Resource.from_contents(definitions) @ Registry()
    jsonschema.Draft202012Validator(mpijob_schema.MPI_JOB, registry=registry).validate(found)


def command_lines(objects: list[dict]) -> list[list[str]]:
    """Calls of our programs, with their words: those of containers and those inside scripts."""
    lines = []
    for container in kustomize.containers(objects):
        for handler in [container, container.get("readinessProbe", {}).get("exec", {})]:
            lines.append(handler.get("command", []) + handler.get("args", []))
    for found in objects:
        lines += [[text] for text in found.get("data", {}).values()]
    calls = []
    for words in lines:
        text = " ".join(words).replace("\\\n", " ")
        calls += [match.split() for match in re.findall(r"(?:^|[\s/;&|])(hedgerow(?:-worker)? [a-z]+[^\n;&|]*)", text)]
    return [call for call in calls if call[1] not in ("ended", "run`") and "#" not in " ".join(call)]


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.objects = kustomize.render(EXAMPLE)
        cls.recipe = tomllib.loads((EXAMPLE / "recipe.toml").read_text())

    def named(self, kind: str, name: str) -> dict:
        return next(o for o in self.objects if o["kind"] == kind and o["metadata"]["name"] == name)

    def test_every_object_holds_to_the_schemas_of_kubernetes(self):
        for version in VERSIONS:
            for found in self.objects:
                with self.subTest(version=version, kind=found["kind"], name=found["metadata"]["name"]):
                    if found["kind"] == "MPIJob":
                        validate_mpi_job(found, version)
                    else:
                        kubernetes_validate.validate(found, version, strict=True)

    def test_the_schemas_refuse_what_is_misspelt(self):
        job = json.loads(json.dumps(self.named("Job", "hedgerow-worker")))
        job["spec"]["backoffLimitPerIndexes"] = 3
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(job, VERSIONS[0], strict=True)
        mpi_job = json.loads(json.dumps(self.named("MPIJob", "hedgerow-finetune")))
        worker = mpi_job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
        worker["terminationGracePeriodSecond"] = 3
        with self.assertRaises(jsonschema.ValidationError):
            validate_mpi_job(mpi_job, VERSIONS[0])

    def test_the_renderer_of_these_tests_says_what_kubectl_says(self):
        if not shutil.which("kubectl"):
            self.skipTest("no kubectl here")
        for folder in [FOLDER / "base", FOLDER / "finetune", EXAMPLE]:
            said = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
            if said.returncode != 0 and "unknown field" in said.stderr:
                self.skipTest("this kubectl has a Kustomize from before version 4")
            self.assertEqual(said.returncode, 0, said.stderr)
            theirs = [found for found in yaml.safe_load_all(said.stdout) if found]
            order = lambda found: (found["kind"], found["metadata"]["name"])
            self.assertEqual(sorted(theirs, key=order), sorted(kustomize.render(folder), key=order))

    def test_workers_fail_by_exactly_the_exit_codes_of_the_programs(self):
        rules = self.named("Job", "hedgerow-worker")["spec"]["podFailurePolicy"]["rules"]
        self.assertEqual(rules[0], {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
        found = {}
        for rule in rules[1:]:
            self.assertEqual((rule["onExitCodes"]["containerName"], rule["onExitCodes"]["operator"]), ("worker", "In"))
            for code in rule["onExitCodes"]["values"]:
                self.assertNotIn(code, found)
                found[code] = rule["action"]
        self.assertEqual(found, REACTIONS)
        self.assertEqual(set(found), set(exit_codes().values()) - {0}, "storage/base/error.hpp has other codes")

    def test_a_job_of_workers_never_has_two_pods_of_one_index(self):
        spec = self.named("Job", "hedgerow-worker")["spec"]
        self.assertEqual((spec["completionMode"], spec["podReplacementPolicy"]), ("Indexed", "Failed"))
        self.assertEqual(spec["completions"], spec["parallelism"], "or it cannot be scaled")
        self.assertIn("backoffLimitPerIndex", spec)

    def test_every_pod_gets_the_time_that_a_stop_takes(self):
        least = stop_patience() + 15
        for name, spec, _ in pods(self.objects):
            self.assertGreaterEqual(spec["terminationGracePeriodSeconds"], least, name)

    def test_every_option_that_is_used_is_known_to_the_program(self):
        calls = command_lines(self.objects)
        self.assertEqual(sorted({(call[0], call[1]) for call in calls}),
                         [("hedgerow", "run"), ("hedgerow", "status"), ("hedgerow", "worker"), ("hedgerow-worker", "finetune")])
        for program, command, *words in calls:
            asked = [str(BIN / program), "help", command] if program == "hedgerow" else [str(BIN / program), command, "--help"]
            known = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            for word in words:
                if word.startswith("--"):
                    self.assertRegex(known, rf"(?m)^ .*{word}\b", f"{program} {command}")

    def test_recipe_service_and_policy_name_one_port_and_one_host(self):
        service = self.named("Service", "hedgerow-coordinator")
        coordinator = self.named("StatefulSet", "hedgerow-coordinator")
        policy = self.named("NetworkPolicy", "hedgerow-coordinator")["spec"]["ingress"][0]
        workers = self.recipe["workers"]
        ports = {workers["port"], service["spec"]["ports"][0]["port"], policy["ports"][0]["port"],
                 coordinator["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]}
        self.assertEqual(len(ports), 1, ports)
        self.assertEqual(coordinator["spec"]["serviceName"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertEqual(workers["advertise"], f"{coordinator['metadata']['name']}-0.{service['metadata']['name']}")

    def test_only_workers_and_ranks_reach_the_coordinator_and_nobody_a_worker(self):
        labels = {name: found for name, _, found in pods(self.objects)}
        policies = {o["metadata"]["name"]: o["spec"] for o in self.objects if o["kind"] == "NetworkPolicy"}
        for name, found in labels.items():
            chosen = [p for p in policies.values() if p["podSelector"]["matchLabels"].items() <= found.items()]
            self.assertEqual(len(chosen), 1, f"{name} has not one policy")
            self.assertEqual(chosen[0]["policyTypes"], ["Ingress"])
        self.assertEqual(policies["hedgerow-worker"]["ingress"], [])
        expressions = policies["hedgerow-coordinator"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"]
        allowed = {e["key"].rsplit("/", 1)[1]: set(e["values"]) for e in expressions}
        self.assertEqual(allowed, {"name": {"hedgerow"}, "component": {"worker", "finetune"}})

    def test_ranks_are_as_many_as_the_recipe_says_and_start_elsewhere(self):
        spec = self.named("MPIJob", "hedgerow-finetune")["spec"]
        self.assertEqual(spec["mpiReplicaSpecs"]["Worker"]["replicas"] * spec["slotsPerWorker"], self.recipe["finetune"]["ranks"])
        self.assertEqual(self.recipe["finetune"]["launch"], "elsewhere")
        self.assertTrue(spec["runPolicy"]["suspend"], "it would hold GPUs while the transfer runs")

    def test_what_a_pod_mounts_exists_and_secrets_are_its_own_in_memory(self):
        made = {(o["kind"], o["metadata"]["name"]) for o in self.objects}
        page = (FOLDER / "README.md").read_text()
        for name, spec, _ in pods(self.objects):
            for volume in spec.get("volumes", []):
                if "persistentVolumeClaim" in volume:
                    self.assertIn(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]), made, name)
                if "configMap" in volume:
                    self.assertIn(("ConfigMap", volume["configMap"]["name"]), made, name)
                if "secret" in volume:
                    self.assertEqual(volume["secret"]["defaultMode"], 0o400, name)
                    self.assertIn(f"create secret generic {volume['secret']['secretName']} ", page)
                    users = [c["name"] for c in kustomize.containers(spec)
                             if volume["name"] in [m["name"] for m in c.get("volumeMounts", [])]]
                    self.assertEqual(users, ["keys"], f"{name}: others than the copy in memory see the Secret")
            for container in spec["containers"]:
                mounts = {m["name"]: m for m in container.get("volumeMounts", [])}
                if "keys" in mounts:
                    self.assertEqual((mounts["keys"]["mountPath"], mounts["keys"]["readOnly"]), ("/run-volume/hedgerow/keys", True))

    def test_no_pod_is_root_or_can_become_it(self):
        for name, spec, _ in pods(self.objects):
            self.assertTrue(spec["securityContext"]["runAsNonRoot"], name)
            self.assertFalse(spec["automountServiceAccountToken"], name)
            for container in kustomize.containers(spec):
                self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"], name)
                self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]}, name)
                self.assertTrue(container["image"].startswith("registry.example.org/hedgerow:"), name)

    def test_the_recipe_of_the_example_has_only_known_keys(self):
        said = subprocess.run([str(BIN / "hedgerow"), "plan", "--recipe", str(EXAMPLE / "recipe.toml")],
                              capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 2)
        self.assertIn("/run-volume/models/", said.stderr, "only the model, which is in the cluster, is missed")


FAKE = """#!/bin/sh
trap 'echo told; exit 4' TERM USR1
echo "$@" >"$ARGUMENTS"
echo started
[ -z "${ENDS_WITH:-}" ] || exit "$ENDS_WITH"
while :; do sleep 1000 & wait $!; done
"""


def slowed(script: str) -> str:
    """As a busy machine may run it: the program has ended before the shell goes on from its first `wait`."""
    text, count = re.subn(r'(wait "\$child"\n *again=\$\?)', r'\1; [ -n "${slow:-}" ] || { slow=1; sleep 0.3; }', script, count=1)
    if count != 1:
        raise AssertionError(f"no wait in {script}")
    return text


class Scripts(unittest.TestCase):
    """The shell around the programs, with a program that does as it is told."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        for name in ["hedgerow", "mpirun"]:
            (self.folder / name).write_text(FAKE)
            (self.folder / name).chmod(0o755)

    def start(self, words: list[str], ends_with: int | None) -> subprocess.Popen:
        variables = dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", ARGUMENTS=str(self.folder / "arguments"),
                         ENDS_WITH="" if ends_with is None else str(ends_with))
        process = subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   start_new_session=True)
        self.addCleanup(self.end, process)
        self.assertEqual(process.stdout.readline(), "started\n")
        return process

    @staticmethod
    def end(process: subprocess.Popen) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        process.stdout.close()

    def coordinate(self, ends_with: int | None) -> subprocess.Popen:
        return self.start(["/bin/sh", str(FOLDER / "base/coordinate.sh"), "/run", "/recipe"], ends_with)

    def test_a_coordinator_that_failed_ends_its_pod_so_that_it_is_started_again(self):
        for code in (1, 5):
            process = self.coordinate(code)
            self.assertEqual(process.wait(20), code)
        self.assertEqual((self.folder / "arguments").read_text(), "run --run /run --recipe /recipe --workers 0\n")

    def test_a_coordinator_that_would_only_end_again_leaves_its_pod_there_until_it_is_deleted(self):
        for code in (0, 2, 3, 4):
            process = self.coordinate(code)
            self.assertIn(f"exit code {code}", process.stdout.readline())
            self.assertIsNone(process.poll())
            process.terminate()
            self.assertEqual(process.wait(20), code)

    def test_eviction_reaches_the_coordinator_and_its_answer_is_the_pods(self):
        process = self.coordinate(None)
        process.terminate()
        self.assertEqual(process.stdout.readline(), "told\n")
        self.assertEqual(process.wait(20), 4)

    def test_eviction_of_the_launcher_reaches_the_ranks_as_a_signal_that_mpirun_hands_on(self):
        container = self.finetune_container("Launcher")
        (self.folder / "mpirun").write_text(FAKE.replace("TERM USR1", "USR1"))  # TERM would kill it
        process = self.start(container["command"] + container["args"], None)
        process.terminate()
        self.assertEqual(process.stdout.readline(), "told\n")
        self.assertEqual(process.wait(20), 4)

    def test_an_answer_that_comes_before_the_shell_looks_again_is_not_lost(self):
        coordinate = (FOLDER / "base/coordinate.sh").read_text()
        launcher = self.finetune_container("Launcher")
        (self.folder / "mpirun").write_text(FAKE.replace("TERM USR1", "USR1"))  # TERM would kill it
        for name, command in (("coordinator", ["/bin/sh", "-c", slowed(coordinate), "sh", "/run", "/recipe"]),
                              ("launcher", [*launcher["command"], slowed(*launcher["args"])])):
            with self.subTest(name):
                process = self.start(command, None)
                process.terminate()
                self.assertEqual(process.wait(20), 4)

    def test_a_launcher_that_is_evicted_before_it_has_begun_hands_that_on_too(self):
        container = self.finetune_container("Launcher")
        (self.folder / "mpirun").write_text("#!/bin/sh\ntrap 'exit 4' USR1\necho started\nsleep 2 & wait $!\n")
        script = container["args"][0].replace("trap tell TERM INT\n", "trap tell TERM INT\nkill -TERM $$\n")
        early = "sleep 1\n[ \"$signals\" = 0 ]"  # a child that listens already
        process = self.start([*container["command"], script.replace('[ "$signals" = 0 ]', early)], None)
        self.assertEqual(process.wait(20), 4)
        self.assertEqual(process.stdout.read(), "")

    def finetune_container(self, role: str) -> dict:
        job = next(o for o in kustomize.render(FOLDER / "finetune") if o["kind"] == "MPIJob")
        return job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"][0]

    def before_the_end_of_a_ranks_pod(self, rank: str, seconds: int | None = None) -> list[str]:
        """What `rank` says until the handler is through, the handler's waiting cut to `seconds`. It finds ranks by name, so all of
        this has a namespace of processes to itself, as a pod has."""
        words = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("this user may not make namespaces")
        *shell, handler = self.finetune_container("Worker")["lifecycle"]["preStop"]["exec"]["command"]
        if seconds is not None:
            handler = handler.replace("left=50", f"left={seconds}")
        (self.folder / "started").unlink(missing_ok=True)
        (self.folder / "hedgerow-worker").write_text("#!/bin/sh\n" + rank)
        (self.folder / "hedgerow-worker").chmod(0o755)
        begin = f"{self.folder}/hedgerow-worker & until [ -e {self.folder}/started ]; do sleep 0.1; done; \"$@\"; echo over"
        said = subprocess.run([*words, "sh", "-c", begin, "sh", *shell, handler], capture_output=True, text=True, timeout=30, check=True)
        return said.stdout.splitlines()

    def test_the_pod_of_a_rank_ends_when_the_rank_was_told_and_has_ended(self):
        started = f"touch {self.folder}/started\n"
        waits = "while :; do sleep 1000 & wait $!; done\n"
        self.assertEqual(self.before_the_end_of_a_ranks_pod(f"trap 'sleep 2; echo checkpointed; exit 4' USR1\n{started}{waits}"),
                         ["checkpointed", "over"])
        self.assertEqual(self.before_the_end_of_a_ranks_pod(f"trap '' USR1\n{started}{waits}", seconds=2), ["over"])
        self.assertEqual(self.before_the_end_of_a_ranks_pod(started), ["over"], "there is no rank")
        handler = self.finetune_container("Worker")["lifecycle"]["preStop"]["exec"]["command"][-1]
        pod = next(spec for name, spec, _ in pods(kustomize.render(FOLDER / "finetune")) if name.endswith("Worker"))
        self.assertLess(int(re.search(r"left=(\d+)", handler)[1]), pod["terminationGracePeriodSeconds"])


if __name__ == "__main__":
    unittest.main()
