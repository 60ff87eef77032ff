"""The checker on histories written by hand: a good one has no anomaly, and each kind of anomaly is caught by name."""

from __future__ import annotations

import pytest

from chaos_history import Story
from clymq.simulation.chaos.anomalies import LINES_AROUND_MAX, SHOWN_PER_KIND_MAX, Anomaly, Kind
from clymq.simulation.chaos.checker import Verdict, check_events
from clymq.simulation.chaos.events import BadHistory, Event, parse
from clymq.simulation.chaos.figures import Fault
from clymq.simulation.chaos.power import without_what_power_took


def good() -> Story:
    """Two producers, one of them killed and back; a reader; a group with a dead letter; three equal replicas."""
    story = Story()
    story.push("p", 0, "p1", "p2")
    story.tell("r", "assign", offset=0)
    open_question = story.send("q", "q1")
    story.poll("r", 0, "p1", "p2", "q1")
    story.tell("q", "unknown", op=open_question, error="RequestTimeout")
    story.tell("r", "commit", group="g", offset=3)
    story.send("p", "p3")  # killed: no answer
    story.push("p", 3, "p4")
    story.tell("r", "committed", group="g", offset=3, asked=10_000)
    story.tell("r", "assign", offset=1)
    story.poll("r", 1, "p2", "q1")
    story.poll("r", 3, "p4")
    story.tell("c", "deliver", group="w", offset=0, values=["p1", "p2"], count=1)
    story.tell("c", "done", group="w", offset=0, messages=1, asked=1)
    story.tell("c", "dead", group="w", offset=1, values=["p2"], reason="failed 3 times")
    story.tell("d", "done", group="w", offset=2, messages=2, asked=1)
    story.tell("d", "drained", group="w")
    story.final("p1", "p2").final("q1", "p4", offset=2)
    for broker in ("a", "b", "c"):
        story.tell(broker, "replica", block=1, offset=0, values=["p1", "p2", "q1", "p4"])
        story.tell(broker, "bytes", block=1, bytes=512, sha256="ab" * 32)
    return story


def only(verdict: Verdict) -> Anomaly:
    assert len(verdict.anomalies) == 1, "\n".join(verdict.report())
    return verdict.anomalies[0]


def test_a_good_history_has_no_anomaly() -> None:
    verdict = good().verdict()
    assert list(verdict.report()) == [
        "acknowledged to visible: p50 4.0 ms, p99 4.0 ms, longest 4.0 ms",
        "0.0 min, 3 acknowledged, 0 anomalies",
    ]


def test_a_lost_write_is_caught_with_the_lines_that_speak_of_it() -> None:
    story = Story().push("p", 0, "p1").push("p", 1, "p2").push("p", 2, "p3").final("p1", "x1", "p3")
    story.send("x", "x1", t=1)
    found = {anomaly.kind: anomaly for anomaly in story.verdict().anomalies}
    assert str(found[Kind.LOST]).splitlines() == [
        "lost write: t/0: p2 was acknowledged at 1 and is nowhere",
        '    0.003000 p send op="2" values=["p2"]',
        '    0.004000 p ack op="2" ranges=[[1, 1]]',
        '    0.007000 final final offset=0 values=["p1", "x1", "p3"]',
    ]


def test_a_lost_write_whose_offset_was_never_told_is_caught() -> None:
    assert only(Story().push("p", None, "p1").push("p", 0, "p2").final("p2").verdict()).kind == Kind.LOST


def test_a_write_beyond_the_end_of_the_final_reads_is_unseen() -> None:
    found = only(Story().push("p", 0, "p1").push("p", 1, "p2").final("p1").verdict())
    assert (found.kind, found.values, found.offsets) == (Kind.UNSEEN, ("p2",), (1,))


