"""What `kubectl kustomize FOLDER` prints, as objects, for the part of Kustomize that deploy/kubernetes uses: resources,
namespace, images, configMapGenerator with files (no hash suffix), JSON patches. Anything else is an error, so that the
manifests never come to need what the tests do not look at. Where kubectl is, a test holds this against it."""

from __future__ import annotations

from pathlib import Path

import yaml

KNOWN = {"apiVersion", "kind", "resources", "namespace", "images", "configMapGenerator", "generatorOptions", "patches"}


def render(folder: Path) -> list[dict]:
    """The objects of a folder with a kustomization.yaml. Raises ValueError for what is not known here."""
    settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(settings) - KNOWN:
        raise ValueError(f"{folder}: {sorted(unknown)} is beyond what this renderer knows")
    objects = [found for name in settings.get("resources", []) for found in load(folder / name)]
    objects += [config_map(folder, entry, settings) for entry in settings.get("configMapGenerator", [])]
    for patch in settings.get("patches", []):
        apply_patch(objects, patch)
    for image in settings.get("images", []):
        for container in containers(objects):
            if container.get("image") == image["name"]:
                container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    if "namespace" in settings:
        for found in objects:
            found["metadata"]["namespace"] = settings["namespace"]
    return objects


def load(path: Path) -> list[dict]:
    if path.is_dir():
        return render(path)
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def config_map(folder: Path, entry: dict, settings: dict) -> dict:
    if not settings.get("generatorOptions", {}).get("disableNameSuffixHash") or set(entry) != {"name", "files"}:
        raise ValueError(f"{folder}: config maps are made of files, without a hash in their name")
    data = {name: (folder / name).read_text() for name in entry["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": entry["name"]}, "data": data}


def apply_patch(objects: list[dict], patch: dict) -> None:
    target = patch["target"]
    chosen = [found for found in objects if found["kind"] == target["kind"] and found["metadata"]["name"] == target["name"]]
    if not chosen:
        raise ValueError(f"no object for the patch of {target}")
    for operation in yaml.safe_load(patch["patch"]):
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        for found in chosen:
            place = found
            for part in way:
                place = place[int(part)] if isinstance(place, list) else place[part]
            if operation["op"] not in ("add", "replace") or isinstance(place, list):
                raise ValueError(f"unknown operation {operation}")
            if operation["op"] == "replace" and last not in place:
                raise ValueError(f"nothing to replace at {operation['path']}")
            place[last] = operation["value"]


def containers(node):
    """Every container below, of whatever kind of object."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("containers", "initContainers"):
                yield from value
            yield from containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from containers(value)
