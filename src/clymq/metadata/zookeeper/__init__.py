"""`ZookeeperStore`: the metadata store on a real ZooKeeper, through kazoo.

The only package that knows kazoo, and an edge: kazoo lives in threads of its own, and everything that it calls hops to
the event loop before it touches anything here. What ZooKeeper or kazoo does otherwise than `clymq.metadata.store`
promises is mended here:

* kazoo begins a new session by itself when one has expired. Here a session that is lost stays lost (`connection`).
* A watch of ZooKeeper fires once, and nobody sets it again (`watches`).
* An answer that is lost with its connection tells nothing; a *lane* knows what was applied (`lanes`).
"""

from clymq.metadata.zookeeper.store import ZookeeperStore

__all__ = ["ZookeeperStore"]
