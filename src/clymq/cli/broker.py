"""`clymq broker`: the process that stores and serves messages."""

from __future__ import annotations

import random

import click
from click.core import ParameterSource

from clymq.cli.figures import process_totals
from clymq.cli.flags import setting_option
from clymq.cli.serving import addresses_of, serve
from clymq.cli.stores import embedded_store, zookeeper_store
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.metadata.store import MetadataStore
from clymq.node.broker import BrokerNode, Place
from clymq.node.broker_with_zkserver import BrokerWithZkServer
from clymq.node.zkserver import ZkServerNode
from clymq.rpc.transport import TcpTransport
from clymq.storage.files import RealFiles


def _label(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Refuse a label that cannot be stored: an argument of the shell may be any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("it must be text in Unicode") from None
    return value


@click.command()
@setting_option("--name", default="Broker0", show_default=True, help="Unique among the brokers of a cluster.")
@setting_option(
    "--listen", default="127.0.0.1:7774", show_default=True, metavar="HOST:PORT", help="Port 0: any free one."
)
@setting_option(
    "--zkserver",
    "zkservers",
    default="127.0.0.1:7878",
    show_default=True,
    callback=addresses_of,
    metavar="ADDRESSES",
    help="Where zkservers are.",
)
@setting_option(
    "--store",
    type=click.Choice(["embedded", "zookeeper"]),
    default="embedded",
    show_default=True,
    help="Where the metadata is; embedded: served at --zkserver.",
)
@setting_option(
    "--zookeeper", "hosts", default="127.0.0.1:2181", show_default=True, metavar="HOSTS", help="Its servers."
)
@setting_option("--root", default="/ClyMQ", show_default=True, help="Where the cluster's tree lies in ZooKeeper.")
@setting_option("--data", default="broker-data", show_default=True, help="The folder of its messages.")
@setting_option("--host", default="", callback=_label, help="The machine it is on: replicas go to different ones.")
@setting_option("--rack", default="", callback=_label, help="The rack it is in: replicas go to different ones.")
@setting_option("--power", type=click.IntRange(1, 1000), default=1, show_default=True, help="Its share of the data.")
@click.option(
    "--with-zkserver",
    is_flag=True,
    help="Be a zkserver too, at the first address of --zkserver; with ZooKeeper, if none is given, at any free port.",
)
@click.pass_context
def broker(
    context: click.Context,
    name: str,
    listen: str,
    zkservers: list[str],
    store: str,
    hosts: str,
    root: str,
    data: str,
    host: str,
    rack: str,
    power: int,
    with_zkserver: bool,
) -> None:
    """Store and serve messages until SIGTERM or SIGINT."""
    config: Config = context.obj
    clock, chance = SystemClock(), random.SystemRandom()
    transport = TcpTransport(local=config.local_sockets == "true")

    def make_store(zkserver: str) -> MetadataStore:
        if store == "zookeeper":
            return zookeeper_store(hosts, clock, config, root)
        return embedded_store(zkserver, transport, clock, config, name, chance)

    def make_broker(zkserver: str) -> BrokerNode:
        return BrokerNode(
            name,
            data,
            store=lambda: make_store(zkserver),
            transport=transport,
            files=RealFiles(sync_threads=config.fsync_threads),
            clock=clock,
            config=config,
            chance=chance,
            place=Place(host, rack, power),
            totals=process_totals,
        )

    def make_both() -> BrokerWithZkServer:
        if store == "embedded":
            # No topic has a folder of this name: those carry an id.
            node = ZkServerNode.embedded(name, f"{data}/zkserver", transport, clock, config, chance)
        else:
            node = ZkServerNode(name, transport, clock, config, make_store(""), None, chance)
        return BrokerWithZkServer(node, zkserver_listen, make_broker)

    if not with_zkserver:
        if store == "embedded" and len(zkservers) > 1:
            raise click.UsageError(f"--zkserver {','.join(zkservers)}: the embedded store is at one address")
        serve(name, listen, lambda: make_broker(zkservers[0]))
        return
    given = context.get_parameter_source("zkservers") is not ParameterSource.DEFAULT
    zkserver_listen = zkservers[0]
    if store == "zookeeper" and not given:
        # Brokers find the active one in the tree, and clients ask any broker.
        zkserver_listen = f"{listen.rpartition(':')[0]}:0"
    serve(name, listen, make_both)