def test_a_write_that_was_read_and_is_gone_in_the_end_is_caught_in_every_mode() -> None:
    story = Story().push("p", 0, "p1").push("p", 1, "p2").poll("r", 0, "p1", "p2").final("p1")
    assert only(story.verdict()).kind == Kind.UNSEEN
    for ack in (1, 0):
        story = Story().tell("nemesis", "mode", ack=ack, stage="end")
        story.push("p", 0, "p1").push("p", 1, "p2").poll("r", 0, "p1", "p2").final("p1")
        found = only(story.verdict(Fault("kill leader", 0, 1_000_000)))
        assert (found.kind, found.values) == (Kind.LOST, ("p2",))


def test_a_write_that_no_reader_has_come_to_yet_is_no_anomaly() -> None:
    assert not Story().push("p", 0, "p1").push("p", 1, "p2").poll("r", 0, "p1").verdict().anomalies


def test_a_duplicate_is_caught() -> None:
    found = only(Story().push("p", 0, "p1").final("p1", "p1").verdict())
    assert (found.kind, found.text) == (Kind.DUPLICATE, "p1 is at 0 and 1")


def test_two_readers_that_see_different_values_at_one_offset_are_caught() -> None:
    story = Story().push("p", 0, "p1")
    story.send("q", "q1")
    found = only(story.poll("r", 0, "p1").poll("s", 0, "q1").verdict())
    assert (found.kind, found.text) == (Kind.INCONSISTENT, "offset 0 was p1 and q1")
    assert len(found.around) == 5


def test_a_reader_that_saw_something_else_than_what_is_stored_is_caught() -> None:
    story = Story().push("p", 0, "p1")
    story.send("q", "q1")
    story.poll("r", 0, "q1").tell("a", "replica", block=1, offset=0, values=["p1"])
    assert Kind.INCONSISTENT in story.verdict().counts


def test_an_answer_that_names_another_offset_is_caught() -> None:
    story = Story().push("p", 1, "p1")
    story.send("p", "p2")
    found = only(story.final("p1").verdict())
    assert (found.kind, found.text) == (Kind.INCONSISTENT, "p1 was acknowledged at 1 and is at 0")


def test_a_reorder_of_one_producer_is_caught() -> None:
    story = Story()
    story.send("p", "p1")
    story.send("p", "p2")
    found = only(story.final("p2", "p1").verdict())
    assert (found.kind, found.text) == (Kind.REORDER, "p sent them the other way round: p2 is at 0, p1 at 1")


def lives(*places: str) -> Story:
    """Two lives of one producer, both with two messages that were sent and never answered."""
    story = Story()
    for life, value in ((1, "a1"), (2, "b1"), (1, "a2"), (2, "b2")):
        story.send("p", value, life=life)
    return story.final(*places)


def test_what_follows_another_life_of_a_producer_is_caught() -> None:
    found = only(lives("a1", "b1", "a2").verdict())
    assert (found.kind, found.text) == (Kind.REORDER, "life 1 of p goes on after life 2: b1 is at 1, a2 at 2")


def test_a_life_that_takes_the_name_last_may_come_last_unless_it_was_dead_before() -> None:
    assert not lives("b1", "b2", "a1", "a2").verdict(ended={("p", 1): 2500}).anomalies
    found = only(lives("b1", "b2", "a1", "a2").verdict(ended={("p", 1): 1500}))
    assert found.text == "life 1 of p was dead when life 2 began: b2 is at 1, a1 at 2"


def test_two_producers_have_no_order_between_them() -> None:
    story = Story()
    story.send("p", "p1")
    story.send("q", "q1")
    assert not story.final("q1", "p1").verdict().anomalies


def test_a_refused_value_that_is_read_is_caught() -> None:
    story = Story()
    story.tell("p", "refused", op=story.send("p", "p1"), error="ProducerFenced")
    found = only(story.poll("r", 0, "p1").verdict())
    assert (found.kind, found.text) == (Kind.ABORTED_READ, "p1 was refused (ProducerFenced) and read at 0")


def test_a_value_that_was_given_up_may_be_read() -> None:
    story = Story()
    story.tell("p", "unknown", op=story.send("p", "p1"), error="RequestTimeout")
    assert not story.final("p1").verdict().anomalies


def test_a_value_that_nobody_sent_is_caught() -> None:
    found = only(Story().final("ghost").verdict())
    assert (found.kind, found.values) == (Kind.NEVER_SENT, ("ghost",))


