"""The programs in `examples` do what they say."""

from __future__ import annotations

import pytest
from examples import consumer, producer

from clymq.testing.local_cluster import LocalCluster


def test_the_producer_and_the_consumer_of_the_original_program(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster() as cluster:
        where = ["--bootstrap", cluster.bootstrap]
        producer.main([*where, "--count", "200"])
        shown = capsys.readouterr().out
        assert "xian: changed\nshanghai: changed\n北京: changed\n" in shown
        assert "xian: the first of this run is at offset 0" in shown
        assert "北京: the first of this run is at offset None" in shown
        assert "shanghai: 200 messages of phone_company are stored" in shown

        producer.main([*where, "--count", "100"])
        shown = capsys.readouterr().out
        assert "xian: HadRaft\nshanghai: HadFetch\n北京: HadFetch\n" in shown
        assert "xian: 300 messages of phone_company are stored" in shown

        consumer.main([*where, "--wait", "2"])
        assert capsys.readouterr().out == "shanghai: 300 messages\nxian: 300 messages\n北京: 300 messages\n"
        consumer.main([*where, "--wait", "1"])
        assert capsys.readouterr().out == "", "the group has finished them"
        consumer.main([*where, "--wait", "1", "--partition", "xian", "--from", "290"])
        assert capsys.readouterr().out == "xian: 10 messages\n"
