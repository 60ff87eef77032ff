"""Whole replicas on virtual time, in one thread, decided by one seed: a world that tries to break them.

The code under test is the product's own: the Raft core, the storage, the partition's state machine. Only the network,
the disk and the time are models, and they do what real ones do at their worst.
"""
