from __future__ import annotations

import pytest

from clymq.errors import ConfigError, InvalidName
from clymq.spark.options import Bound, Subscription, duration_ms, sink_options, source_options

READ = {"bootstrap.servers": "h:1", "subscribe": "a"}
WRITE = {"bootstrap.servers": "h:1", "topic": "a"}


def test_the_defaults_are_those_of_sparks_kafka_source() -> None:
    batch, stream = source_options(READ, "batch"), source_options(READ, "stream")
    assert batch.start == Bound("earliest")
    assert batch.end == Bound("latest")
    assert stream.start == Bound("latest")
    for options in (batch, stream):
        assert options.fail_on_data_loss
        assert not options.include_headers
        assert options.start_after_last == "error"
        assert options.max_trigger_delay_ms == 15 * 60 * 1000
        assert options.group is None
        assert options.min_partitions is options.max_records_per_partition is options.max_offsets_per_trigger is None


@pytest.mark.parametrize("name", ["bootstrap.servers", "clymq.bootstrap.servers", "kafka.bootstrap.servers"])
def test_the_address_has_three_spellings(name: str) -> None:
    assert source_options({name: "h:1", "subscribe": "a"}, "batch").bootstrap == "h:1"


def test_names_are_found_whatever_their_case() -> None:
    given = {"BOOTSTRAP.SERVERS": "h:1", "SubScribePattern": "a.*", "FAILONDATALOSS": "False"}
    options = source_options(given, "stream")
    assert options.subscription == Subscription(pattern="a.*")
    assert not options.fail_on_data_loss


def test_what_is_subscribed_to_is_a_list_a_pattern_or_partitions() -> None:
    several = source_options({**READ, "subscribe": " a, b ,a"}, "batch").subscription
    assert several == Subscription(topics=("a", "b"))
    given = {"bootstrap.servers": "h:1", "assign": '{"a": ["x", 1]}'}
    assert source_options(given, "batch").subscription == Subscription(assigned=(("a", ("x", "1")),))


def test_a_time_wins_over_times_and_those_over_offsets() -> None:
    times, offsets = '{"a": {"0": 5}}', '{"a": {"0": 7}}'
    everything = {
        **READ,
        "startingTimestamp": "3",
        "startingOffsetsByTimestamp": times,
        "startingOffsets": offsets,
        "endingTimestamp": "4",
        "endingOffsetsByTimestamp": times,
        "endingOffsets": offsets,
    }
    options = source_options(everything, "batch")
    assert options.start == Bound("time", time_ms=3, option="startingTimestamp")
    assert options.end == Bound("time", time_ms=4, option="endingTimestamp")
    del everything["startingTimestamp"], everything["endingTimestamp"]
    options = source_options(everything, "batch")
    assert options.start == Bound("times", {"a": {"0": 5}}, option="startingOffsetsByTimestamp")
    assert options.end == Bound("times", {"a": {"0": 5}}, option="endingOffsetsByTimestamp")
    del everything["startingOffsetsByTimestamp"], everything["endingOffsetsByTimestamp"]
    options = source_options(everything, "batch")
    assert options.start == Bound("offsets", {"a": {"0": 7}}, option="startingOffsets")
    assert options.end == Bound("offsets", {"a": {"0": 7}}, option="endingOffsets")


def test_offsets_are_also_taken_as_the_progress_of_a_query_shows_them() -> None:
    shown = '{"a": {"id": "9f", "offsets": {"0": 7}}}'
    assert source_options({**READ, "startingOffsets": shown}, "stream").start.numbers == {"a": {"0": 7}}


@pytest.mark.parametrize(
    ("use", "given", "named"),
    [
        ("batch", {"maxOffsetPerTrigger": "5"}, "maxoffsetpertrigger"),  # misspelt
        ("batch", {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
        ("batch", {"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
        ("stream", {"endingOffsets": "latest"}, "endingOffsets"),
        ("stream", {"endingTimestamp": "5"}, "endingTimestamp"),
        ("stream", {"assign": '{"a": ["0"]}'}, "subscribe"),
        ("stream", {"clymq.bootstrap.servers": "i:1"}, "clymq.bootstrap.servers"),
        ("batch", {"startingOffsets": "latest"}, "startingOffsets"),
        ("batch", {"startingOffsets": '{"a": {"0": -1}}'}, "startingOffsets"),
        ("batch", {"endingOffsets": "earliest"}, "endingOffsets"),
        ("batch", {"endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets"),
        ("batch", {"startingOffsets": "newest"}, "startingOffsets"),
        ("batch", {"startingOffsets": '{"a": {"0": "5"}}'}, "startingOffsets"),
        ("batch", {"startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets"),
        ("batch", {"startingOffsets": "[]"}, "startingOffsets"),
        ("batch", {"startingOffsetsByTimestampStrategy": "first"}, "startingOffsetsByTimestampStrategy"),
        ("stream", {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
        ("stream", {"maxTriggerDelay": "5s"}, "maxTriggerDelay"),
        ("stream", {"maxTriggerDelay": "soon", "minOffsetsPerTrigger": "1"}, "maxTriggerDelay"),
        ("stream", {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ("stream", {"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ("batch", {"minPartitions": "-1"}, "minPartitions"),
        ("batch", {"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ("batch", {"includeHeaders": "1"}, "includeHeaders"),
        ("batch", {"timeout": "0"}, "timeout"),
        ("batch", {"kafka.group.id": "a", "groupId": "b"}, "kafka.group.id"),
    ],
)
def test_what_is_unknown_wrong_or_contradictory_is_refused_by_its_name(use, given, named) -> None:
    with pytest.raises(ConfigError) as caught:
        source_options({**READ, **given}, use)
    assert caught.value.setting == named


@pytest.mark.parametrize("given", [{"subscribe": "a"}, {"bootstrap.servers": "h:1"}])
def test_an_address_and_a_subscription_are_required(given) -> None:
    with pytest.raises(ConfigError):
        source_options(given, "batch")


def test_a_pattern_that_is_none_and_a_name_that_is_none_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        source_options({"bootstrap.servers": "h:1", "subscribePattern": "("}, "batch")
    assert caught.value.setting == "subscribePattern"
    with pytest.raises(InvalidName):
        source_options({"bootstrap.servers": "h:1", "subscribe": "a/b"}, "batch")


def test_what_spark_adds_is_no_unknown_option() -> None:
    given = {**WRITE, "checkpointlocation": "/c", "queryname": "q", "path": "p"}
    assert sink_options(given).topic == "a"


def test_the_sink_is_exactly_once_unless_told_otherwise() -> None:
    assert sink_options(WRITE).exactly_once
    assert not sink_options({**WRITE, "delivery": "at-least-once"}).exactly_once


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"delivery": "at-most-once"}, "delivery"),
        ({"subscribe": "a"}, "subscribe"),
        ({"batchId": "1"}, "batchId"),
        ({"producerName": "p", "batchId": "-1"}, "batchId"),
        ({"producerName": "p", "delivery": "at-least-once"}, "producerName"),
        ({"codec": "gzip"}, "codec"),
    ],
)
def test_the_sink_refuses_by_name_too(given, named) -> None:
    with pytest.raises(ConfigError) as caught:
        sink_options({**WRITE, **given})
    assert caught.value.setting == named


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("500ms", 500), ("10 seconds", 10_000), ("7", 7), ("2h", 7_200_000)]
)
def test_times_have_units(text, ms) -> None:
    assert duration_ms(text) == ms
