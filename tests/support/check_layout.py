#!/usr/bin/env python3
"""Checks the folders of the source tree: their size, which folder includes which, and that a page names each.

  check_layout.py [SOURCE_DIR]     exit 1 and one line a problem; SOURCE_DIR: by default the tree of this script
  check_layout.py --write-table    writes today's includes into ALLOWED below; read the diff before a commit
  check_layout.py --self-test      the checker finds a break of every rule in a tree made for it

1. A folder holds at most 25 units. A unit is a base name: a header and its source are one.
2. The quoted includes make no cycle between folders.
3. A folder includes only the folders that ALLOWED names for it, and every entry of ALLOWED is in use.
4. A product folder with sources has a README.md, or the README.md of the nearest folder above names it: `folder/`.

The units of tests/ are counted too. Third-party headers and links are the matter of check_dependencies.py.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PRODUCT = ("storage", "kernels", "coordinator", "worker")
MAX_UNITS = 25
SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh", ".py", ".in"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')

# What the folders under each prefix may include; a longer prefix wins. --write-table refuses what breaks this.
TOP_LEVEL = {
    "storage": ("storage", "kernels/options"),
    "kernels/options": (),
    "kernels": ("kernels",),
    "coordinator": ("storage", "coordinator"),
    "coordinator/machine": ("storage", "coordinator/machine"),
    "coordinator/wire": ("storage", "coordinator/wire"),
    "worker": ("storage", "kernels", "coordinator/bench", "coordinator/machine", "coordinator/wire", "worker"),
}

# Folder -> the other folders that its files include today. Written by --write-table.
ALLOWED: dict[str, set[str]] = {
    "coordinator/bench": {"storage/model"},
    "coordinator/cli": {"coordinator/cli/terminal", "storage/base", "storage/files"},
    "coordinator/cli/commands": {"coordinator/cli"},
    "coordinator/cli/commands/job": {"coordinator/cli/commands", "coordinator/cli/programs", "coordinator/cli/run",
        "coordinator/cli/tasks", "coordinator/cli/terminal", "coordinator/dispatch", "coordinator/host",
        "coordinator/net", "coordinator/plan", "coordinator/serve", "coordinator/state", "coordinator/status",
        "coordinator/web", "coordinator/wire", "storage/base", "storage/files", "storage/history", "storage/model",
        "storage/recipe"},
    "coordinator/cli/commands/look": {"coordinator/cli/commands", "coordinator/cli/programs", "coordinator/cli/run",
        "coordinator/cli/terminal", "coordinator/state", "coordinator/status", "coordinator/web", "storage/files",
        "storage/history", "storage/journal", "storage/model"},
    "coordinator/cli/commands/machine": {"coordinator/cli", "coordinator/cli/commands", "coordinator/cli/doctor",
        "coordinator/cli/run", "coordinator/cli/terminal", "coordinator/plan", "coordinator/status",
        "coordinator/wire", "storage/base", "storage/files", "storage/model", "storage/recipe"},
    "coordinator/cli/commands/model": {"coordinator/cli/commands", "coordinator/cli/export",
        "coordinator/cli/programs", "coordinator/cli/run", "coordinator/cli/tasks", "coordinator/cli/terminal",
        "coordinator/host", "coordinator/status", "storage/base", "storage/files", "storage/model",
        "storage/recipe"},
    "coordinator/cli/doctor": {"coordinator/bench", "coordinator/cli/programs", "coordinator/cli/terminal",
        "coordinator/host", "coordinator/machine", "coordinator/net", "coordinator/plan", "coordinator/web",
        "coordinator/wire", "storage/base", "storage/files", "storage/model", "storage/recipe"},
    "coordinator/cli/export": {"coordinator/cli", "coordinator/cli/programs", "coordinator/cli/terminal",
        "coordinator/dispatch", "coordinator/state", "coordinator/status", "storage", "storage/base",
        "storage/files", "storage/journal", "storage/model", "storage/recipe", "storage/shards", "storage/tensors"},
    "coordinator/cli/programs": {"coordinator/cli/terminal", "coordinator/host", "coordinator/machine",
        "storage/base"},
    "coordinator/cli/run": {"coordinator/cli", "coordinator/cli/programs", "coordinator/cli/terminal",
        "coordinator/host", "coordinator/machine", "coordinator/plan", "coordinator/simulate", "coordinator/state",
        "coordinator/status", "storage", "storage/base", "storage/files", "storage/journal", "storage/model",
        "storage/recipe", "storage/shards"},
    "coordinator/cli/tasks": {"coordinator/cli", "coordinator/cli/export", "coordinator/cli/programs",
        "coordinator/cli/terminal", "coordinator/status", "storage/base", "storage/files", "storage/model"},
    "coordinator/cli/terminal": {"coordinator/plan", "coordinator/status", "storage/base", "storage/history"},
    "coordinator/dispatch": {"coordinator/host", "coordinator/plan", "coordinator/state", "coordinator/wire",
        "storage/base", "storage/faults", "storage/files", "storage/journal", "storage/json"},
    "coordinator/host": {"coordinator/machine", "coordinator/state", "coordinator/wire", "storage/base",
        "storage/files", "storage/journal"},
    "coordinator/net": {"coordinator/host", "coordinator/wire", "storage/base", "storage/files"},
    "coordinator/plan": {"coordinator/machine", "coordinator/state", "coordinator/wire", "storage/base",
        "storage/files", "storage/json", "storage/model", "storage/recipe", "storage/shape", "storage/shards"},
    "coordinator/serve": {"coordinator/dispatch", "coordinator/host", "coordinator/machine", "coordinator/net",
        "coordinator/plan", "coordinator/simulate", "coordinator/state", "coordinator/status", "coordinator/web",
        "coordinator/wire", "storage", "storage/base", "storage/faults", "storage/files", "storage/history",
        "storage/journal", "storage/json", "storage/model", "storage/recipe", "storage/tensors"},
    "coordinator/simulate": {"coordinator/dispatch", "coordinator/plan", "coordinator/state", "storage/base"},
    "coordinator/state": {"coordinator/wire", "storage/base", "storage/files", "storage/journal", "storage/json"},
    "coordinator/status": {"coordinator/dispatch", "coordinator/host", "coordinator/plan", "coordinator/state",
        "coordinator/wire", "storage/base", "storage/files", "storage/journal", "storage/json", "storage/recipe"},
    "coordinator/web": {"coordinator/state", "coordinator/status", "coordinator/wire", "storage/base",
        "storage/files", "storage/history"},
    "coordinator/wire": {"storage/base", "storage/files", "storage/journal", "storage/json"},
    "kernels": {"kernels/aten", "kernels/cpu", "kernels/cuda", "kernels/options", "kernels/problem"},
    "kernels/aten": {"kernels/problem"},
    "kernels/cpu": {"kernels/maps", "kernels/problem"},
    "kernels/cuda": {"kernels/cuda/decode", "kernels/cuda/elementwise", "kernels/cuda/hybrid", "kernels/cuda/tile",
        "kernels/cuda/transfer", "kernels/problem"},
    "kernels/cuda/decode": {"kernels/cuda/tile", "kernels/options"},
    "kernels/cuda/elementwise": {"kernels/cuda/tile"},
    "kernels/cuda/hybrid": {"kernels/cuda/tile"},
    "kernels/cuda/tile": {"kernels/maps", "kernels/options"},
    "kernels/cuda/transfer": {"kernels/cuda/hybrid", "kernels/cuda/tile"},
    "kernels/maps": {"kernels/options"},
    "kernels/ops": {"kernels", "kernels/cuda", "kernels/problem"},
    "kernels/plain/examples": {"kernels/plain"},
    "kernels/problem": {"kernels/maps", "kernels/options"},
    "storage": {"storage/base", "storage/files", "storage/shards"},
    "storage/faults": {"storage/base", "storage/files"},
    "storage/files": {"storage/base"},
    "storage/history": {"storage/base", "storage/faults", "storage/files"},
    "storage/journal": {"storage/base", "storage/faults", "storage/files", "storage/json", "storage/shards"},
    "storage/json": {"storage/base", "storage/files"},
    "storage/model": {"kernels/options", "storage/base", "storage/files", "storage/json", "storage/tensors"},
    "storage/recipe": {"storage/base", "storage/files", "storage/model", "storage/shape"},
    "storage/shape": {"storage/base", "storage/model"},
    "storage/shards": {"storage/base", "storage/files", "storage/json"},
    "storage/tensors": {"storage/base", "storage/files", "storage/json"},
    "worker": {"coordinator/wire", "storage/base", "storage/faults", "worker/client", "worker/device",
        "worker/evaluate", "worker/logits", "worker/model", "worker/task", "worker/transfer"},
    "worker/bench": {"coordinator/bench", "storage/base", "storage/recipe", "worker/model", "worker/task",
        "worker/transfer"},
    "worker/client": {"coordinator/wire", "storage", "storage/base", "storage/files", "storage/json"},
    "worker/comm": {"storage/base"},
    "worker/commands": {"coordinator/machine", "coordinator/wire", "kernels", "storage/base", "storage/faults",
        "storage/files", "storage/tensors", "worker", "worker/bench", "worker/client", "worker/comm",
        "worker/device", "worker/evaluate", "worker/finetune", "worker/generate", "worker/laboratory",
        "worker/model", "worker/probe", "worker/task"},
    "worker/device": {"coordinator/machine", "storage/base", "storage/shards", "worker/model"},
    "worker/evaluate": {"coordinator/wire", "kernels", "storage/base", "storage/files", "storage/history",
        "storage/model", "storage/recipe", "storage/shape", "storage/shards", "worker/client", "worker/model",
        "worker/task"},
    "worker/finetune": {"coordinator/wire", "kernels", "storage/base", "storage/faults", "storage/files",
        "storage/recipe", "storage/shape", "storage/shards", "storage/tensors", "worker/client", "worker/comm",
        "worker/device", "worker/logits", "worker/model", "worker/model/layer", "worker/optim", "worker/task"},
    "worker/generate": {"kernels", "kernels/cuda", "storage/base", "storage/shape", "worker/comm", "worker/device",
        "worker/model", "worker/model/layer"},
    "worker/laboratory": {"storage/base", "storage/files", "storage/json", "storage/tensors", "worker/model",
        "worker/optim"},
    "worker/laboratory/studies": {"storage/base", "worker/laboratory"},
    "worker/logits": {"coordinator/wire", "storage/base", "storage/faults", "storage/files", "storage/recipe",
        "storage/shape", "storage/shards", "worker/model/layer", "worker/task", "worker/transfer"},
    "worker/model": {"coordinator/machine", "kernels", "kernels/cuda", "kernels/problem", "storage/base",
        "storage/files", "storage/model", "storage/recipe", "storage/tensors", "worker/model/layer"},
    "worker/model/layer": {"kernels/cuda", "storage/model"},
    "worker/optim": {"storage/recipe"},
    "worker/probe": {"kernels/problem", "storage/base", "storage/files", "storage/model", "storage/shards",
        "worker/model", "worker/transfer"},
    "worker/task": {"coordinator/machine", "coordinator/wire", "storage/base", "storage/files", "storage/model",
        "storage/recipe", "storage/shards", "storage/tensors", "worker/device", "worker/model"},
    "worker/transfer": {"coordinator/wire", "kernels", "kernels/problem", "storage/base", "storage/faults",
        "storage/files", "storage/model", "storage/recipe", "storage/shards", "storage/tensors", "worker/device",
        "worker/model", "worker/model/layer", "worker/optim", "worker/task"},
}  # end of ALLOWED


@dataclass(frozen=True)
class Include:
    file: str  # relative to the top, as quoted includes are
    line: int
    source: str  # the folder that includes
    target: str  # the folder that is included


@dataclass
class Folder:
    units: set[str]
    num_lines: int


def folder_of(name: str) -> str:
    return PurePosixPath(name).parent.as_posix()


def is_under(folder: str, tops: tuple[str, ...]) -> bool:
    return any(folder == top or folder.startswith(top + "/") for top in tops)


def read_tree(root: Path) -> tuple[dict[str, Folder], list[Include]]:
    """The folders with sources, and the includes between two different folders of the product."""
    folders: dict[str, Folder] = defaultdict(lambda: Folder(set(), 0))
    includes = []
    for top in (*PRODUCT, "tests"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            lines = path.read_text(encoding="utf-8").splitlines()
            folder = folder_of(name)
            folders[folder].units.add(path.name.split(".")[0])
            folders[folder].num_lines += len(lines)
            if top == "tests":
                continue
            for number, line in enumerate(lines, 1):
                match = INCLUDE.match(line)
                if match and folder_of(match[1]) != folder:
                    includes.append(Include(name, number, folder, folder_of(match[1])))
    return dict(sorted(folders.items())), includes


def directions(includes: list[Include]) -> dict[str, set[str]]:
    table: dict[str, set[str]] = defaultdict(set)
    for include in includes:
        table[include.source].add(include.target)
    return dict(sorted(table.items()))


def breaks_top_level(include: Include) -> bool:
    prefix = max((top for top in TOP_LEVEL if is_under(include.source, (top,))), key=len)
    return not is_under(include.target, TOP_LEVEL[prefix])


def check_sizes(folders: dict[str, Folder]) -> list[str]:
    return [f"{name}/: {len(folder.units)} units, more than {MAX_UNITS}; split the folder by idea"
            for name, folder in folders.items() if len(folder.units) > MAX_UNITS]


def check_cycles(includes: list[Include]) -> list[str]:
    """One line an include that closes a cycle: its target includes its folder, over any number of steps."""
    table = directions(includes)

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        open_folders = [start]
        while open_folders:
            for target in table.get(open_folders.pop(), set()) - seen:
                seen.add(target)
                open_folders.append(target)
        return seen

    reached = {folder: reachable(folder) for folder in table}
    return [f"{include.file}:{include.line}: {include.source}/ includes {include.target}/, which includes "
            f"{include.source}/ in a cycle" for include in includes
            if include.source in reached.get(include.target, set())]


def check_directions(includes: list[Include], allowed: dict[str, set[str]]) -> list[str]:
    problems = [f"{include.file}:{include.line}: {include.source}/ may not include {include.target}/; ALLOWED of "
                "check_layout.py does not name it" for include in includes
                if breaks_top_level(include) or include.target not in allowed.get(include.source, set())]
    used = directions(includes)
    return problems + [f"ALLOWED of check_layout.py: {source}/ includes {target}/ no more; run --write-table"
                       for source, targets in allowed.items() for target in sorted(targets - used.get(source, set()))]


def check_pages(root: Path, folders: dict[str, Folder]) -> list[str]:
    problems = []
    for name in folders:
        path = PurePosixPath(name)
        if path.parts[0] not in PRODUCT:
            continue
        page = next((above for above in (path, *path.parents) if (root / above / "README.md").exists()), None)
        if page == path:
            continue
        text = (root / page / "README.md").read_text(encoding="utf-8") if page else ""
        if page is None or f"`{path.relative_to(page)}/`" not in text:
            problems.append(f"{name}/: has no README.md, and no README.md above names it")
    return problems


def check_tree(root: Path, allowed: dict[str, set[str]]) -> tuple[list[str], dict[str, Folder]]:
    folders, includes = read_tree(root)
    problems = check_sizes(folders) + check_cycles(includes) + check_directions(includes, allowed)
    return problems + check_pages(root, folders), folders


def table_text(table: dict[str, set[str]]) -> str:
    lines = []
    for source, targets in table.items():
        line = f'    "{source}": {{'
        for target in sorted(targets):
            if len(line) + len(target) + 5 > 118:
                lines.append(line.rstrip())
                line = " " * 8
            line += f'"{target}", '
        lines.append(line.removesuffix(", ") + "},")
    return "\n".join(lines)


def write_table(root: Path, script: Path) -> int:
    """Writes the table into the script and returns how many folders it has."""
    _, includes = read_tree(root)
    broken = [f"{include.file}:{include.line}: {include.source}/ may never include {include.target}/"
              for include in includes if breaks_top_level(include)] + check_cycles(includes)
    if broken:
        sys.exit("\n".join(broken))
    text = script.read_text(encoding="utf-8")
    start = text.index("ALLOWED: dict[str, set[str]] = {\n")
    end = text.index("}  # end of ALLOWED", start)
    head = text[:text.index("\n", start) + 1]
    script.write_text(head + table_text(directions(includes)) + "\n" + text[end:], encoding="utf-8")
    return len(directions(includes))


def self_test() -> None:
    good = {
        "storage/README.md": "`base/` is the lowest folder.",
        "storage/base/file.hpp": "#include <string>\n",
        "storage/base/file.cpp": '#include "storage/base/file.hpp"\n',
        "storage/shards/README.md": "Shards.",
        "storage/shards/shard.cpp": '#include "storage/base/file.hpp"\n// #include "worker/serve.hpp"\n',
        "worker/README.md": "Worker.",
        "worker/serve.cpp": '#include "storage/base/file.hpp"\n',
    } | {f"tests/units/u{n}.{suffix}": "" for n in range(MAX_UNITS) for suffix in ("hpp", "cpp")}
    allowed = {"storage/shards": {"storage/base"}, "worker": {"storage/base"}}
    cases = [  # what is added to the good tree and to its table, and the start of the one problem
        ("good tree", {}, {}, None),
        ("too many units", {"tests/units/one_more.py": ""}, {}, "tests/units/: 26 units"),
        ("cycle of two", {"storage/base/b.cpp": '#include "storage/shards/s.hpp"\n'},
         {"storage/base": {"storage/shards"}}, "storage/base/b.cpp:1: storage/base/ includes storage/shards/, which"),
        ("not in the table", {"worker/a.cpp": '\n#include "storage/shards/s.hpp"\n'}, {},
         "worker/a.cpp:2: worker/ may not include storage/shards/"),
        ("in the table, but of a forbidden top folder", {"storage/base/a.cpp": '#include "kernels/a.hpp"\n'},
         {"storage/base": {"kernels"}}, "storage/base/a.cpp:1: storage/base/ may not include kernels/"),
        ("include without a folder", {"worker/a.cpp": '#include "serve.hpp"\n'}, {},
         "worker/a.cpp:1: worker/ may not include ./"),
        ("entry that no include uses", {}, {"worker": {"storage/base", "kernels"}},
         "ALLOWED of check_layout.py: worker/"),
        ("folder that no page names", {"storage/new/a.cpp": ""}, {}, "storage/new/: has no README.md"),
        ("folder without any page", {"kernels/a.cpp": ""}, {}, "kernels/: has no README.md"),
    ]
    for name, files, entries, start in cases:
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            for file, text in (good | files).items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(text, encoding="utf-8")
            problems, _ = check_tree(root, allowed | entries)
            is_found = any(problem.startswith(start) for problem in problems) if start else True
            num_others = sum(start is None or not problem.startswith(start) for problem in problems)
            num_allowed = 1 if name == "cycle of two" else 0  # the include on the way back
            if not is_found or num_others > num_allowed:
                sys.exit(f"{name}: expected {start!r}, found " + "\n".join(problems or ["nothing"]))
    self_test_write_table()
    print(f"{len(cases)} trees judged as expected, the table was written")


def self_test_write_table() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        script = root / "check_layout.py"
        script.write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
        (root / "worker").mkdir()
        includes = '#include "storage/base/a.hpp"\n#include "kernels/a.hpp"\n'
        (root / "worker/a.cpp").write_text(includes, encoding="utf-8")
        write_table(root, script)
        if '{\n    "worker": {"kernels", "storage/base"},\n}  # end' not in script.read_text(encoding="utf-8"):
            sys.exit("--write-table did not write the table of the tree")


def main() -> None:
    script = Path(__file__).resolve()
    top = script.parents[2]
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        self_test()
        return
    if arguments == ["--write-table"]:
        print(f"{write_table(top, script)} folders written into ALLOWED")
        return
    if len(arguments) > 1 or arguments[:1] and arguments[0].startswith("-"):
        sys.exit(__doc__)
    root = Path(arguments[0]) if arguments else top
    problems, folders = check_tree(root, ALLOWED)
    if not folders:
        sys.exit(f"{root}: no source files; pass the top of the source tree")
    width = max(map(len, folders))
    for name, folder in folders.items():
        print(f"{name:{width}} {len(folder.units):3} units {folder.num_lines:6} lines")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(folders)} folders, {sum(len(folder.units) for folder in folders.values())} units, no rule broken")


if __name__ == "__main__":
    main()
