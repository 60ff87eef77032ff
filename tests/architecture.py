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

# Highest first. A package may import what stands in a lower row, and of its own row only itself.
LAYERS = (
    ("__main__",),
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
# Modules of the standard library through which a program can reach a thread, a socket, another process or the time.
WORLD_MODULES = {
    "_thread", "concurrent", "ftplib", "http", "multiprocessing", "queue", "sched", "select", "selectors", "signal",
    "smtplib", "socket", "socketserver", "ssl", "subprocess", "threading", "time", "timeit", "urllib.request",
    "xmlrpc",
}  # fmt: skip
# What a pure module must not reach either; nor may anything be imported behind the checker's back.
IMPURE_MODULES = WORLD_MODULES | {"asyncio", "logging", "os", "random", "secrets", "uuid"}
HIDDEN_IMPORTS = {"importlib", "imp", "runpy"}
MAY_IMPORT_BY_NAME = ("cli.commands",)  # modules beside it, of the topmost layer but two

EDGES = ("client.sync", "metadata.zookeeper", "metadata.embedded", "spark", "pipeline", "cli", "testing", "simulation")
MAY_TOUCH_THREADS_SOCKETS_AND_TIME = ("storage.files", "rpc.transport", "rpc.local", "clock", *EDGES)
# Of asyncio only what runs as well on virtual time: no sleeps, timeouts, threads, connections or subprocesses.
ASYNCIO_ALLOWED = {
    "AbstractEventLoop", "CancelledError", "Event", "Future", "InvalidStateError", "Lock", "Queue", "QueueEmpty",
    "QueueFull", "Semaphore", "Task", "TaskGroup", "create_task", "current_task", "ensure_future", "gather",
    "get_running_loop", "shield",
}  # fmt: skip
DATE_CALLS = {"fromtimestamp", "now", "today", "utcnow"}
# Methods that only an event loop has; `call_later` is the name of our own clock's, so it is allowed
# on a clock and nowhere else.
WORLD_METHODS = {
    "call_at", "connect_accepted_socket", "create_connection", "create_datagram_endpoint", "create_server",
    "create_unix_connection", "create_unix_server", "run_in_executor", "sendfile",
    "sock_accept", "sock_connect", "start_tls", "subprocess_exec", "subprocess_shell",
}  # fmt: skip

MAY_TOUCH_FILES = ("storage.files", "config", *EDGES)
FILE_MODULES = {"codecs", "fcntl", "fileinput", "glob", "io", "mmap", "os", "pathlib", "shutil", "tempfile"}

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
            whole = f"{target}.{name}" if name else target
            return next((each for each in (whole, target) if each in WORLD_MODULES), target.partition(".")[0]), False
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
    """Return a module, what it imports, and the packages that Python runs on the way to each; the root apart."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each and each not in reached and each in tree.modules:
            reached.add(each)
            waiting += [*tree.inside(tree.modules[each]), each.rpartition(".")[0]]
    return reached


def only_edges_touch_threads_sockets_and_time(tree: Tree) -> list[str]:
    found = []
    for module in tree.modules.values():
        if module.within(MAY_TOUCH_THREADS_SOCKETS_AND_TIME):
            continue
        found += [f"{module.name} imports {name}" for name in sorted(tree.outside(module) & WORLD_MODULES)]
        found += [f"{module.name} uses {name}" for name in _world_uses(module)]
    return found


def _world_uses(module: Module) -> Iterator[str]:
    """Yield what a module takes from asyncio beyond what is allowed, and methods that only the world has."""
    asyncio_names = {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] == "asyncio"
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("asyncio."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "asyncio":
            yield from (f"asyncio.{alias.name}" for alias in node.names if alias.name not in ASYNCIO_ALLOWED)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in DATE_CALLS:
            yield ast.unparse(node.func)
        elif isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if owner in asyncio_names and node.attr not in ASYNCIO_ALLOWED:
                yield f"asyncio.{node.attr}"
            elif node.attr in WORLD_METHODS or (node.attr == "call_later" and "clock" not in owner):
                yield f"{owner}.{node.attr}"


def nothing_is_imported_behind_our_back(tree: Tree) -> list[str]:
    found = []
    for module in tree.modules.values():
        if module.within(MAY_IMPORT_BY_NAME):
            continue
        found += [f"{module.name} imports {name}" for name in sorted(tree.outside(module) & HIDDEN_IMPORTS)]
        found += [
            f"{module.name} calls __import__"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Name) and node.id == "__import__"
        ]
    return found


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
        for name in sorted({each.partition(".")[0] for each in tree.outside(module)}):
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
    nothing_is_imported_behind_our_back,
    only_files_touches_files,
    every_dependency_has_its_door,
    there_are_no_cycles,
    names_are_not_vague,
    functions_fit_a_screen,
)
