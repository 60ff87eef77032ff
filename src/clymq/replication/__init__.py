"""Replication: what a partition's log means (`machine`, pure), and what carries the log from broker to broker."""
