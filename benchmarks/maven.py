"""Jars from Maven Central, by Maven itself and so from wherever this machine's Maven looks: got once, and kept."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

KEPT = Path(__file__).parents[1] / ".bench-cache"
GET_SECONDS_MAX = 900
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def is_here() -> bool:
    """Return whether there is a Maven to ask, and a Java for it."""
    return shutil.which("mvn") is not None and shutil.which("java") is not None


def get(artifacts: Iterable[str], place: Path, *, with_what_they_need: bool) -> None:
    """Fill a folder with jars named `group:artifact:version`; if that fails there is no folder."""
    if place.is_dir() or not is_here():
        return
    half = place.with_name(f"{place.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    rest = "" if with_what_they_need else _ALONE
    wanted = "".join(_DEPENDENCY.format(*each.split(":"), rest) for each in artifacts)
    (half / "pom.xml").write_text(_POM.format(wanted))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={half}"]
    with contextlib.suppress(subprocess.SubprocessError):
        subprocess.run(command, cwd=half, timeout=GET_SECONDS_MAX, check=True, capture_output=True)
        half.rename(place)
