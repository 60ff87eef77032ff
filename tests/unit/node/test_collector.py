from __future__ import annotations

import gc

from clymq.node.collector import YOUNG_OBJECTS_MAX, calm_collector


def test_a_server_does_not_look_at_what_was_loaded_and_looks_rarely_at_the_rest() -> None:
    threshold = gc.get_threshold()
    try:
        calm_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == (YOUNG_OBJECTS_MAX, *threshold[1:])
        assert gc.isenabled(), "circles are still found, later"
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
