"""Every verb has a number, survives the wire, and lets fields be added."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from clymq.errors import InvalidRequest, LocalProtocolError, RemoteProtocolError
from clymq.protocol import consensus, store
from clymq.protocol.broker import Pull, Push
from clymq.protocol.verbs import (
    Done,
    OneWay,
    Request,
    Verb,
    all_verbs,
    by_name,
    by_number,
    encode,
    read_message,
    read_reply,
    verb,
    verb_of,
)

VERBS = list(all_verbs())


def names(verbs: list[Verb]) -> list[str]:
    return [each.name for each in verbs]


def sample(kind: Any) -> Any:
    """Make a value of a type, with every field filled."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{name: sample(hints[name]) for name in kind.__struct_fields__})
    if origin is tuple:
        return (sample(arguments[0]),)
    if origin is dict:
        return {"key": sample(arguments[1])}
    if origin is not None:
        return sample(arguments[0])
    return {int: 2**62 + 1, str: "北京", bytes: b"\0\xff", bool: True, float: 0.5, Any: 5}[kind]


@pytest.mark.parametrize("each", VERBS, ids=names(VERBS))
def test_a_message_with_every_field_set_survives_the_wire(each: Verb) -> None:
    message = sample(each.message)
    assert read_message(each, memoryview(encode(message))) == message
    if each.reply is not None:
        reply = sample(each.reply)
        assert read_reply(each, memoryview(encode(reply))) == reply


def test_verbs_are_found_by_number_name_and_type() -> None:
    assert by_number(100) is by_name("Push") is verb_of(Push)
    assert by_number(9999) is by_name("Nonsense") is None
    with pytest.raises(LocalProtocolError, match="str is no verb"):
        verb_of(str)


def test_every_verb_of_the_specification_is_here() -> None:
    wanted = """
        Push InitProducer CommitOffset FetchOffset Pull ConInfo StartToGet Ack Nack Reject Extend
        PrepareAccept CloseAccept PrepareState PrepareSend AddRaftPartition CloseRaftPartition AddFetchPartition
        CloseFetchPartition AppendEntries RequestVote TimeoutNow CreateTopic CreatePart DeleteTopic FindController
        Status ListTopics DescribeTopic AlterTopic ListGroups ListSubs ResetGroup DrainBroker UndrainBroker
        MovePartition ForceSeal SetPartitionState ProGetBroker ConGetBroker Sub UnSub BroInfo BroGetConfig RollBlock
        ReplicaDown UpdateDup UpdatePTPOffset BecomeLeader GetNewLeader Pub PingPong
    """
    assert set(wanted.split()) <= set(names(VERBS))


def test_a_number_or_a_name_is_given_once() -> None:
    class Again(Request[Done], frozen=True):
        """Nothing."""

    with pytest.raises(ValueError, match="taken"):
        verb(100)(Again)
    with pytest.raises(ValueError, match="taken"):
        verb(65536)(Again)
    again = type("Push", (OneWay,), {}, frozen=True)
    with pytest.raises(ValueError, match="taken"):
        verb(60000)(again)


def test_a_request_must_name_its_reply() -> None:
    class Silent(Request, frozen=True):  # type: ignore[type-arg]
        """Nothing."""

    with pytest.raises(TypeError, match="Silent"):
        verb(60001)(Silent)


def test_only_messages_with_a_partition_of_their_own_have_a_key() -> None:
    assert [each.name for each in VERBS if each.keyed] == ["Push"]
    assert Push("t", "p", "uid", "x", 1, -1).window_key() == "uid"
    assert Pull("t", "p", "uid").window_key() is None


def test_a_header_that_does_not_fit_says_which_field_is_wrong() -> None:
    broken = msgspec.msgpack.encode({"topic": 5})
    with pytest.raises(InvalidRequest, match=r"Push: .*topic"):
        read_message(verb_of(Push), memoryview(broken))
    with pytest.raises(RemoteProtocolError, match="reply to Push"):
        read_reply(verb_of(Push), memoryview(b"\xc1"))


def test_a_transaction_keeps_the_kinds_of_its_steps() -> None:
    steps = (store.Create("/a", b"1"), store.Put("/b", b"2", 3), store.Delete("/c"), store.Check("/d", 4))
    multi = store.StoreMulti(session=1, operations=steps)
    assert read_message(verb_of(store.StoreMulti), memoryview(encode(multi))).operations == steps


def test_consensus_is_compact() -> None:
    message = consensus.AppendEntries("u" * 32 + "/7", "Broker0", "Broker1", 5, 2**63, 2**62, 9, 5, 8, 3)
    assert len(encode(message)) < 90


def test_a_consensus_message_of_a_newer_peer_is_read_by_an_older_one() -> None:
    longer = msgspec.msgpack.encode(["g", "a", "b", 1, 2, 3, True, False, "of the future"])
    assert read_message(verb_of(consensus.VoteAnswer), memoryview(longer)).granted
    shorter = msgspec.msgpack.encode(["g", "a", "b", 1, 2, 3, True])
    assert read_message(verb_of(consensus.VoteAnswer), memoryview(shorter)).pre is False


def test_every_module_of_verbs_is_imported_with_the_package() -> None:
    folder = Path(consensus.__file__).parent
    with_verbs = {path.stem for path in folder.glob("*.py") if "\n@verb(" in path.read_text()}
    assert with_verbs == {each.message.__module__.rpartition(".")[2] for each in VERBS}
