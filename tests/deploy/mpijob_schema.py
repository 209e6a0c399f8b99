"""JSON schema of kubeflow.org/v2beta1 MPIJob as far as deploy/kubernetes uses it. Kubernetes' own schemas do not have it: it is a
custom resource. Source: the Go types of the Kubeflow MPI operator, pkg/apis/kubeflow/v2beta1/types.go at v0.8.2 (2026-07). A field
that is not listed is refused; pod templates are held against Kubernetes' own definition."""

DEFINITIONS = "https://kubernetes.io/api/_definitions.json#/$defs/"  # as kubernetes-validate names them


def replica() -> dict:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["template"],
        "properties": {
            "replicas": {"type": "integer", "minimum": 1},
            "restartPolicy": {"enum": ["Never", "OnFailure"]},  # the operator's validation takes no other
            "template": {"$ref": DEFINITIONS + "io.k8s.api.core.v1.PodTemplateSpec"},
        },
    }


MPI_JOB = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": {"$ref": DEFINITIONS + "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["mpiReplicaSpecs"],
            "properties": {
                "slotsPerWorker": {"type": "integer", "minimum": 1},
                "runLauncherAsWorker": {"type": "boolean"},
                "sshAuthMountPath": {"type": "string"},
                "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
                "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "runPolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
                        "ttlSecondsAfterFinished": {"type": "integer", "minimum": 0},
                        "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
                        "backoffLimit": {"type": "integer", "minimum": 0},
                        "suspend": {"type": "boolean"},
                    },
                },
                "mpiReplicaSpecs": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["Launcher", "Worker"],
                    "properties": {
                        "Launcher": replica(),
                        "Worker": replica(),
                    },
                },
            },
        },
    },
}
