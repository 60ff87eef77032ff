"""The checkers of clusters bite: one that breaks one rule is caught, in the world that is made for it.

Each mutation has a world in which the rule matters all the time, and is caught by one of its first seeds. Not by one
named seed: every change of the product that sends a message more or less is another world from there on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from clymq.errors import ClymqError
from clymq.simulation.checkers import Violation
from clymq.simulation.cluster.mutations import MUTATIONS, applied
from clymq.simulation.cluster.options import Options
from clymq.simulation.cluster.world import simulate

SEEDS_MAX = 8
TESTING = Path(__file__).parents[2] / "docs" / "testing.md"

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
RESTLESS = replace(QUIET, kill_rate=0.5, client_rate=1.0, cut_rate=0.3, consumers=2)

WORLDS = {
    "acknowledge_without_a_session": LEADERS_CUT_OFF,
    "show_what_one_replica_holds": LEADERS_KILLED,
    "seal_at_the_shortest": LEADERS_KILLED,
    "take_one_fence_for_enough": replace(LEADERS_KILLED, kill_rate=1.5),
    "lose_without_a_word": LEADERS_CUT_OFF,
    "commit_positions_in_the_dark": RESTLESS,
    "name_positions_too_early": RESTLESS,
    "commit_alone": RAFT_LEADERS_CUT_OFF,
    "write_unconditionally": BUSY,
    "forget_the_intent": replace(BUSY, zkserver_rate=1.0),
    "drop_the_intent": replace(BUSY, kill_rate=0.8),
    "seal_before_the_end": replace(BUSY, isolate_rate=0.0, zkserver_rate=0.0),
    "forget_producers_between_blocks": replace(BUSY, cut_rate=0.5),
    "ignore_the_epoch": replace(BUSY, pause_rate=1.0, cut_rate=0.5),
}


def caught(name: str) -> str:
    """Return what catches a mutation first; empty if nothing does."""
    for seed in range(SEEDS_MAX):
        try:
            with applied(name):
                simulate(seed, WORLDS[name])
        except Violation as error:
            return str(error).partition(":")[0]
        except (AssertionError, ClymqError):
            return "an assertion of the product"
    return ""
