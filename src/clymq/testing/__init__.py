"""For tests, ours and users': whole clusters that can be killed, stopped, frozen and cut off from each other.

`LocalCluster` runs inside the process of the test, `ProcessCluster` in processes of its own. Both are imported when
they are first used: pytest loads the plugin beside them in every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clymq.testing.local_cluster import LocalCluster
    from clymq.testing.process_cluster import ProcessCluster

__all__ = ["LocalCluster", "ProcessCluster"]


def __getattr__(name: str) -> object:
    if name == "LocalCluster":
        from clymq.testing.local_cluster import LocalCluster  # noqa: PLC0415

        return LocalCluster
    if name == "ProcessCluster":
        from clymq.testing.process_cluster import ProcessCluster  # noqa: PLC0415

        return ProcessCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
