"""The rules of the house, as a program: who may import whom, and who may touch the world.

Each rule is a function from the modules of a source tree to the violations found; `test_architecture.py` runs them on
the real tree, and each of them on a tree with a violation in it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = "clymq"

# Highest first. Imports point down; names on one row never import each other.
LAYERS = (
    ("simulation",),
    ("testing",),
    ("cli",),
    ("console", "pipeline"),
    ("spark",),
    ("node",),
    ("broker", "controller"),
    ("metadata",),
    ("replication", "client"),
    ("storage", "rpc"),
    ("protocol", "raft", "record"),
    ("config",),
    ("clock",),
    ("types",),
    ("errors",),
)
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}

NOUNS = {"record", "config", "clock", "types", "errors"}
# What the client side may import beside itself; no row of the server is among it.
CLIENT_SIDE = {
    "client": NOUNS | {"rpc", "protocol"},
    "spark": NOUNS | {"client"},
    "pipeline": NOUNS | {"client", "spark"},
}

PURE = (
    "record",
    "raft",
    "protocol",
    "controller.ring",
    "controller.assignment",
    "broker.subscriptions",
    "client.accumulator",
    "replication.machine",
)
IMPURE_MODULES = {
    "asyncio", "concurrent", "logging", "multiprocessing", "os", "random", "secrets", "selectors", "signal", "socket",
    "ssl", "subprocess", "threading", "time",
}  # fmt: skip

EDGES = ("client.sync", "metadata.zookeeper", "metadata.embedded", "spark", "pipeline", "cli", "testing", "simulation")
MAY_TOUCH_THREADS_SOCKETS_AND_TIME = ("storage.files", "rpc.transport", "clock", *EDGES)
WORLD_MODULES = {
    "concurrent", "multiprocessing", "sched", "selectors", "signal", "socket", "ssl", "subprocess", "threading", "time",
}  # fmt: skip
WORLD_CALLS = {
    "asyncio": {"open_connection", "sleep", "start_server", "timeout", "timeout_at", "to_thread", "wait_for"},
    "datetime": {"now", "today", "utcnow"},
    "*": {"create_connection", "create_server", "run_in_executor"},
}

MAY_TOUCH_FILES = ("storage.files", "config", *EDGES)
FILE_MODULES = {"fcntl", "io", "mmap", "os", "pathlib", "shutil", "tempfile"}

DOORS = {
    "kazoo": ("metadata.zookeeper",),
    "sqlite3": ("metadata.embedded",),
    "pyspark": ("spark", "pipeline"),
    "pyarrow": ("record", "spark", "client"),
    "msgspec": ("config", "protocol", "record", "replication", "metadata"),
    "crc32c": ("record", "storage", "protocol"),
    "click": ("cli",),
    "rich": ("cli",),
    "yaml": ("pipeline",),
    "pytest": ("testing",),
}

VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
FUNCTION_LINES_MAX = 60


@dataclass(frozen=True)
class Module:
    """One source file: its name below the root ("storage.files"; "" is the root itself) and what it says."""

    name: str
    tree: ast.Module

    @property
    def layer(self) -> str:
        return self.name.partition(".")[0]

    def within(self, places: Iterable[str]) -> bool:
        return any(self.name == place or self.name.startswith(place + ".") for place in places)


@dataclass(frozen=True)
class Tree:
    """All modules of a source tree, by name."""

    modules: dict[str, Module]

    @classmethod
    def read(cls, source: Path) -> Tree:
        modules = {}
        for path in sorted((source / ROOT).rglob("*.py")):
            parts = path.relative_to(source / ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = Module(name, ast.parse(path.read_text(encoding="utf-8"), str(path)))
        return cls(modules)

    def inside(self, module: Module) -> set[str]:
        """Return the modules of the tree that a module imports; "" for the root."""
        return {name for name, ours in self._imports(module) if ours}

    def outside(self, module: Module) -> set[str]:
        """Return the top-level packages from elsewhere that a module imports."""
        return {name for name, ours in self._imports(module) if not ours}

    def _imports(self, module: Module) -> Iterator[tuple[str, bool]]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield self._resolved(alias.name, None)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module.name}: imports are absolute"
                for alias in node.names:
                    yield self._resolved(node.module or "", alias.name)

    def _resolved(self, target: str, name: str | None) -> tuple[str, bool]:
        """`from package import module` is an import of that module, not of its package."""
        if target != ROOT and not target.startswith(ROOT + "."):
            return target.partition(".")[0], False
        below = target[len(ROOT) + 1 :]
        deeper = ".".join(filter(None, (below, name or "")))
        return (deeper if deeper in self.modules else below), True


def packages_are_known(tree: Tree) -> list[str]:
    return [f"{m.name}: {m.layer} is in no layer" for m in tree.modules.values() if m.name and m.layer not in ROW]


def imports_point_down(tree: Tree) -> list[str]:
    found = []
    for module in tree.modules.values():
        if not module.name or module.layer not in ROW:
            continue
        for target in tree.inside(module):
            layer = target.partition(".")[0]
            if not target:
                found.append(f"{module.name} imports the root; import the defining module")
            elif layer != module.layer and ROW.get(layer, -1) <= ROW[module.layer]:
                found.append(f"{module.name} imports {target}, which is not below it")
    return found


def client_side_never_imports_server_side(tree: Tree) -> list[str]:
    return [
        f"{module.name} imports {target}: {module.layer} is on the client's side"
        for module in tree.modules.values()
        for target in tree.inside(module)
        if module.layer in CLIENT_SIDE
        and target.partition(".")[0] not in CLIENT_SIDE[module.layer] | {module.layer, ""}
    ]


def pure_packages_are_pure(tree: Tree) -> list[str]:
    """Pure means all the way down: what a pure module imports of ours must be pure as well."""
    found = []
    for module in tree.modules.values():
        if module.within(PURE):
            for name in sorted(_reach(tree, module.name)):
                impure = tree.outside(tree.modules[name]) & IMPURE_MODULES
                found += [f"{module.name} is pure but reaches {each} through {name}" for each in sorted(impure)]
    return found


def _reach(tree: Tree, name: str) -> set[str]:
    reached, waiting = set(), [name]
    while waiting:
        each = waiting.pop()
        if each not in reached and each in tree.modules:
            reached.add(each)
            waiting += tree.inside(tree.modules[each])
    return reached


def only_edges_touch_threads_sockets_and_time(tree: Tree) -> list[str]:
    found = []
    for module in tree.modules.values():
        if module.within(MAY_TOUCH_THREADS_SOCKETS_AND_TIME):
            continue
        found += [f"{module.name} imports {name}" for name in sorted(tree.outside(module) & WORLD_MODULES)]
        found += [f"{module.name} calls {name}" for name in _world_calls(module)]
    return found


def _world_calls(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if node.attr in WORLD_CALLS["*"] or node.attr in WORLD_CALLS.get(owner, ()):
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            yield from (f"asyncio.{a.name}" for a in node.names if a.name in WORLD_CALLS["asyncio"])


def only_files_touches_files(tree: Tree) -> list[str]:
    found = []
    for module in tree.modules.values():
        if module.within(MAY_TOUCH_FILES):
            continue
        found += [f"{module.name} imports {name}" for name in sorted(tree.outside(module) & FILE_MODULES)]
        found += [
            f"{module.name} calls open()"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
        ]
    return found


def every_dependency_has_its_door(tree: Tree) -> list[str]:
    found = []
    for module in tree.modules.values():
        for name in sorted(tree.outside(module)):
            if name in DOORS:
                if not module.within(DOORS[name]):
                    found.append(f"{module.name} imports {name}, whose door is {', '.join(DOORS[name])}")
            elif name not in sys.stdlib_module_names:
                found.append(f"{module.name} imports {name}, which has no door")
    return found


def there_are_no_cycles(tree: Tree) -> list[str]:
    found: list[str] = []
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            found.append(" -> ".join((*path[path.index(name) :], name)))
        elif name not in finished:
            for target in sorted(tree.inside(tree.modules[name]) - {name}):
                if target in tree.modules:
                    visit(target, (*path, name))
            finished.add(name)

    for name in tree.modules:
        visit(name, ())
    return found


def names_are_not_vague(tree: Tree) -> list[str]:
    return [f"{name}: a name for anything" for name in tree.modules if VAGUE_NAMES & set(name.split("."))]


def functions_fit_a_screen(tree: Tree) -> list[str]:
    return [
        f"{module.name}.{node.name} has {(node.end_lineno or 0) - node.lineno + 1} lines"
        for module in tree.modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]


RULES: tuple[Callable[[Tree], list[str]], ...] = (
    packages_are_known,
    imports_point_down,
    client_side_never_imports_server_side,
    pure_packages_are_pure,
    only_edges_touch_threads_sockets_and_time,
    only_files_touches_files,
    every_dependency_has_its_door,
    there_are_no_cycles,
    names_are_not_vague,
    functions_fit_a_screen,
)
