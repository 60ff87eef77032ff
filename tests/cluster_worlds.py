"""Worlds for simulated clusters in which one thing happens all the time, and little else."""

from __future__ import annotations

from dataclasses import replace

from clymq.simulation.cluster.options import Options

QUIET = Options(
    brokers=3,
    partitions=1,
    modes=(1,),
    replicas=3,
    fsync="commit",
    producers=2,
    consumers=1,
    push_ms=20,
    batch_messages_max=3,
    value_bytes=0,
    in_flight=2,
    delay_ms_max=2.0,
    kill_rate=0.0,
    power=False,
    pause_rate=0.0,
    cut_rate=0.0,
    one_way=False,
    reset_rate=0.0,
    isolate_rate=0.0,
    stall_rate=0.0,
    zkserver_rate=0.0,
    slow_disk_ms=0,
    full_disk_rate=0.0,
    state_rate=0.0,
    move_rate=0.0,
    drain_rate=0.0,
    create_rate=0.0,
    client_rate=0.0,
    block_age_ms=-1,
    retention_bytes=-1,
    replace_after_ms=600_000,
    leader_bias=1.0,
)
LEADERS_CUT_OFF = replace(QUIET, cut_rate=0.6)
LEADERS_KILLED = replace(QUIET, kill_rate=0.8, cut_rate=0.3, consumers=2)
RAFT_LEADERS_CUT_OFF = replace(QUIET, modes=(-1,), cut_rate=0.8, kill_rate=0.3)
BUSY = replace(QUIET, modes=(-1, 1), state_rate=1.0, move_rate=1.0, isolate_rate=0.5, zkserver_rate=0.5, partitions=2)
