"""Where a time begins in a block, and where a group of consumers goes on: asked of one broker, for one block.

A group is set to an offset by entries in the log, like everything else that replicas must agree on: a point-to-point
cursor by a `Reset`, a publish-subscribe position by a `Commit`. Which of the two a group has stands in the log too.
"""

from __future__ import annotations

from clymq.broker.active_block import ActiveBlock
from clymq.broker.hosted_partition import HostedPartition
from clymq.errors import ClymqError, NotHosted, NotSubscribed, OffsetOutOfRange
from clymq.protocol.broker import OFFSET_UNKNOWN, FindOffset, OffsetFound
from clymq.protocol.hosting import LATEST, GroupPositionSet, SetGroupPosition
from clymq.replication.cursors import Refused
from clymq.replication.entries import Commit, Reset
from clymq.rpc.peer import Call
from clymq.types import Mode


def find_offset(partition: HostedPartition, call: Call) -> None:
    """Answer with the first message of a block that is not earlier than a time."""
    request: FindOffset = call.request
    sealed = partition.sealed.get(request.block)
    if sealed is not None:
        offset, end = sealed.locate_time(request.timestamp_us), sealed.end
    else:
        active = _active(partition, request.block)
        offset, end = active.file.locate_time(request.timestamp_us), active.end
    call.reply(OffsetFound(OFFSET_UNKNOWN if offset is None else offset, end))


def set_group_position(partition: HostedPartition, call: Call) -> None:
    """Have a group go on at another offset; answered when that is in the log."""
    request: SetGroupPosition = call.request
    active = _active(partition, request.block)
    end = active.end
    offset = end if request.offset == LATEST else request.offset
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(offset, first=active.start, end=end)
    entries = _entries(active, request, offset)
    outcomes: list[ClymqError | None] = []

    def answer(outcome: object) -> None:
        outcomes.append(refusal(outcome))
        if len(outcomes) < len(entries):
            return
        error = next((each for each in outcomes if each is not None), None)
        if error is not None:
            call.fail(error)
        else:
            call.reply(GroupPositionSet(offset, end))

    for entry in entries:
        active.write(entry, answer)


def refusal(outcome: object) -> ClymqError | None:
    """Return why an entry has had no effect: it never was in the log, or found no room there; None: it has had it."""
    if isinstance(outcome, Refused):
        return outcome.error
    return outcome if isinstance(outcome, ClymqError) else None


def _active(partition: HostedPartition, block: int) -> ActiveBlock:
    """Return the active block, if it is this one and this broker may speak for it."""
    active = partition.active
    if active is None or active.number != block:
        raise NotHosted(f"block {block} of {partition.topic}/{partition.name} is not here")
    active.check_reading()
    return active


def _entries(active: ActiveBlock, request: SetGroupPosition, offset: int) -> list[Reset | Commit]:
    """Return what sets a group to an offset: its cursor, its position, or, if it has neither, what `mode` says."""
    cursor, position = active.machine.cursor(request.group), active.machine.position(request.group)
    neither = cursor is None and position is None
    entries: list[Reset | Commit] = []
    if cursor is not None or (neither and request.mode in {Mode.PTP_PUSH, Mode.PTP_PULL}):
        entries.append(Reset(group=request.group, offset=offset))
    if position is not None or (neither and request.mode in {Mode.PSB_PUSH, Mode.PSB_PULL}):
        entries.append(Commit(group=request.group, offset=offset))
    if not entries:
        raise NotSubscribed(f"no group {request.group} reads {request.topic}/{request.partition}")
    return entries
