"""What an asynchronous call returns."""

from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")

class AsyncResult(Generic[_T]):
    value: _T
    @property
    def exception(self) -> Exception | None: ...
    def rawlink(self, callback: Callable[[AsyncResult[_T]], None]) -> None: ...
