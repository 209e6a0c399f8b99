#!/usr/bin/env python3
"""oci_image.py ROOTFS OUT.tar --commit HASH: a folder as an image of one layer in the Open Container Initiative's layout, packed in a tar
that podman, docker, skopeo and apptainer read (as oci-archive). The same folder gives the same bytes: owners, times and order are
settled here. The image's settings are SETTINGS; Containerfile and hedgerow.def say the same for those tools' own builds."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tarfile
import zlib
from pathlib import Path

USER = 1000  # its home is all that it owns
EPOCH = 1_700_000_000  # of every file: pip and make leave times that differ from build to build
SETTINGS = {
    "User": f"{USER}:{USER}",
    "WorkingDir": "/home/hedgerow",
    "Cmd": ["hedgerow", "--help"],
    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


class Compressed:
    """A file that is written to: gzip without a time in its header, hashed before and after."""

    def __init__(self, path: Path):
        self.file = open(path, "wb")
        self.plain, self.packed, self.size = hashlib.sha256(), hashlib.sha256(), 0
        self.gzip = zlib.compressobj(1, zlib.DEFLATED, 31)

    def put(self, data: bytes) -> None:
        self.packed.update(data)
        self.size += len(data)
        self.file.write(data)

    def write(self, data: bytes) -> int:
        self.plain.update(data)
        self.put(self.gzip.compress(data))
        return len(data)

    def close(self) -> None:
        self.put(self.gzip.flush())
        self.file.close()


def settled(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    owner = USER if entry.name == "home/hedgerow" or entry.name.startswith("home/hedgerow/") else 0
    entry.uid = entry.gid = owner
    entry.uname = entry.gname = ""
    entry.mtime = EPOCH
    return entry


def write_layer(rootfs: Path, path: Path) -> Compressed:
    out = Compressed(path)
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as layer:
        for folder, folders, files in os.walk(rootfs):
            folders.sort()
            links = [name for name in folders if (Path(folder) / name).is_symlink()]
            for name in sorted([name for name in folders if name not in links] + links + files):
                full = Path(folder) / name
                entry = settled(layer.gettarinfo(full, str(full.relative_to(rootfs))))
                if entry.isreg():
                    with open(full, "rb") as file:
                        layer.addfile(entry, file)
                elif entry.isdir() or entry.issym() or entry.islnk():
                    layer.addfile(entry)
    out.close()
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rootfs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True)
    options = parser.parse_args()
    layer_file = options.out.with_suffix(".layer")
    layer = write_layer(options.rootfs, layer_file)
    labels = {"org.opencontainers.image.title": "hedgerow", "org.opencontainers.image.licenses": "Apache-2.0",
              "org.opencontainers.image.revision": options.commit}
    blobs = {}

    def blob(value: dict, kind: str) -> dict:
        data = json.dumps(value, sort_keys=True).encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    config = blob({"architecture": "amd64", "os": "linux", "config": SETTINGS | {"Labels": labels},
                   "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.plain.hexdigest()}"]}}, CONFIG)
    manifest = blob({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [
        {"mediaType": LAYER, "digest": f"sha256:{layer.packed.hexdigest()}", "size": layer.size}]}, MANIFEST)
    index = {"schemaVersion": 2, "manifests": [manifest | {"annotations": {"org.opencontainers.image.ref.name": "hedgerow"}}]}
    with tarfile.open(options.out, "w") as image:
        def add(name: str, data: bytes) -> None:
            entry = settled(tarfile.TarInfo(name))
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))

        add("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        add("index.json", json.dumps(index, sort_keys=True).encode())
        for digest, data in sorted(blobs.items()):
            add(f"blobs/sha256/{digest}", data)
        entry = settled(image.gettarinfo(layer_file, f"blobs/sha256/{layer.packed.hexdigest()}"))
        with open(layer_file, "rb") as file:
            image.addfile(entry, file)
    layer_file.unlink()
    print(f"{options.out}: {manifest['digest']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
