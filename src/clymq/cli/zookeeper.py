"""`clymq zookeeper`: a real ZooKeeper server on this machine, from jars that are here already.

PySpark's wheel carries ZooKeeper 3.9; Debian's packages put it under /usr/share. `ZookeeperServer` finds one of them,
runs it as a child and watches over it; the command and the tests use the same class. For one machine and for trying
things out, alone or as a member of an ensemble: ensembles that matter are run by the people who run ensembles. It
listens on the loopback interface only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from clymq.cli.children import dying_with_its_parent
from clymq.cli.flags import setting_option
from clymq.errors import ConfigError, ConnectFailed

HOST = "127.0.0.1"
TICK_MS = 500
# How long members may need to find each other, and to follow.
INIT_TICKS_MAX = 20
SYNC_TICKS_MAX = 6
JAVA_NEEDED = 17
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0
# Without metrics-core the server does not start; without snappy-java it starts and no session can be made.
JARS_NEEDED = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_INSTALL_JARS = "pip install 'clymq[spark]' (its jars are enough), or apt-get install zookeeper"
_INSTALL_JAVA = f"apt-get install openjdk-{JAVA_NEEDED}-jre-headless"


@click.command()
@setting_option("--name", default="zookeeper", show_default=True, help="What it calls itself when it is ready.")
@click.option("--port", type=click.IntRange(0, 65535), default=2181, show_default=True, help="0: any free port.")
@setting_option(
    "--data", type=click.Path(path_type=Path), default="zookeeper-data", show_default=True, help="Its folder."
)
@click.option(
    "--ensemble", metavar="PORT:PORT,...", help="Two ports of each member, for what members say to each other."
)
@click.option("--member", type=click.IntRange(1, 255), help="Which of the ensemble this one is, from 1.")
def zookeeper(name: str, port: int, data: Path, ensemble: str | None, member: int | None) -> int:
    """Run a real ZooKeeper on this machine, for the loopback interface, until SIGTERM or SIGINT."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server = ZookeeperServer(data, port, membership=_membership(ensemble, member))
    server.start(stopped)
    try:
        if not stopped.is_set():
            click.echo(f"ready {name} {server.address}")
            sys.stdout.flush()
        while not stopped.wait(0.2):
            server.check()
    finally:
        server.stop()
    return 0


@dataclass(frozen=True, slots=True)
class Membership:
    """A place in an ensemble: of each member the two ports where the others find it, and which member this is."""

    ports: tuple[tuple[int, int], ...]
    member: int
    """From 1."""

    @property
    def settings(self) -> dict[str, object]:
        """What ZooKeeper has to be told."""
        members = {f"server.{n}": f"{HOST}:{one}:{other}" for n, (one, other) in enumerate(self.ports, 1)}
        return {"initLimit": INIT_TICKS_MAX, "syncLimit": SYNC_TICKS_MAX, **members}


def _membership(ensemble: str | None, member: int | None) -> Membership | None:
    """Return what the two flags say, or raise with what is wrong with them."""
    if ensemble is None and member is None:
        return None
    rule = "--ensemble PORT:PORT,PORT:PORT,... and --member, from 1 to their number, go together"
    try:
        pairs = [each.split(":") for each in (ensemble or "").split(",")]
        ports = tuple((int(one), int(other)) for one, other in pairs)
    except ValueError:
        raise ConfigError("ensemble", ensemble, rule) from None
    if member is None or member > len(ports):
        raise ConfigError("member", member, rule)
    return Membership(ports, member)


class ZookeeperServer:
    """One ZooKeeper process: `start`, then clients may come to `address`, then `stop`.

    A member of an ensemble serves when a majority of the members is there.
    """

    def __init__(self, data: Path, port: int = 0, *, membership: Membership | None = None) -> None:
        self._data = data
        self._port = port
        self._membership = membership
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None, "the server is not started"
        return self._process.pid

    def start(self, stopped: threading.Event | None = None) -> None:
        """Run it, and wait until it serves; a second start goes on with the same data on the same port.

        Returns early when `stopped` is set meanwhile.
        """
        java, jars = find_java(), find_jars()
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._port == 0:
            self._port = _free_port()
        (self._data / "zoo.cfg").write_text(self._settings())
        if self._membership is not None:
            (self._data / "myid").write_text(f"{self._membership.member}\n")
        with (self._data / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 the command is ours
                self._command(java, jars),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dying_with_its_parent(),  # noqa: PLW1509 it calls nothing but the kernel
            )
        self._wait_until_ready(stopped or threading.Event())

    def check(self) -> None:
        """Raise if the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            log = self._data / "zookeeper.log"
            raise ConnectFailed(f"zookeeper ended with exit code {self._process.returncode}", hint=f"see {log}")

    def stop(self) -> None:
        """End it; what it has acknowledged is on its disk."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _command(self, java: str, jars: list[Path]) -> list[str]:
        small = ["-Xmx128m", "-Xms16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        path = os.pathsep.join(map(str, jars))
        return [java, *small, "-cp", path, "org.apache.zookeeper.server.quorum.QuorumPeerMain", f"{self._data}/zoo.cfg"]

    def _settings(self) -> str:
        settings = {
            "tickTime": TICK_MS,
            "dataDir": self._data.resolve(),
            "clientPort": self._port,
            "clientPortAddress": HOST,
            "admin.enableServer": "false",  # its web server is not among the jars
            "4lw.commands.whitelist": "srvr",
            "maxClientCnxns": 0,
            **(self._membership.settings if self._membership is not None else {}),
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _wait_until_ready(self, stopped: threading.Event) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        try:
            while not self._is_ready() and not stopped.wait(0.02):
                self.check()
                if time.monotonic() > deadline:
                    raise ConnectFailed(f"zookeeper at {self.address} does not serve after {READY_SECONDS_MAX:.0f} s")
        except BaseException:
            self.stop()
            raise

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), timeout=1) as connection:
            # "imok" comes too early, before a session can be made; the mode is known when it serves.
            connection.sendall(b"srvr")
            return b"Mode:" in b"".join(iter(lambda: connection.recv(4096), b""))
        return False


def find_java() -> str:
    """Return the command that runs Java, or raise with what to install."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else None
    java = java or shutil.which("java")
    if java is None:
        raise ConfigError("java", None, f"Java {JAVA_NEEDED} or newer is needed: {_INSTALL_JAVA}", source="PATH")
    return java


def find_jars() -> list[Path]:
    """Return the jars that make a server, from the first place that has them, or raise with what to install."""
    for place in _places():
        # Debian's jars have names without versions beside those with.
        found = [sorted([*place.glob(f"{name}-[0-9]*.jar"), *place.glob(f"{name}.jar")]) for name in JARS_NEEDED]
        if all(found):
            return [jars[-1] for jars in found]
    raise ConfigError("zookeeper", None, f"ZooKeeper's jars are needed: {_INSTALL_JARS}", source="this machine")


def _places() -> Iterator[Path]:
    spark_home = os.environ.get("SPARK_HOME")
    if spark_home:
        yield Path(spark_home) / "jars"
    for entry in sys.path:
        yield Path(entry) / "pyspark" / "jars"
    yield from map(Path, ("/usr/share/java", "/usr/share/zookeeper", "/usr/share/zookeeper/lib"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
