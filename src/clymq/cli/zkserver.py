"""`clymq zkserver`: the process that owns the metadata."""

from __future__ import annotations

import random

import click

from clymq.cli.flags import setting_option
from clymq.cli.serving import serve
from clymq.cli.stores import zookeeper_store
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.node.zkserver import ZkServerNode
from clymq.rpc.transport import TcpTransport


@click.command()
@setting_option("--name", default="ZkServer0", show_default=True, help="Unique among the zkservers of a cluster.")
@setting_option(
    "--listen", default="127.0.0.1:7878", show_default=True, metavar="HOST:PORT", help="Port 0: any free one."
)
@setting_option(
    "--store",
    type=click.Choice(["embedded", "zookeeper"]),
    default="embedded",
    show_default=True,
    help="Where the metadata is.",
)
@setting_option(
    "--zookeeper",
    "hosts",
    default="127.0.0.1:2181",
    show_default=True,
    metavar="HOSTS",
    help="With --store zookeeper: its servers.",
)
@setting_option("--root", default="/ClyMQ", show_default=True, help="Where the cluster's tree lies in ZooKeeper.")
@setting_option("--data", default="zkserver-data", show_default=True, help="The folder of the embedded store.")
@click.pass_obj
def zkserver(config: Config, name: str, listen: str, store: str, hosts: str, root: str, data: str) -> None:
    """Serve a cluster's metadata until SIGTERM or SIGINT.

    With the embedded store this process holds it, alone, and brokers reach it here. With ZooKeeper several zkservers
    may run; the tree is there.
    """

    clock, chance = SystemClock(), random.SystemRandom()
    transport = TcpTransport(local=config.local_sockets == "true")

    def make() -> ZkServerNode:
        if store == "embedded":
            return ZkServerNode.embedded(name, data, transport, clock, config, chance)
        return ZkServerNode(name, transport, clock, config, zookeeper_store(hosts, clock, config, root), None, chance)

    serve(name, listen, make)
