"""A callback class over the base classes of whichever frameworks are imported.

`haltune.callbacks.lightning` must not import torch, and its callback must be accepted
by `lightning` and by `pytorch_lightning`, whose base classes differ. So the public
class has no framework base of its own: making an instance makes a subclass of it and
of the bases found then. `isinstance` against any of the three is true.

Such a class has no importable name, so `__reduce__` names the public one. A copy
shares the reporter, and with it the live trial; what is pickled does not (`reporting`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Self

from haltune.errors import InvalidInput, UnknownArgument, installing
from haltune.errors.foreign_words import check_call
from haltune.study import Trial

from ..reporting.reporter import Reporter

_HOSTS = {  # package that calls callbacks -> ours for it, and its name
    "lightning": ("lightning", "Lightning"),
    "pytorch_lightning": ("lightning", "Lightning"),
    "keras": ("keras", "Keras"),
    "transformers": ("transformers", "Transformers"),
    "xgboost": ("xgboost", "XGBoost"),
    "lightgbm": ("lightgbm", "LightGBM"),
    "fastai": ("fastai", "fastai"),
}


class Portable:
    """Base of the callbacks: builds the class, copies and pickles without framework objects."""

    _homes: ClassVar[
        tuple[str, ...]
    ] = ()  # modules that each hold a base class; none where any callable will do
    _base: ClassVar[str] = "Callback"  # its name there
    _install: ClassVar[str] = ""  # what to type when none of them is installed; or else
    _extra: ClassVar[str] = ""  # haltune's, which brings one
    _held: ClassVar[frozenset[str]] = frozenset()  # attributes that frameworks set and that hold a model

    def __new__(cls, *args: Any, **named: Any) -> Self:
        check_call(cls, args, named)
        if not args and "trial" not in named and _needs_trial(cls):  # as a Trainer makes one of the class
            raise UnknownArgument(
                f"{cls.__name__}() has no trial: callbacks=[{cls.__name__}(trial)], one for each trial of the study"
            )
        return _blank(cls)  # type: ignore[no-any-return]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            host, called = _HOSTS.get(
                sys._getframe(1).f_globals.get("__name__", "").partition(".")[0], ("", "")
            )
            home = "haltune.callbacks."
            modules = (c.__module__ for c in type(self).__mro__ if c.__module__.startswith(home))
            own = next(modules, home).removeprefix(home).partition(".")[0]
            if host in ("", own) or name.startswith("__"):
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            raise InvalidInput(
                f"a callback of {home}{own} was given to {called}: write there "
                f"from {home}{host} import HaltuneCallback"
            )

    def _own(self) -> dict[str, Any]:
        """This object's attributes without those that hold a model."""
        return {k: v for k, v in self.__dict__.items() if k not in self._held}

    def _forget(self) -> None:
        """Drop what frameworks attached, so that no model lives on through the callback."""
        for name in self._held:
            self.__dict__.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        return self._own()

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (_public(type(self)),), self._own()

    def __copy__(self) -> Self:
        twin = _blank(_public(type(self)))
        twin.__dict__.update(self._own())
        return twin  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # the reporter is a handle on one running training: two of it would both report
        return self.__copy__()


class Reporting(Portable):
    """A callback over a reporter."""

    _reporter: Reporter

    @property
    def trial(self) -> Trial:
        """The trial it reports to."""
        return self._reporter.trial

    @property
    def monitor(self) -> str:
        """The name of the metric it reports."""
        return self._reporter.metric


def framework_bases(
    homes: tuple[str, ...], install: str, name: str = "Callback", extra: str = ""
) -> tuple[type, ...]:
    """The class `name` of each module of `homes` that is imported; if none is, of each installed one.

    Raises ImportError, saying what to install, when there is none.
    """
    found = [m for m in homes if m in sys.modules] or [m for m in homes if _installed(m)]
    bases = [getattr(importlib.import_module(m), name) for m in found]
    if not bases:
        raise ImportError(f"HaltuneCallback needs {' or '.join(homes)}: {install or installing(extra)}")
    return tuple(bases)


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


@functools.cache
def _over(cls: Any, bases: tuple[type, ...]) -> Any:
    """`cls` itself when it has these bases already, else a subclass of it and of those it lacks."""
    lacking = tuple(b for b in bases if not issubclass(cls, b))
    if not lacking:
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls, *lacking), names | {"_stands_for": cls})


def _public(cls: type) -> type:
    """The importable class that `cls` was built for."""
    return cls.__dict__.get("_stands_for", cls)  # type: ignore[no-any-return]


def _needs_trial(cls: Any) -> bool:
    wanted = inspect.signature(cls.__init__).parameters.get("trial")
    return wanted is not None and wanted.default is wanted.empty


def _blank(cls: Any) -> Any:
    """An instance of `cls` over the frameworks of this process, before its state is set."""
    bases = framework_bases(cls._homes, cls._install, cls._base, cls._extra) if cls._homes else ()
    concrete = _over(cls, bases)
    return super(Portable, concrete).__new__(concrete)
