"""Base of the callback classes. It adds a framework's base class when an instance is made.

`import haltune.callbacks.keras` must not import Keras, so that KERAS_BACKEND can be set later. And a callback must be
an instance of the base classes of both `lightning` and `pytorch_lightning`, which differ. So a new instance gets a
subclass of the public class and of the bases that are imported then. `__reduce__` names the public class.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, ClassVar, Self, TypeVar, cast

from haltune._utils.interruption import Interruption, caller
from haltune._utils.randomness import capture, restore
from haltune.errors import InvalidInput, installing
from haltune.hints import KnowsAttributes, check_call
from haltune.study import Trial

from .reporter import Reporter, digest, missing, two_callbacks

# what a callback needs: docs/reference/port.md
__all__ = [
    "Interruption",
    "Reporter",
    "Reporting",
    "caller",
    "capture",
    "digest",
    "missing",
    "of_instance",
    "restore",
    "two_callbacks",
]

F = TypeVar("F", bound=Callable[..., Any])


class _OfInstance:
    """Method of a callback whose error explains what to do if a framework calls it of the class.

    function: None, that of the framework's base class.
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function
        if function is not None:
            functools.update_wrapper(self, function)

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self if owner is None or owner is self._owner else self._of(owner)
        if self._function is None:
            return getattr(super(self._owner, instance), self._name)
        return MethodType(self._function, instance)

    def _of(self, subclass: type) -> _OfInstance:
        """Return the hook of a user's subclass, whose name the error gives."""
        hook = _OfInstance(self._function)
        hook.__set_name__(subclass, self._name)
        return hook

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self._function is not None and args and isinstance(args[0], self._owner):
            return self._function(*args, **named)
        raise class_given(self._owner)


def of_instance(method: F) -> F:
    """Return the first hook of a callback, with an error for a program that gives the framework the class.

    Args:
        method: The hook that the framework calls first.

    Returns:
        The hook. Without an instance it raises InvalidInput, which says to write HaltuneCallback(trial).
    """
    return cast(F, _OfInstance(method))


def inherited() -> Any:
    """Return the same for a hook of the framework's base class, which the instance alone has."""
    return _OfInstance()


def class_given(cls: type) -> InvalidInput:
    """Return the error for a class in place of a callback."""
    return InvalidInput(
        f"{cls.__name__} is a class, and each trial needs a callback of its own. Write {cls.__name__}(trial), with a "
        "trial from `for trial in study` or study.ask()."
    )


class Portable:
    """Base of instances with the frameworks' base classes. Copies and pickles hold no framework objects."""

    _homes: ClassVar[tuple[str, ...]] = ()  # modules with a base class each; empty if any callable works
    _base: ClassVar[str] = "Callback"  # the name of the base class
    _install: ClassVar[str] = ""  # the extra of haltune that installs one, or a whole command
    _held: ClassVar[frozenset[str]] = frozenset()  # attributes that frameworks set and that hold a model

    def __new__(cls, *args: Any, **named: Any) -> Self:
        check_call(cls, named)
        needed = None if args or named else inspect.signature(cls.__init__).parameters.get("trial")
        if needed is not None and needed.default is inspect.Parameter.empty:
            raise class_given(cls)  # some frameworks make an instance of a class
        return _blank(cls)  # type: ignore[no-any-return]

    def _forget(self) -> None:
        """Drop attributes that frameworks set, so that the callback holds no model."""
        for name in self._held:
            self.__dict__.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in self._held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self).__dict__.get("_stands_for", type(self)),), self.__getstate__()

    def __copy__(self) -> Self:
        make, arguments, state = self.__reduce__()
        twin = make(*arguments)
        twin.__setstate__(state)
        return twin  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # the copy shares the reporter, and with it the live trial: two reporters would both report
        return self.__copy__()


# not one class with Portable: the signature of `__new__` would hide that of `__init__`
class Reporting(Portable, KnowsAttributes):
    """Base of a callback: it makes the reporter of its trial, `self._reporter`.

    A subclass sets class attributes: `_hint`, an imperative that says how to continue the loop at the right epoch, for
    messages; `_counts`, the units that the loop counts, if they are not ("epoch",), such as ("epoch", "step"). For its
    own attributes it has a method `_setup` without arguments, called at the end of `__init__`.

    Args:
        trial: The trial that the fit trains, from `for trial in study` or study.ask().
        monitor: Name of the logged metric to report. Default: None, the goal's metric.
        verbose: Whether to print a line for each report. Default: False.
        record: "all" stores all numbers that are reported with the metric, "monitor" only the metrics of the study.
            Default: "all".

    Raises:
        InvalidInput: If `trial` is not a trial, `monitor` not a name, or the study has a unit that is not in `_counts`.
        ImportError: If no module of `_homes` is installed.
    """

    _hint: ClassVar[str] = ""  # how to continue the loop at the right epoch
    _counts: ClassVar[tuple[str, ...]] = ("epoch",)  # the units that the loop counts

    def __init__(self, trial: Trial, monitor: str | None = None, verbose: bool = False, record: str = "all") -> None:
        self._reporter = Reporter(trial, monitor, verbose, record=record, resume_hint=self._hint, counts=self._counts)
        self._setup()

    def _setup(self) -> None:
        """Set the attributes of the subclass."""

    @property
    def trial(self) -> Trial:
        """The trial it reports to."""
        return self._reporter.trial

    @property
    def monitor(self) -> str:
        """The name of the metric it reports."""
        return self._reporter.metric


def framework_bases(homes: tuple[str, ...], name: str, install: str) -> tuple[type, ...]:
    """Return the class `name` of each module of `homes` that is imported; if none is, of each installed one.

    Raises ImportError if none is installed; the message has the command to run.
    """
    installed = (m for m in homes if importlib.util.find_spec(m.partition(".")[0]) is not None)
    found = [m for m in homes if m in sys.modules] or list(installed)
    if not found:
        how = install if " " in install else installing(install)
        raise ImportError(f"HaltuneCallback needs {' or '.join(homes)}, which is not installed. Run: {how}")
    return tuple(getattr(importlib.import_module(m), name) for m in found)


def over(cls: Any, bases: tuple[type, ...]) -> Any:
    """Return a subclass of `cls` and of the `bases` that it lacks; `cls` itself if it lacks none."""
    lacking = tuple(b for b in bases if not issubclass(cls, b))
    if not lacking:
        return cls
    if (made := vars(cls).get("_over")) is None:  # in the class: a program may make one for each trial
        cls._over = made = {}
    if lacking not in made:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        made[lacking] = type(cls.__name__, (cls, *lacking), names | {"_stands_for": cls})
    return made[lacking]


def _blank(cls: Any) -> Any:
    """Make an instance of `cls` over the frameworks of this process, without its state."""
    bases = framework_bases(cls._homes, cls._base, cls._install) if cls._homes else ()
    concrete = over(cls, bases)
    return super(Portable, concrete).__new__(concrete)
