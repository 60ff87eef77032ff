"""The metadata store: the small tree that brokers and zkservers agree on, behind one interface.

`store` is the interface; `zookeeper` implements it on real ZooKeeper, `remote` and `server` on the embedded store over
the wire, `local` on the embedded store in the same process. `catalog` is the tree of ClyMQ in typed words; everything
above speaks to it and to nothing else here. Import the modules: what they need (kazoo, SQLite) is loaded with them.
"""
