"""Real processes are started, killed, stopped, frozen and cut off from each other, and nothing of them stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clymq.cli.zookeeper import find_jars, find_java
from clymq.errors import ClymqError, TransportError
from clymq.metadata.store import ANY_VERSION, MetadataStore, Put
from clymq.testing.namespaces import PREFIX, Namespaces, remove_leftovers
from clymq.testing.network import Network, make_network
from clymq.testing.processes import Processes, ProcessFailed
from clymq.testing.proxies import Proxies
from clymq.testing.store_cluster import StoreCluster, StoreKind
from clymq.testing.waiting import WaitedTooLong, until_asked, wait_until
from rows import descriptors

SERVER = """
import signal, socket, sys, time
name, address, mood = sys.argv[1:]
host, port = address.split(":")
listening = socket.create_server((host, int(port)))
if mood == "clean": signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if mood == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"something about {name}", file=sys.stderr, flush=True)
if mood == "failing": sys.exit("no luck today")
if mood == "rude": print("hello", flush=True)
if mood == "silent": time.sleep(600)
print(f"ready {name} {host}:{listening.getsockname()[1]}", flush=True)
while True:
    connection, _ = listening.accept()
    connection.sendall(name.encode())
    if connection.recv(1): connection.sendall(b"!")
    connection.close()
"""
ASKER = """
import socket, sys
host, port = sys.argv[1].split(":")
with socket.create_connection((host, int(port)), timeout=float(sys.argv[2])) as connection:
    connection.settimeout(float(sys.argv[2]))
    print(connection.recv(100).decode(), end="")
    connection.sendall(b"?")
    print(connection.recv(100).decode())
"""
# Says its name once for each SIGUSR1, and writes down what it hears; who connects begins.
TALKER = """
import signal, socket, sys
name, address, how = sys.argv[1:]
host, port = address.split(":")
signal.signal(signal.SIGUSR1, lambda *_: connection.sendall(name.encode()))
if how == "accept":
    listening = socket.create_server((host, int(port)))
    print(f"ready {name} {host}:{listening.getsockname()[1]}", flush=True)
    connection, _ = listening.accept()
else:
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(name.encode())
    print(f"ready {name} {address}", flush=True)
while said := connection.recv(100):
    sys.stderr.write(said.decode())
    sys.stderr.flush()
