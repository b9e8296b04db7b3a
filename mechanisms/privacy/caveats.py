"""Caveats: what guarantees rest on beside their limits, in words that all of them share."""

KEYED_NOISE = (
    "All noise comes from AES-256 and BLAKE2b under a secret key: the guarantee is about observers who do not have the "
    "key and cannot break these."
)
COMPARED_FLOATS = "Floating-point noise is compared in secret, and not published: the guarantee holds up to rounding."
PUBLISHED_FLOATS = (
    "Real numbers are published with floating-point noise, whose low bits may betray more than the guarantee says: "
    "round them first."
)
ROUNDED_FLOATS = "Real numbers get floating-point noise and are then rounded: the guarantee holds up to rounding."
GIVEN_NUMBERS = (
    "A person is what has one 64-bit number, and so is an item: if these are hashes, add the chance that two collide "
    "to delta."
)
GIVEN_FUNCTIONS = "The guarantee rests on what the caller's own `Monotone` functions promise."


def noise_caveats(integer: bool, floats: str) -> tuple[str, ...]:
    """Return the caveats of noise that is exact on integers, and otherwise has those of floating point."""
    return (KEYED_NOISE,) if integer else (KEYED_NOISE, floats)


def people_hashed(neighbouring: str) -> str:
    """Return the caveat where limits and counts tell people apart by hashes (docs/proofs/clock.md, section 6)."""
    return f"People are told apart by keyed 64-bit hashes: with n people add {_twice(neighbouring)}n / 2^64 to delta."


def items_hashed(neighbouring: str) -> str:
    """Return the caveat where items that are not on a list are published by their hashes."""
    return (
        "Items are told apart by keyed 64-bit hashes: with m of them in all, "
        f"add {_twice(neighbouring)}m / 2^64 to delta for each one that a person sends."
    )


def streams_hashed(neighbouring: str) -> str:
    """Return the caveat where it is by hashes that streams of a person are counted or told apart."""
    return (
        "So are pairs of a person and a stream: with p of them in all, "
        f"add {_twice(neighbouring)}p / 2^64 for each one of a person."
    )


def contributions_hashed(neighbouring: str) -> str:
    """Return the caveat where it is by a hash that a person's second contribution to an item is told from a first."""
    return (
        "So are triples of a person, a stream and an item: with p of them in all, "
        f"add {_twice(neighbouring)}p / 2^64 for each one of a person."
    )


def events_hashed(neighbouring: str) -> str:
    """Return the caveat where the unit is an event, and each event is put to its person in its stream by a hash."""
    return (
        "Pairs of a person and a stream are told apart by keyed 64-bit hashes: with p pairs add "
        f"{_twice(neighbouring)}p / 2^64 to delta."
    )


def _twice(neighbouring: str) -> str:
    """Return the factor: who is replaced by a person with another id may collide, and so may the other."""
    return "2 " if neighbouring == "replace_one" else ""
