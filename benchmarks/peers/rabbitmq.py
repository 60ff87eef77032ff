"""RabbitMQ with quorum queues: the server of the distribution, client `pika`. A partition is a queue.

A quorum queue is a Raft log, synced before it is confirmed; there is no other promise. Reading removes: whoever wants
everything has a queue of its own, bound to one exchange. The servers run as the user who measures, with a home, a
name server (`epmd`) and a cookie of their own, so that nothing of them meets a RabbitMQ that is installed as a service.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import Turn, Watch
from benchmarks.peers.system import FIRST, Client, Pace, Programs, Promise, ServerFailed, System, Task, wait_until
from clymq.testing.ports import free_ports

INSTALLED = Path("/usr/lib/rabbitmq/lib")
EPMD = -1
CONTROL_SECONDS_MAX = 60
WINDOW = 2000
PREFETCH = 2000
ACKED_AT_ONCE = 500
QUORUM = {"x-queue-type": "quorum"}


def server_folder() -> Path | None:
    """Return where the programs of the server are; those in the path want to be root."""
    found = sorted(INSTALLED.glob("rabbitmq_server-*/sbin"))
    return found[-1] if found else None


def missing_server() -> str | None:
    """Return what is missing to run a server."""
    if server_folder() is None or shutil.which("epmd") is None:
        return (
            "rabbitmq-server is not installed: apt-get install rabbitmq-server (and stop the service that this starts),"
            " or scripts/bench all --install-peers"
        )
    return None


class RabbitMQ(System):
    """See the module. Streams have servers that are started in the same way."""

    name, key = "RabbitMQ quorum queue", "rabbitmq"

    def __init__(self, promise: Promise, folder: Path) -> None:
        super().__init__(promise, folder)
        count = promise.replicas
        self._epmd_port, *ports = free_ports(1 + 3 * count)
        self._amqp, self._stream, self._between = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self._programs = Programs(folder / "log")

    @classmethod
    def missing(cls) -> str | None:
        """Without server or client."""
        if missing_server() is None and importlib.util.find_spec("pika") is None:
            return "pika is not installed: scripts/setup --bench"
        return missing_server()

    @classmethod
    def server_version(cls) -> str:
        """Of the server, by the name of its folder."""
        found = server_folder()
        assert found is not None
        return f"RabbitMQ {found.parent.name.removeprefix('rabbitmq_server-')}"

    @classmethod
    def version(cls) -> str:
        """Of server and client."""
        return f"{cls.server_version()}, pika {importlib.metadata.version('pika')}"

    @classmethod
    def settings(cls, promise: Promise) -> str | None:
        """It always syncs."""
        return "x-queue-type: quorum, publisher confirms" if promise.synced else None

    # --- Servers ---

    def start(self) -> None:
        """Start what is not running, and wait until all nodes are one cluster."""
        program = server_folder()
        assert program is not None
        self._prepare()
        self._programs.start(EPMD, ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"])
        for number in range(self.promise.replicas):
            self._programs.start(number, [str(program / "rabbitmq-server")], self._environment(number))
        wait_until(self._serves, self._programs)
        if self.promise.replicas > 1:
            wait_until(lambda: len(self._running()) == self.promise.replicas, self._programs)

    def _prepare(self) -> None:
        cookie = self.folder / ".erlang.cookie"
        if cookie.exists():
            return
        cookie.write_text("bench")
        cookie.chmod(0o400)
        (self.folder / "plugins").write_text("[rabbitmq_stream].\n")
        for number in range(self.promise.replicas):
            (self.folder / f"{number}.conf").write_text(self._configuration(number))

    def _configuration(self, number: int) -> str:
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self._amqp[number]}",
            f"stream.listeners.tcp.1 = 127.0.0.1:{self._stream[number]}",
            "stream.advertised_host = 127.0.0.1",
            f"stream.advertised_port = {self._stream[number]}",
        ]
        if self.promise.replicas > 1:
            lines.append("cluster_formation.peer_discovery_backend = classic_config")
            lines += [
                f"cluster_formation.classic_config.nodes.{each + 1} = {_node(each)}"
                for each in range(self.promise.replicas)
            ]
        return "\n".join(lines) + "\n"

    def _environment(self, number: int) -> dict[str, str]:
        base = self.folder / str(number)
        return os.environ | {
            "HOME": str(self.folder), "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": _node(number), "RABBITMQ_DIST_PORT": str(self._between[number]),
            "RABBITMQ_CONFIG_FILE": str(self.folder / f"{number}.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"), "RABBITMQ_MNESIA_BASE": str(base / "data"),
            "RABBITMQ_LOG_BASE": str(base / "log"), "RABBITMQ_GENERATED_CONFIG_DIR": str(base / "config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }  # fmt: skip

    def _serves(self) -> bool:
        for port in self._amqp:
            _connect(f"127.0.0.1:{port}").close()
        return True

    def _running(self) -> list[str]:
        found: list[str] = self._control("cluster_status")["running_nodes"]
        return found

    def _control(self, *arguments: str) -> Any:
        program = server_folder()
        assert program is not None
        for number in range(self.promise.replicas):
            done = subprocess.run(
                [str(program / "rabbitmqctl"), "-n", _node(number), "--formatter", "json", "-q", *arguments],
                capture_output=True, text=True, timeout=CONTROL_SECONDS_MAX, env=self._environment(number), check=False,
            )  # fmt: skip
            if not done.returncode:
                return json.loads(done.stdout)
        raise ServerFailed(done.stderr.strip()[-300:])

    def kill(self, *numbers: int) -> None:
        """Kill servers."""
        self._programs.kill(*numbers)

    def leader(self, topic: str) -> int:
        """By the word of a server."""
        rows = self._control("list_queues", "name", "leader")
        (found,) = [row["leader"] for row in rows if row["name"] == _queue(topic, 0)]
        return int(found.partition("@")[0].removeprefix("bench"))

    def is_whole(self, topic: str) -> bool:
        """When all members are online."""
        rows = self._control("list_queues", "name", "online")
        (found,) = [row["online"] for row in rows if row["name"] == _queue(topic, 0)]
        return len(found) == self.promise.replicas

    @property
    def address(self) -> str:
        """All servers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._amqp)

    @property
    def pids(self) -> list[int]:
        """The servers and their name server."""
        return self._programs.pids


