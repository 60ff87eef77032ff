from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clymq.errors import ConfigError
from clymq.pipeline.definition import Watermark, parse_definition
from clymq.pipeline.files import load_definition
from clymq.pipeline.kinds import CHECKS, WHOLE_ROW
from clymq.pipeline.names import queries_of
from clymq.pipeline.progress import figures

ROOT = Path(__file__).parents[3]
WHOLE: dict[str, Any] = {
    "name": "calls",
    "checkpoint": "./c",
    "trigger": "10 seconds",
    "settings": {"spark.sql.shuffle.partitions": 2},
    "sources": {
        "calls": {
            "topic": "phone",
            "decode": "json",
            "schema": "city string, at timestamp",
            "dead_letter": "phone.bad",
            "watermark": {"column": "at", "delay": "10 minutes"},
            "options": {"maxOffsetsPerTrigger": 5, "failOnDataLoss": False},
        }
    },
    "steps": [{"name": "per_city", "sql": "SELECT city FROM calls"}],
    "sinks": [
        {"from": "per_city", "kind": "topic", "topic": "out", "key": "city"},
        {"from": "calls", "kind": "parquet", "path": "p", "partition_by": ["city"], "name": "lake"},
        {"from": "calls", "kind": "console"},
    ],
}


def parse(document: Any) -> Any:
    return parse_definition(document, CHECKS)


def test_a_whole_file_is_understood() -> None:
    found = parse(WHOLE)
    (source,) = found.sources
    assert source.topics == ("phone",)
    assert source.watermark == Watermark("at", "10 minutes")
    assert source.options == {"maxOffsetsPerTrigger": "5", "failOnDataLoss": "false"}
    assert [sink.name for sink in found.sinks] == ["per_city-topic", "lake", "calls-console"]
    assert found.sinks[0].fields["expressions"] == {"value": WHOLE_ROW, "key": "city"}
    assert list(queries_of(found)) == ["per_city-topic", "lake", "calls-console", "calls-dead-letters"]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("chekpoint",), "x", "chekpoint"),
        (("checkpoint",), None, "checkpoint"),
        (("trigger",), "often", "trigger"),
        (("sources",), {}, "sources"),
        (("sources", "calls", "topics"), ["a"], "sources.calls.topic"),
        (("sources", "calls", "decode"), "xml", "sources.calls.decode"),
        (("sources", "calls", "decode"), "raw", "sources.calls.schema"),
        (("sources", "calls", "watermark", "delay"), "late", "sources.calls.watermark.delay"),
        (("sources", "calls", "dead_letter"), "a/b", "sources.calls.dead_letter"),
        (("steps", 0, "name"), "calls", "steps[0].name"),
        (("steps", 0, "name"), "per city", "steps[0].name"),
        (("steps", 0, "sql"), 5, "steps[0].sql"),
        (("sinks", 0, "from"), "nowhere", "sinks[0].from"),
        (("sinks", 0, "kind"), "kafka", "sinks[0].kind"),
        (("sinks", 0, "topik"), "x", "sinks[0].topik"),
        (("sinks", 0, "topic"), "", "sinks[0].topic"),
        (("sinks", 1, "partition_by"), "city", "sinks[1].partition_by"),
        (("sinks", 1, "name"), "calls-console", "sinks[2].name"),
        (("sinks", 2, "mode"), "sometimes", "sinks[2].mode"),
        (("sinks", 0, "mode"), "complete", "sinks[0].mode"),
        (("sinks", 1, "mode"), "update", "sinks[1].mode"),
        (("sinks", 0, "options"), {"delivry": "x"}, "sinks[0].options.delivry"),
        (("sinks", 0, "options"), {"delivery": "twice"}, "sinks[0].options.delivery"),
        (("sources", "calls", "options"), {"maxOffsetPerTrigger": 5}, "sources.calls.options.maxoffsetpertrigger"),
        (("sources", "calls", "options"), {"endingOffsets": "latest"}, "sources.calls.options.endingOffsets"),
    ],
)
def test_a_mistake_is_named_by_its_place(path: Any, value: Any, named: str) -> None:
    document = copy.deepcopy(WHOLE)
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ConfigError) as caught:
        parse(document)
    assert caught.value.setting == named


def test_yaml_and_toml_say_the_same_and_folders_are_meant_from_the_file(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "p.yaml").write_text(
        "name: a\ncheckpoint: ./c\nsources: {s: {topic: t}}\nsinks: [{from: s, kind: json, path: out}]\n"
    )
    (tmp_path / "p.toml").write_text(
        'name = "a"\ncheckpoint = "./c"\nsources.s.topic = "t"\n[[sinks]]\nfrom = "s"\nkind = "json"\npath = "out"\n'
    )
    found = load_definition(tmp_path / "p.yaml")
    assert found == load_definition(tmp_path / "p.toml")
    assert Path(found.checkpoint) == tmp_path / "c"
    assert found.sinks[0].fields["path"] == str(tmp_path / "out")


@pytest.mark.parametrize(("name", "text"), [("p.yaml", "a: ["), ("p.toml", "a = ["), ("p.ini", ""), ("p.yaml", "5")])
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, text: str) -> None:
    pytest.importorskip("yaml")
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError):
        load_definition(tmp_path / name)
    with pytest.raises(ConfigError):
        load_definition(tmp_path / "missing.yaml")


@pytest.mark.parametrize("name", ["call_records", "click_stream"])
def test_the_examples_are_valid(name: str) -> None:
    pytest.importorskip("yaml")
    assert load_definition(ROOT / "examples" / name / "pipeline.yaml").name == name


def test_the_file_in_the_page_is_valid(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/spark.md").read_text(), flags=re.DOTALL)
    (tmp_path / "p.yaml").write_text(shown)
    assert load_definition(tmp_path / "p.yaml").bootstrap == "127.0.0.1:7878"


def test_what_needs_no_spark_loads_none() -> None:
    code = "import sys, clymq, clymq.cli.main, clymq.pipeline.files; assert 'pyspark' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_figures_come_from_the_progress_of_a_query() -> None:
    offsets = {"t": {"id": "i", "offsets": {"0": 5}}}
    progress = {
        "batchId": 3,
        "numInputRows": 10,
        "processedRowsPerSecond": 2.5,
        "durationMs": {"triggerExecution": 40},
        "sources": [{"endOffset": offsets, "latestOffset": {"t": {"id": "i", "offsets": {"0": 9}}}}, {"endOffset": 4}],
    }
    found = figures("q", "running", progress)
    assert (found.batch, found.rows, found.rows_per_second, found.lag, found.batch_ms) == (3, 10, 2.5, 4, 40)
    assert figures("q", "waiting", None).batch == -1