def three() -> Story:
    return Story().push("p", 0, "p1", "p2", "p3").tell("r", "assign", offset=0)


def test_a_poll_that_skips_is_caught() -> None:
    found = only(three().poll("r", 0, "p1").poll("r", 2, "p3").verdict())
    assert (found.kind, found.text) == (Kind.POLL_SKIP, "r was at 1 and got 2")


def test_a_first_poll_behind_its_assignment_is_a_skip() -> None:
    assert only(three().poll("r", 1, "p2").verdict()).kind == Kind.POLL_SKIP


def test_a_poll_that_goes_back_is_caught_and_a_new_assignment_is_not() -> None:
    found = only(three().poll("r", 0, "p1", "p2").poll("r", 1, "p2").verdict())
    assert (found.kind, found.text) == (Kind.POLL_BACK, "r was at 2 and got 1")
    assert not three().poll("r", 0, "p1", "p2").tell("r", "assign", offset=1).poll("r", 1, "p2").verdict().anomalies


def test_offsets_with_a_hole_are_caught_in_final_reads_and_on_disks() -> None:
    story = Story().push("p", 0, "p1").push("p", 2, "p2").final("p1").final("p2", offset=2)
    story.tell("a", "replica", block=1, offset=0, values=["p1"]).tell("a", "replica", block=1, offset=2, values=["p2"])
    verdict = story.verdict()
    assert [anomaly.text for anomaly in verdict.anomalies] == [
        "final reads: 2 follows 0",
        "block 1 on a: 2 follows 0",
    ]
    assert set(verdict.counts) == {Kind.HOLE}


def test_replicas_that_hold_different_messages_are_caught() -> None:
    story = Story().push("p", 0, "p1")
    story.send("q", "q1")
    story.tell("a", "replica", block=1, offset=0, values=["p1"]).tell("b", "replica", block=1, offset=0, values=["q1"])
    assert Kind.DIVERGENCE in story.verdict().counts


def test_replicas_that_differ_in_a_byte_are_caught_and_those_of_other_blocks_are_not_compared() -> None:
    story = Story()
    story.tell("a", "bytes", block=1, bytes=8, sha256="aa").tell("b", "bytes", block=1, bytes=8, sha256="bb")
    story.tell("c", "bytes", block=2, bytes=9, sha256="cc")
    found = only(story.verdict())
    assert found.kind == Kind.DIVERGENCE
    assert "a: 8 bytes, aa; b: 8 bytes, bb" in found.text


def test_real_time_order_is_kept_between_producers() -> None:
    story = Story().push("p", 1, "p1").push("q", 0, "q1")
    found = only(story.final("q1", "p1").verdict())
    assert (found.kind, found.text) == (
        Kind.REAL_TIME,
        "p1, at 1, was acknowledged before q1, at 0, was sent",
    )


def test_a_former_leader_that_acknowledges_beside_its_successor_is_caught_though_all_that_it_says_is_lost() -> None:
    story = Story().tell("nemesis", "mode", ack=1, stage="end")
    story.push("p", 0, "p1").push("p", 1, "p2").push("q", 1, "q1").final("p1", "p2")
    found = only(story.verdict(Fault("isolate leader", 0, 1_000_000)))
    assert (found.kind, found.values) == (Kind.REAL_TIME, ("p2", "q1"))


def test_pushes_that_overlap_in_time_have_no_order() -> None:
    story = Story()
    first, second = story.send("p", "p1"), story.send("q", "q1")
    assert not story.ack("p", first, 1).ack("q", second, 0).final("q1", "p1").verdict().anomalies


def test_a_committed_position_that_is_gone_is_caught() -> None:
    story = Story().tell("r", "commit", group="g", offset=7).tell("s", "committed", group="g", offset=3, asked=1500)
    found = only(story.verdict())
    assert (found.kind, found.text) == (Kind.COMMIT_LOST, "group g had committed 7 and is told 3")
    late = Story().tell("r", "commit", group="g", offset=7).tell("s", "committed", group="g", offset=3, asked=500)
    assert not late.verdict().anomalies


