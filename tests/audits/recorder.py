"""Keeps what noise is drawn for: a label, the true numbers that it is bound to, and the law; in this process.

Of two neighbouring inputs the numbers under each label are compared. Their distance must not exceed what is claimed.
"""

import numpy as np
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace, WideGaussian
from privstream.mechanisms.noise.sources import PrfNoise, _blocks

NAME = np.zeros((1, 2), np.uint64)


class Recorder:
    """Records all noise that is bound to numbers.

    Attributes:
        drawn: by label, (source, high, low): the numbers, int64 (n,), and the law.
    """

    def __init__(self, monkeypatch):
        self.drawn, self._bound = {}, {}
        bind = PrfNoise.bind

        def bind_and_keep(source, labels, values):
            found = bind(source, labels, values)
            name = source._prf.encrypt("recorder", NAME).tobytes()
            for label, value, to in zip(_blocks(labels).tolist(), values.tolist(), found.tolist(), strict=True):
                place, before = self._bound.get(tuple(label), ((name, *label), ()))
                self._bound[tuple(to)] = place, (*before, value)
            return found

        monkeypatch.setattr(PrfNoise, "bind", bind_and_keep)
        for kind in (DiscreteGaussian, DiscreteLaplace, WideGaussian):
            monkeypatch.setattr(kind, "draw", self._keeping(kind.draw))

    def _keeping(self, draw):
        def draw_and_keep(law, source, labels):
            for label in labels.tolist() if isinstance(labels, np.ndarray) and labels.ndim == 2 else ():
                if tuple(label[:2]) in self._bound:
                    place, numbers = self._bound[tuple(label[:2])]
                    self.drawn.setdefault(place, (np.array(numbers), law))
            return draw(law, source, labels)

        return draw_and_keep

    def take(self):
        """Return what was drawn until now, and begin anew."""
        found, self.drawn, self._bound = self.drawn, {}, {}
        return found


def differences(one, other):
    """Return the differences of numbers of two runs, and the law, by label; all labels must be in both runs."""
    assert one.keys() == other.keys() and one
    return {label: (numbers - other[label][0], law) for label, (numbers, law) in one.items()}