def _node(number: int) -> str:
    return f"bench{number}@localhost"


def _queue(topic: str, number: int) -> str:
    return f"{topic}.{number}"


def _parameters(address: str) -> list[Any]:
    library: Any = importlib.import_module("pika")
    places = [each.rpartition(":") for each in address.split(",")]
    return [
        library.ConnectionParameters(host, int(port), connection_attempts=1, socket_timeout=5, heartbeat=60)
        for host, _, port in places
    ]


def _connect(address: str) -> Any:
    library: Any = importlib.import_module("pika")
    return library.BlockingConnection(_parameters(address))


class RabbitMQClient(Client):
    """pika: its event loop to publish with confirms, its blocking connection to read."""

    _exchange = ""

    def create(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Declare a queue for each partition, or for each reader, then bound to one exchange."""
        with contextlib.closing(_connect(self.address)) as connection:
            channel = connection.channel()
            for number in range(max(partitions, readers)):
                channel.queue_declare(_queue(topic, number), durable=True, arguments=QUORUM)
            if readers > 1:
                self._exchange = topic
                channel.exchange_declare(topic, "fanout")
                for number in range(readers):
                    channel.queue_bind(_queue(topic, number), topic)

    def drop(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Delete the queues."""
        with contextlib.closing(_connect(self.address)) as connection:
            channel = connection.channel()
            for number in range(max(partitions, readers)):
                channel.queue_delete(_queue(topic, number))

    def produce(self, task: Task) -> Turn:
        """Publish with a window of messages that are not confirmed yet."""
        values = ((_queue(task.topic, partition), value) for partition, run in task.runs() for value in run)
        return _Publisher(_parameters(self.address)[0], self._exchange, values).run()

    def consume(self, task: Task, reader: int = 0) -> Turn:
        """`basic_consume`, many messages acknowledged at once."""
        with contextlib.closing(_connect(self.address)) as connection:
            channel, count = connection.channel(), 0
            channel.basic_qos(prefetch_count=PREFETCH)

            def take(_channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
                nonlocal count
                count += 1
                if not count % ACKED_AT_ONCE or count == task.count:
                    channel.basic_ack(method.delivery_tag, multiple=True)

            watch, deadline = Watch(), time.perf_counter() + task.seconds
            channel.basic_consume(_queue(task.topic, reader), take)
            while count < task.count and time.perf_counter() < deadline:
                connection.process_data_events(time_limit=0.05)
            return watch.stop(count)

    def write_paced(self, topic: str, pace: Pace) -> None:
        """Publish; the reader's word is enough that it has arrived."""
        with contextlib.closing(_connect(self.address)) as connection:
            channel = connection.channel()
            properties = _persistent()
            channel.basic_publish("", _queue(topic, 0), FIRST, properties)
            for value in pace:
                channel.basic_publish("", _queue(topic, 0), value, properties)

    def follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        """Be sent messages that need no acknowledgement."""
        with contextlib.closing(_connect(self.address)) as connection:
            channel, is_over = connection.channel(), False

            def take(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
                nonlocal is_over
                is_over = is_over or taken(body)

            channel.basic_consume(_queue(topic, 0), take, auto_ack=True)
            ready()
            while not is_over:
                connection.process_data_events(time_limit=1)

    def write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        """Publish and wait for the confirm; connect anew where that fails."""
        library: Any = importlib.import_module("pika")
        while True:
            try:
                with contextlib.closing(_connect(self.address)) as connection:
                    self._write_with(connection, topic, acknowledged)
                    return
            except (library.exceptions.AMQPError, OSError):
                time.sleep(0.01)

    @staticmethod
    def _write_with(connection: Any, topic: str, acknowledged: Callable[[], bool]) -> None:
        channel, properties = connection.channel(), _persistent()
        channel.confirm_delivery()
        while True:
            channel.basic_publish("", _queue(topic, 0), FIRST, properties)
            if acknowledged():
                return


def _persistent() -> Any:
    library: Any = importlib.import_module("pika")
    return library.BasicProperties(delivery_mode=2)


class _Publisher:
    """Publishes from pika's event loop: as many as the window allows, more whenever some are confirmed."""

    def __init__(self, parameters: Any, exchange: str, values: Iterator[tuple[str, bytes]]) -> None:
        library: Any = importlib.import_module("pika")
        self._connection = library.SelectConnection(
            parameters, on_open_callback=self._opened, on_open_error_callback=self._failed,
            on_close_callback=self._closed,
        )  # fmt: skip
        self._exchange = exchange
        self._values = values
        self._properties = _persistent()
        self._unconfirmed: dict[int, None] = {}
        self._count = 0
        self._is_exhausted = False
        self._problem: object = None

    def run(self) -> Turn:
        """Publish everything."""
        self._connection.ioloop.start()
        if self._problem is not None:
            raise ServerFailed(str(self._problem))
        return self._turn

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._ready)

    def _failed(self, connection: Any, problem: object) -> None:
        self._problem = problem
        connection.ioloop.stop()

    def _closed(self, connection: Any, problem: object) -> None:
        if not self._is_exhausted or self._unconfirmed:
            self._problem = problem
        connection.ioloop.stop()

    def _ready(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed)
        self._watch = Watch()
        self._publish()

    def _publish(self) -> None:
        publish, exchange, unconfirmed = self._channel.basic_publish, self._exchange, self._unconfirmed
        while len(unconfirmed) < WINDOW and not self._is_exhausted:
            found = next(self._values, None)
            if found is None:
                self._is_exhausted = True
                break
            self._count += 1
            unconfirmed[self._count] = None
            publish(exchange, *found, self._properties)
        if self._is_exhausted and not unconfirmed:
            self._turn = self._watch.stop(self._count)
            self._connection.close()

    def _confirmed(self, frame: Any) -> None:
        tag, unconfirmed = frame.method.delivery_tag, self._unconfirmed
        if frame.method.NAME == "Basic.Nack":
            self._problem = "a message was refused"
        if frame.method.multiple:
            while unconfirmed and (oldest := next(iter(unconfirmed))) <= tag:
                del unconfirmed[oldest]
        else:
            del unconfirmed[tag]
        self._publish()