def finished(leased: int, **second: object) -> Story:
    """A message that c has finished, and that d finishes too, by a lease that came at this time."""
    story = Story().push("p", 0, "p1").tell("c", "done", group="w", offset=0, messages=1, asked=1)
    story.tell("d", "deliver", group="w", offset=0, values=["p1"], count=2, leased=leased, t=4_000_000)
    return story.tell("d", "done", group="w", offset=0, messages=1, asked=4_000_000, t=4_000_001, **second)


def test_a_message_that_is_given_out_again_after_it_was_acknowledged_is_caught() -> None:
    found = only(finished(leased=3_900_000).verdict())
    assert found.kind == Kind.ACKED_TWICE
    assert found.text.startswith("group w: 0 was acknowledged (c at 0.003000), then acknowledged (d")


def test_a_message_that_was_given_out_again_before_it_was_acknowledged_may_be_acknowledged_twice() -> None:
    assert not finished(leased=2_000).verdict().anomalies


def test_an_acknowledgement_without_an_answer_counts_for_neither_side() -> None:
    assert not finished(leased=3_900_000, unsure=True).verdict().anomalies


def leased(by: str, number: int, count: int = 1) -> Story:
    """One leader has given a message to w0, under the number 1,000; then w1, or w0 itself, is given it."""
    story = Story().push("p", 0, "p1").final("p1")
    for who, lease, delivery in (("w0", 1_000, 1), (by, number, count)):
        leases = [[lease, 0, 1]]
        story.tell(who, "deliver", group="w", offset=0, values=["p1"], count=delivery, leases=leases)
    return story


def test_a_message_that_one_leader_gives_to_two_is_caught() -> None:
    found = only(leased("w1", 1_007).verdict())
    assert (found.kind, found.offsets) == (Kind.LEASED_TWICE, (0,))
    assert any("w1 deliver" in line for line in found.around)


@pytest.mark.parametrize(
    "story",
    [leased("w1", 1_007, count=2), leased("w1", 1_000 + 400_000), leased("w0", 1_007)],
    ids=["it came back", "by another leader", "to the same"],
)
def test_a_message_may_be_given_again_when_it_came_back_or_its_leader_is_gone(story: Story) -> None:
    assert not story.verdict().anomalies


def test_a_message_that_is_a_dead_letter_twice_is_caught() -> None:
    story = Story().push("p", 0, "p1")
    for _ in range(2):
        story.tell("final", "dead", group="w", offset=0, values=["p1"], reason="why")
    assert only(story.verdict()).kind == Kind.ACKED_TWICE


def test_a_message_that_a_group_never_acknowledges_is_caught_once_the_group_has_come_to_its_end() -> None:
    story = Story().push("p", 0, "p1", "p2").tell("c", "done", group="w", offset=0, messages=1, asked=1)
    story.final("p1", "p2")
    assert not story.verdict().anomalies
    found = only(story.tell("c", "drained", group="w").verdict())
    assert (found.kind, found.values) == (Kind.NEVER_ACKED, ("p2",))


def test_a_dead_letter_without_a_reason_is_caught() -> None:
    story = Story().push("p", 0, "p1").tell("c", "dead", group="w", offset=0, values=["p1"], reason="")
    assert only(story.verdict()).kind == Kind.NO_REASON


def test_an_answer_that_nobody_asked_for_and_a_second_one_are_caught() -> None:
    assert only(Story().ack("p", "9", 0).verdict()).kind == Kind.BAD_ANSWER
    story = Story()
    operation = story.send("p", "p1")
    assert only(story.ack("p", operation, 0).ack("p", operation, 0).final("p1").verdict()).kind == Kind.BAD_ANSWER
    story = Story()
    assert only(story.ack("p", story.send("p", "p1"), 0, 2).final("p1").verdict()).kind == Kind.BAD_ANSWER


# --- Promises by mode ---


def weak(story: Story) -> Story:
    """One loss of a message that was acknowledged while the partition was in fetch mode."""
    story.tell("nemesis", "mode", ack=1, stage="begin").tell("nemesis", "mode", ack=1, stage="end")
    return story.push("p", 0, "p1").push("p", 0, "p2").final("p2")