"""
LONG_SECONDS = 20.0
# How long silence is listened to: what gets through a network that is whole does so in milliseconds.
SILENCE_SECONDS = 0.5


def server(name: str, mood: str = "clean", address: str = "127.0.0.1:0") -> list[str]:
    return [sys.executable, "-c", SERVER, name, address, mood]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path, stop_seconds_max=LONG_SECONDS) as these:
        yield these


def asked(address: str) -> str:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=LONG_SECONDS) as connection:
        return connection.recv(100).decode()


def is_gone(pid: int) -> bool:
    """Not even a zombie is left."""
    return not Path(f"/proc/{pid}").exists()


# --- Processes ---


def test_a_process_is_ready_when_it_says_so_and_answers_where_it_says(processes: Processes) -> None:
    processes.add("a", server("a"))
    processes.add("b", server("b"))
    processes.start("a", "b")
    assert [asked(processes.address(name)) for name in ("a", "b")] == ["a", "b"]


def test_a_killed_process_is_gone_and_can_be_started_again(processes: Processes) -> None:
    processes.add("a", server("a"))
    processes.start("a")
    first = processes.pid("a")
    processes.kill("a")
    assert is_gone(first)
    assert not processes.is_running("a")
    processes.kill("a")
    processes.start("a")
    assert processes.pid("a") != first
    assert asked(processes.address("a")) == "a"
    assert processes.log_path("a").read_text() == "something about a\n" * 2


def test_a_process_that_stops_cleanly_is_gone(processes: Processes) -> None:
    processes.add("a", server("a"))
    processes.start("a")
    pid = processes.pid("a")
    processes.stop("a")
    assert is_gone(pid)


def test_a_process_that_does_not_stop_cleanly_fails_the_test_and_is_gone_as_well(tmp_path: Path) -> None:
    with Processes(tmp_path, stop_seconds_max=0.2) as processes:
        for mood, told in (("deaf", r"did not stop within 0.2 s"), ("untidy", r"exit code -15")):
            processes.add("a", server("a", mood))
            processes.start("a")
            pid = processes.pid("a")
            with pytest.raises(ProcessFailed, match=f"a (stopped with )?{told}(.|\n)*something about a"):
                processes.stop("a")
            assert is_gone(pid)


@pytest.mark.parametrize(
    ("mood", "told"),
    [
        ("failing", "ended with exit code 1 before it was ready(.|\n)*no luck today"),
        ("rude", "said 'hello' first(.|\n)*something about a"),
        ("silent", "was not ready within 1 s"),
    ],
)
def test_a_process_that_is_not_ready_is_killed_and_the_end_of_its_log_shown(
    tmp_path: Path, mood: str, told: str
) -> None:
    patience_seconds = 1 if mood == "silent" else LONG_SECONDS
    with Processes(tmp_path, ready_seconds_max=patience_seconds) as processes:
        processes.add("a", server("a", mood))
        with pytest.raises(ProcessFailed, match=told):
            processes.start("a")
        assert not processes.is_running("a")


def test_a_frozen_process_does_nothing_until_it_is_thawed(processes: Processes) -> None:
    processes.add("a", server("a"))
    processes.start("a")
    processes.freeze("a")
    host, port = processes.address("a").split(":")
    with socket.create_connection((host, int(port)), timeout=SILENCE_SECONDS) as connection:
        with pytest.raises(TimeoutError):
            connection.recv(1)
        processes.thaw("a")
        connection.settimeout(LONG_SECONDS)
        assert connection.recv(100) == b"a"
    processes.freeze("a")
    processes.stop("a")
    processes.start("a")
    processes.freeze("a")
    processes.kill("a")


def test_everything_is_killed_after_an_exception_and_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = descriptors()
    pids = []

    def run() -> None:
        with Processes(tmp_path) as processes:
            for name, mood in (("a", "clean"), ("b", "deaf"), ("c", "clean")):
                processes.add(name, server(name, mood))
            processes.start("a", "b", "c")
            processes.freeze("c")
            pids.extend(processes.pid(name) for name in processes.names)
            raise KeyError("something else")

    with pytest.raises(KeyError):
        run()
    assert [is_gone(pid) for pid in pids] == [True] * 3
    assert descriptors() <= before


@pytest.mark.parametrize("session", [False, True])
def test_what_a_process_has_started_dies_with_it(processes: Processes, session: bool) -> None:
    program = (
        "import subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        f"child = subprocess.Popen(sleep, start_new_session={session})\n"
        "print(f'ready parent 127.0.0.1:{child.pid}', flush=True)\n"
        "time.sleep(600)\n"
    )
    processes.add("parent", [sys.executable, "-c", program])
    processes.start("parent")
    child = int(processes.address("parent").split(":")[1])
    processes.kill("parent")
    wait_until(lambda: is_gone(child) or _is_zombie(child), "the child is gone", seconds_max=LONG_SECONDS)


def _is_zombie(pid: int) -> bool:
    """An orphan is reaped by whoever is process 1, which is not ours to wait for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_processes_serve_an_event_loop_as_well(tmp_path: Path) -> None:
    async def run() -> int:
        async with Processes(tmp_path) as processes:
            processes.add("a", server("a"))
            await asyncio.to_thread(processes.start, "a")
            return processes.pid("a")

    assert is_gone(asyncio.run(run()))


# --- The network between them ---


