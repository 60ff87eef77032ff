"""The connection, which alone knows the timeout that the server grants."""

from collections.abc import Callable

class ConnectionHandler:
    _connect: Callable[[str, str, int], tuple[float, float]]