def test_what_only_a_fetch_leader_had_acknowledged_may_go_with_it() -> None:
    verdict = weak(Story()).verdict(Fault("kill leader", 0, 1_000_000))
    assert not verdict.anomalies
    assert verdict.documented_losses == 1
    assert "1 messages that a fetch leader alone had acknowledged went with it" in verdict.report()


def test_what_a_fetch_leader_had_acknowledged_may_not_go_without_a_fault_near() -> None:
    found = only(weak(Story()).verdict(Fault("kill leader", 60_000_000, 70_000_000)))
    assert (found.kind, found.values) == (Kind.LOST, ("p1",))


def test_a_push_that_began_before_a_change_of_mode_has_the_weaker_promise() -> None:
    story = Story()
    operation = story.send("p", "p1")
    story.tell("nemesis", "mode", ack=1, stage="begin")
    story.ack("p", operation, 0).tell("nemesis", "mode", ack=1, stage="end")
    story.tell("nemesis", "mode", ack=-1, stage="begin").tell("nemesis", "mode", ack=-1, stage="end")
    story.push("p", 0, "p2").final("p3")
    story.send("p", "p3")
    found = [anomaly for anomaly in story.verdict(Fault("stop", 0, 1)).anomalies if anomaly.kind == Kind.LOST]
    assert [anomaly.values for anomaly in found] == [("p2",)]


def test_a_value_that_a_reader_saw_in_fetch_mode_must_not_be_replaced() -> None:
    story = Story().tell("nemesis", "mode", ack=1, stage="end")
    story.push("p", 0, "p1").poll("r", 0, "p1").push("p", 0, "p2").final("p2")
    assert Kind.INCONSISTENT in story.verdict(Fault("kill leader", 0, 1_000_000)).counts


def read_and_lost(ack: int) -> list[Event]:
    """A reader and a group have had p1 and p2; p2 was on no disk when the power went, and q1 is in its place."""
    story = Story().tell("nemesis", "mode", ack=ack, stage="end")
    story.push("p", 0, "p1").push("p", 1, "p2").tell("r", "assign", offset=0).poll("r", 0, "p1", "p2")
    story.tell("w0", "deliver", group="w", offset=0, values=["p1", "p2"], count=1)
    story.tell("w0", "done", group="w", offset=0, messages=2, asked=1)
    story.push("q", 1, "q1").push("q", 2, "q2")
    story.tell("w1", "deliver", group="w", offset=1, values=["q1", "q2"], count=1, t=9_000_000)
    story.tell("w1", "done", group="w", offset=1, messages=2, asked=9_000_000, t=9_100_000)
    story.poll("r", 2, "q2").final("p1", "q1", "q2").tell("w1", "drained", group="w")
    return story.events()


def test_what_was_read_in_fetch_mode_and_was_on_no_disk_may_go_with_the_power() -> None:
    events, taken = without_what_power_took(read_and_lost(ack=1), [9_000])
    assert taken == 1
    assert not check_events(events, [Fault("power cut all", 0, 9_000)]).anomalies


def test_what_went_with_the_power_may_have_been_shown_once_more_but_only_what_was_sent_just_before() -> None:
    for sent, forgiven in ((29_000_000, True), (1_000_000, False)):
        story = Story().tell("nemesis", "mode", ack=1, stage="end", t=1)
        story.ack("p", story.send("p", "p1", t=sent), 0, t=sent + 1)
        story.tell("r", "poll", offset=0, values=["p1"], t=34_000_000)
        story.ack("q", story.send("q", "q1", t=35_000_000), 0, t=35_000_001)
        story.tell("final", "final", offset=0, values=["q1"], t=40_000_000)
        events, taken = without_what_power_took(story.events(), [30_000_000])
        found = check_events(events, [Fault("power cut all", sent, 31_000_000)])
        assert (taken == 1, not found.anomalies) == (forgiven, forgiven)


