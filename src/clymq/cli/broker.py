"""`clymq broker`: the process that stores and serves messages."""

from __future__ import annotations

import random

import click

from clymq.cli.serving import serve
from clymq.cli.stores import embedded_store, zookeeper_store
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.metadata.store import MetadataStore
from clymq.node.broker import BrokerNode, Place
from clymq.rpc.transport import TcpTransport
from clymq.storage.files import RealFiles


@click.command()
@click.option("--name", default="Broker0", show_default=True, help="Unique among the brokers of a cluster.")
@click.option(
    "--listen", default="127.0.0.1:7774", show_default=True, metavar="HOST:PORT", help="Port 0: any free one."
)
@click.option(
    "--zkserver", default="127.0.0.1:7878", show_default=True, metavar="ADDRESSES", help="Where zkservers are."
)
@click.option(
    "--store",
    type=click.Choice(["embedded", "zookeeper"]),
    default="embedded",
    show_default=True,
    help="Where the metadata is; embedded: served at --zkserver.",
)
@click.option("--zookeeper", "hosts", default="127.0.0.1:2181", show_default=True, metavar="HOSTS", help="Its servers.")
@click.option("--root", default="/ClyMQ", show_default=True, help="Where the cluster's tree lies in ZooKeeper.")
@click.option("--data", default="broker-data", show_default=True, help="The folder of its messages.")
@click.option("--host", default="", help="The machine it is on: replicas go to different ones.")
@click.option("--rack", default="", help="The rack it is in: replicas go to different ones.")
@click.option("--power", type=click.IntRange(1, 1000), default=1, show_default=True, help="Its share of the data.")
@click.pass_obj
def broker(
    config: Config,
    name: str,
    listen: str,
    zkserver: str,
    store: str,
    hosts: str,
    root: str,
    data: str,
    host: str,
    rack: str,
    power: int,
) -> None:
    """Store and serve messages until SIGTERM or SIGINT."""
    clock, transport, chance = SystemClock(), TcpTransport(), random.SystemRandom()

    def make_store() -> MetadataStore:
        if store == "zookeeper":
            return zookeeper_store(hosts, clock, config, root)
        return embedded_store(zkserver, transport, clock, config, name, chance)

    def make() -> BrokerNode:
        return BrokerNode(
            name,
            data,
            store=make_store,
            transport=transport,
            files=RealFiles(sync_threads=config.fsync_threads),
            clock=clock,
            config=config,
            chance=chance,
            place=Place(host, rack, power),
        )

    serve(name, listen, make)