@pytest.fixture(params=["proxies", "namespaces"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    refusal = Namespaces.refusal()
    if request.param == "namespaces" and refusal is not None:
        pytest.skip(f"no network namespaces here: {refusal}")
    made = make_network(["a", "b", "c"], request.param)
    made.start()
    try:
        yield made
    finally:
        made.close()


def serve(processes: Processes, network: Network, *names: str) -> None:
    for name in names:
        processes.add(name, network.command(name, server(name, address=network.listen_address(name))))
    processes.start(*names)
    for name in names:
        network.serves(name, processes.address(name))


@contextmanager
def asking(network: Network, source: str, target: str, *, patience_seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ASKER, network.address(source, target), str(patience_seconds)]
    with subprocess.Popen(
        network.command(source, command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as asker:
        yield asker
        asker.kill()


def hears(network: Network, source: str, target: str, *, patience_seconds: float = LONG_SECONDS) -> str:
    """Return what a process at `source` gets to hear when it connects to the server of `target`, and asks."""
    with asking(network, source, target, patience_seconds=patience_seconds) as asker:
        return asker.communicate(timeout=60)[0].strip()


def test_everybody_reaches_everybody_and_the_test_reaches_all(processes: Processes, network: Network) -> None:
    serve(processes, network, "a", "b", "c")
    assert [asked(processes.address(name)) for name in ("a", "b", "c")] == ["a", "b", "c"]
    assert [hears(network, source, target) for source in "abc" for target in "abc" if source != target] == [
        "b!", "c!", "a!", "c!", "a!", "b!",
    ]  # fmt: skip


def test_a_cut_pair_hears_nothing_of_each_other_until_healed_and_others_notice_nothing(
    processes: Processes, network: Network
) -> None:
    serve(processes, network, "a", "b", "c")
    network.partition("a", "b")
    assert hears(network, "a", "b", patience_seconds=SILENCE_SECONDS) == ""
    assert hears(network, "b", "a", patience_seconds=SILENCE_SECONDS) == ""
    assert hears(network, "a", "c") == "c!"
    assert hears(network, "c", "b") == "b!"
    assert asked(processes.address("a")) == "a"
    network.heal()
    assert hears(network, "a", "b") == "b!"
    assert hears(network, "b", "a") == "a!"


def test_a_connection_that_was_tried_during_a_cut_is_made_after_it(processes: Processes, network: Network) -> None:
    serve(processes, network, "a", "b")
    network.partition("a", "b")
    with asking(network, "a", "b", patience_seconds=LONG_SECONDS) as asker:
        with pytest.raises(subprocess.TimeoutExpired):
            asker.wait(SILENCE_SECONDS)
        network.heal()
        assert asker.communicate(timeout=60)[0].strip() == "b!"


def test_a_way_can_be_cut_in_one_direction_alone(processes: Processes, network: Network) -> None:
    """On a connection that is open: making one takes both directions."""
    processes.add("a", network.command("a", talker("a", network.listen_address("a"), "accept")))
    processes.start("a")
    network.serves("a", processes.address("a"))
    processes.add("b", network.command("b", talker("b", network.address("b", "a"), "connect")))
    processes.start("b")
    wait_until(lambda: heard(processes, "a") == "b", "a has heard that b is there", seconds_max=LONG_SECONDS)
    network.partition("a", "b", one_way=True)
    os.kill(processes.pid("b"), signal.SIGUSR1)
    wait_until(lambda: heard(processes, "a") == "bb", "a hears b", seconds_max=LONG_SECONDS)
    os.kill(processes.pid("a"), signal.SIGUSR1)
    with pytest.raises(WaitedTooLong):
        wait_until(lambda: heard(processes, "b") != "", "b hears a", seconds_max=SILENCE_SECONDS)
    network.heal()
    wait_until(lambda: heard(processes, "b") == "a", "b hears a in the end", seconds_max=LONG_SECONDS)


def talker(name: str, address: str, how: str) -> list[str]:
    return [sys.executable, "-c", TALKER, name, address, how]


def heard(processes: Processes, name: str) -> str:
    return processes.log_path(name).read_text()


def test_a_process_that_comes_back_is_found_again(processes: Processes, network: Network) -> None:
    serve(processes, network, "a", "b")
    processes.kill("b")
    assert hears(network, "a", "b") == ""
    serve(processes, network, "b")
    assert hears(network, "a", "b") == "b!"


def test_proxies_can_delay_and_reset(processes: Processes) -> None:
    network = Proxies(["a", "b"])
    network.start()
    try:
        serve(processes, network, "a", "b")
        network.delay("b", "a", 1000 * LONG_SECONDS)
        with asking(network, "a", "b", patience_seconds=LONG_SECONDS) as asker:
            with pytest.raises(subprocess.TimeoutExpired):
                asker.wait(SILENCE_SECONDS)
            network.reset("a", "b")
            assert asker.communicate(timeout=60)[0].strip() == ""
        network.heal()
        assert hears(network, "a", "b") == "b!"
    finally:
        network.close()


def test_namespaces_of_a_run_that_was_killed_are_removed_with_what_runs_in_them() -> None:
    refusal = Namespaces.refusal()
    if refusal is not None:
        pytest.skip(f"no network namespaces here: {refusal}")
    program = (
        "import os, subprocess, time\n"
        "from clymq.testing.namespaces import Namespaces\n"
        "network = Namespaces(['a'], port=1)\n"
        "network.start()\n"
        "sleeper = subprocess.Popen(network.command('a', ['sleep', '600']), start_new_session=True)\n"
        "while os.readlink(f'/proc/{sleeper.pid}/exe').endswith('ip'): time.sleep(0.01)\n"
        "print(os.getpid(), sleeper.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid, sleeper = map(int, run.stdout.readline().split())
        mine = f"{PREFIX}-{pid}-"
        remove_leftovers()
        assert mine in namespaces()
        run.kill()
    remove_leftovers()
    assert mine not in namespaces()
    wait_until(lambda: is_gone(sleeper) or _is_zombie(sleeper), "the sleeper is gone", seconds_max=LONG_SECONDS)


def test_nothing_of_a_network_is_left_when_it_is_closed() -> None:
    refusal = Namespaces.refusal()
    if refusal is not None:
        pytest.skip(f"no network namespaces here: {refusal}")
    network = Namespaces(["a", "b"], port=7774)
    network.start()
    assert f"{PREFIX}-{os.getpid()}-" in namespaces()
    network.close()
    assert f"{PREFIX}-{os.getpid()}-" not in namespaces()
    assert f"{PREFIX}{os.getpid()}." not in ip("-o", "link", "show")


def namespaces() -> str:
    return ip("netns", "list")


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


# --- Metadata stores ---


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.quick_skip)])
def store_kind(request: pytest.FixtureRequest) -> StoreKind:
    if request.param == "zookeeper":
        pytest.importorskip("kazoo")
        try:
            find_java()
            find_jars()
        except ClymqError as error:
            pytest.skip(f"no ZooKeeper here: {error}")
    return request.param


def test_a_store_keeps_what_it_was_told_through_a_kill_and_a_clean_stop_and_while_it_is_cut_off(
    tmp_path: Path, store_kind: StoreKind
) -> None:
    settings = {"session_timeout_ms": 30_000, "store_request_ms_max": 500}

    async def run() -> None:
        async with StoreCluster(store_kind, folder=tmp_path, settings=settings) as cluster:
            store = await cluster.connect()
            try:
                await store.create("/a", b"one")
                cluster.kill(cluster.server)
                await asyncio.to_thread(cluster.start, cluster.server)
                assert await value_of_a(store) == b"one"
                await store.commit([Put("/a", b"two", ANY_VERSION)], timeout_ms=1000 * LONG_SECONDS)
                await asyncio.to_thread(cluster.stop, cluster.server)
                await asyncio.to_thread(cluster.start, cluster.server)
                assert await value_of_a(store) == b"two"
                cluster.cut_off()
                with pytest.raises(TransportError):
                    await store.put("/a", b"three", ANY_VERSION)
                cluster.heal()
                assert await value_of_a(store) in {b"two", b"three"}
            finally:
                await store.close()

    asyncio.run(run())


async def value_of_a(store: MetadataStore) -> bytes:
    """Read, as often as it takes: the connection may have to be made anew first."""
    values: list[bytes] = []

    async def read() -> bool:
        try:
            values.append((await store.get("/a")).value)
        except TransportError:
            return False
        return True

    await until_asked(read, "the store answers", seconds_max=LONG_SECONDS)
    return values[0]
