"""How a server's process looks for garbage.

Nearly everything that a server makes is gone when nobody refers to it any more; Python's collector looks for what
refers to itself in a circle, which here is next to nothing. By default it looks whenever 700 objects more than before
exist, as many as sixty pushes on their way make, and walks again and again through all that was loaded at the start: a
tenth of the time of a busy broker. For processes of our own only: a program that uses the library has its own wishes.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS_MAX: Final = 20_000


def calm_collector() -> None:
    """Look rarely, and never again at what is there by now: call it once, when the program is loaded."""
    gc.collect()
    gc.freeze()
    _, second, third = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS_MAX, second, third)
