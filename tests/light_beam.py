"""Makes small pipelines cheap: lets Beam keep what it computes again and again for each of them, with the same result.

Signatures of methods, views of pipeline options and the list of all modules' globals take two thirds of the time of a
small pipeline in this process. Runners in other processes run Beam as it is.
"""

import sys
from copy import copy
from functools import cache

import objsize.traverse
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate
from privstream.pipelines.runners import launch


def install() -> None:
    """Put what remembers in the place of Beam's functions."""
    core.get_function_args_defaults = launch.arguments_of
    userstate.get_dofn_specs = launch.states_of
    PipelineOptions.view_as = _view_as
    objsize.traverse._iter_modules_globals = _listed_once(objsize.traverse._iter_modules_globals)


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