def twice_dead(*, ack: int, out: int) -> list[Event]:
    """Two letters of one message; power was cut at 30 s, and at `out` the message was at a worker."""
    story = Story().tell("nemesis", "mode", ack=ack, stage="end", t=1)
    story.ack("p", story.send("p", "p1", t=2), 0, t=3)
    story.tell("w", "deliver", group="g", offset=0, values=["p1"], count=1, t=out)
    story.tell("w", "deliver", group="g", offset=0, values=["p1"], count=1, t=40_000_000)
    story.final("p1")
    for _ in range(2):
        story.tell("final", "dead", group="g", offset=0, values=["p1"], reason="no", t=50_000_000)
    return story.events()


@pytest.mark.parametrize(
    ("ack", "out", "cuts", "forgiven"),
    [
        (1, 29_000_000, [30_000_000], True),
        (1, 19_000_000, [30_000_000], False),
        (1, 29_000_000, [], False),
        (-1, 29_000_000, [30_000_000], False),
    ],
)
def test_a_message_may_be_a_dead_letter_twice_only_if_it_was_out_in_fetch_mode_when_the_power_went(
    ack: int, out: int, cuts: list[int], forgiven: bool
) -> None:
    events, _ = without_what_power_took(twice_dead(ack=ack, out=out), cuts)
    assert (Kind.ACKED_TWICE not in check_events(events).counts) == forgiven


def test_a_message_without_letter_and_without_ack_is_not_forgiven_by_a_power_cut() -> None:
    """What is given up is safe before its group goes on behind it, in every mode."""
    story = Story().tell("nemesis", "mode", ack=1, stage="end", t=1)
    story.ack("p", story.send("p", "p1", t=29_000_000), 0, t=29_000_001)
    story.tell("w", "deliver", group="g", offset=0, values=["p1"], count=1, t=29_100_000)
    story.tell("final", "final", offset=0, values=["p1"], t=40_000_000)
    story.tell("final", "drained", group="g", t=40_000_001)
    events, _ = without_what_power_took(story.events(), [30_000_000])
    assert check_events(events).counts == {Kind.NEVER_ACKED: 1}


def test_without_a_power_cut_near_what_was_read_in_fetch_mode_must_stay() -> None:
    for cuts in ([], [60_000_000]):
        events, taken = without_what_power_took(read_and_lost(ack=1), cuts)
        counts = check_events(events, [Fault("kill all", 0, 9_000)]).counts
        assert taken == 0
        assert {Kind.INCONSISTENT, Kind.ACKED_TWICE} <= counts.keys()


def test_a_power_cut_takes_nothing_that_was_read_in_raft_mode() -> None:
    events, taken = without_what_power_took(read_and_lost(ack=-1), [9_000])
    assert taken == 0
    assert {Kind.LOST, Kind.INCONSISTENT, Kind.ACKED_TWICE} <= check_events(events).counts.keys()


# --- What is shown ---


def test_a_verdict_shows_a_few_of_each_kind_and_counts_all() -> None:
    story = Story()
    for number in range(20):
        story.push("p", number, f"p{number}")
    report = list(story.final(*(f"x{number}" for number in range(20))).verdict().report())
    assert sum(line.startswith("lost write: t/0") for line in report) == SHOWN_PER_KIND_MAX
    assert {"lost write: 20", "never-sent value read: 20"} <= set(report)
    assert report[-1] == "0.0 min, 20 acknowledged, 40 anomalies"


def test_the_lines_around_an_anomaly_are_bounded() -> None:
    story = Story().push("p", 0, "p1")
    for number in range(100):
        story.poll(f"r{number}", 0, "p1")
    lines = only(story.poll("s", 0, "p1", "p1").verdict()).around
    assert len(lines) == LINES_AROUND_MAX + 1
    assert "... and 89 lines more" in lines


def test_a_line_that_is_no_event_is_refused_with_the_reason() -> None:
    for line in ("", "[]", "{}", '{"do":"nothing"}', '{"do":"poll","topic":"t"}', '{"do":"note","t":1,"by":"x"}'):
        with pytest.raises(BadHistory, match="h:1"):
            parse(line, "h:1")
