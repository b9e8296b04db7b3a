"""Makes small pipelines cheap: lets Beam keep what it computes again and again for each of them, with the same result.

Signatures of methods, views of pipeline options and the list of all modules' globals take two thirds of the time of a
small pipeline in this process. Runners in other processes run Beam as it is.
"""

import inspect
import sys
import types
from copy import copy
from functools import cache
from weakref import WeakKeyDictionary

import objsize.traverse
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate


def install() -> None:
    """Put what remembers in the place of Beam's functions."""
    core.get_function_args_defaults = _inspected_once(core.get_function_args_defaults)
    userstate.get_dofn_specs = _found_once(userstate.get_dofn_specs)
    PipelineOptions.view_as = _view_as
    objsize.traverse._iter_modules_globals = _listed_once(objsize.traverse._iter_modules_globals)


def _inspected_once(inspect_arguments):
    """Beam inspects every method of a DoFn some ten times, to find states and timers."""
    known: WeakKeyDictionary = WeakKeyDictionary()

    def arguments(function):
        if not isinstance(function, types.MethodType) or not inspect.isfunction(function.__func__):
            return inspect_arguments(function)
        if function.__func__ not in known:
            known[function.__func__] = inspect_arguments(function)
        names, defaults = known[function.__func__]
        return list(names), list(defaults)

    return arguments


def _found_once(find):
    """The states and timers of a DoFn are those of its class, unless it stands for another function."""
    known: WeakKeyDictionary = WeakKeyDictionary()

    def specs(dofn):
        if hasattr(dofn, "_inspect_process"):
            return find(dofn)
        if type(dofn) not in known:
            known[type(dofn)] = find(dofn)
        states, timers = known[type(dofn)]
        return set(states), set(timers)

    return specs


def _view_as(self: PipelineOptions, cls: type[PipelineOptions]) -> PipelineOptions:
    """Beam builds a parser of command lines for each view, and asks for a view at each type that it checks."""
    parsed, names = _parsed(cls, tuple(sys.argv[1:] if self._flags is None else self._flags))
    for name in names:
        if name not in self._all_options:
            self._all_options[name] = copy(getattr(parsed._visible_options, name))
    view = cls.__new__(cls)
    view.__dict__.update(vars(parsed), _flags=self._flags, _all_options=self._all_options)
    return view


@cache
def _parsed(cls: type[PipelineOptions], flags: tuple[str, ...]) -> tuple[PipelineOptions, list[str]]:
    parsed = cls(list(flags))
    return parsed, parsed._visible_option_list()


def _listed_once(list_globals):
    """Beam's cache of states leaves them out each time that it measures a state."""
    known: dict[int, list] = {}

    def listed():
        count = len(sys.modules)
        if count not in known:
            known.clear()
            known[count] = list(list_globals())
        return known[count]

    return listed
