"""A method that gives an iterator, and says so where its parentheses were forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Method(partial[Any]):
    """A method of one object."""

    def __iter__(self) -> NoReturn:
        name, whose = self.func.__name__, type(self.args[0]).__name__.lower()
        raise TypeError(
            f"{whose}.{name} is a method, and its parentheses are missing: for epoch in {whose}.{name}():"
        )


class _Answering:
    """A method as it stands in its class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = self.__wrapped__ = function
        self.__doc__ = function.__doc__

    def __get__(self, owner: Any, kind: type) -> Callable[..., Any]:
        if owner is None:
            return self._function
        return update_wrapper(_Method(self._function, owner), self._function)


def answers_uncalled(function: F) -> F:
    """The method, which answers in words where it is iterated and not called."""
    if TYPE_CHECKING:
        return function
    return _Answering(function)
