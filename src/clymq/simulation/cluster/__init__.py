"""Whole clusters on virtual time, in one thread, decided by one seed.

The servers and clients are the product's own, whole: brokers, zkservers, the embedded store, producers, consumers and
administrators. Only the event loop, the network and the disks are models. `world` is where to begin reading.
"""
