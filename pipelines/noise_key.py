"""The noise key of a run: where it is, or a new one."""

from __future__ import annotations

from privstream.mechanisms.noise.sources import KeyedNoise


def noise_source(file: str | None, variable: str | None, run_id: str) -> KeyedNoise:
    """Return the noise source whose key is in a file or an environment variable, or one with a new random key.

    Raises:
        ValueError: both are named, or the key cannot be read or used.
    """
    if file is not None and variable is not None:
        raise ValueError("noise_key_file and noise_key_variable must not both be given")
    if file is not None:
        return KeyedNoise.from_file(file, run_id)
    if variable is not None:
        return KeyedNoise.from_environment(variable, run_id)
    return KeyedNoise.random(run_id)
