"""Raft paper §5.6: timing decides when something happens, never whether it is right."""

from __future__ import annotations

import pytest

from clymq.raft.messages import Message
from clymq.raft.state import Limits, Role
from raft_cluster import Cluster


def test_heartbeats_are_much_more_frequent_than_elections() -> None:
    """§5.6: broadcastTime << electionTimeout; three heartbeats may be late before anyone runs."""
    limits = Limits()
    assert 3 * limits.heartbeat_ms <= limits.election_ms_min < limits.election_ms_max


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_leader_is_found_within_a_few_election_timeouts(size: int) -> None:
    """§5.6: Raft will be able to elect and maintain a steady leader as long as the system keeps the inequality."""
    for seed in range(10):
        cluster = Cluster(size, seed=seed)
        cluster.pass_time(3 * Limits().election_ms_max)
        assert len(cluster.leaders()) == 1


def test_when_the_leader_crashes_another_is_found() -> None:
    """§5.6: the system is unavailable for about the election timeout, not longer."""
    for seed in range(10):
        cluster = Cluster(3, seed=seed)
        cluster.elect("a")
        cluster.crash("a")
        cluster.pass_time(3 * Limits().election_ms_max)
        (leader,) = cluster.leaders()
        assert leader in "bc"


def test_safety_does_not_depend_on_timing() -> None:
    """§5.6 and §5: the system must not produce incorrect results because some event happens faster or slower."""
    for seed in range(10):
        cluster = Cluster(3, seed=seed)
        late: list[Message] = []

        def delays(message: Message, cluster: Cluster = cluster, late: list[Message] = late) -> bool:
            if cluster.chance.random() < 0.3:
                late.append(message)
                return True
            return False

        cluster.blocked = delays
        leader_of: dict[int, str] = {}
        for _ in range(40):
            cluster.pass_time(100, step=20)
            cluster.chance.shuffle(late)
            cluster.queue += late[:5]
            del late[:5]
            for name in cluster.leaders():
                assert leader_of.setdefault(cluster.nodes[name].term, name) == name
                if cluster.nodes[name].log.last_term < cluster.nodes[name].term:
                    cluster.begin(name)
        committed = [cluster.disks[name].log[: cluster.nodes[name].log.commit] for name in "abc"]
        shortest = min(len(log) for log in committed)
        assert committed[0][:shortest] == committed[1][:shortest] == committed[2][:shortest]
        assert any(replica.role is Role.LEADER for replica in cluster.nodes.values()) or leader_of
