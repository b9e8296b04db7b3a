"""Names of things that a city searches for."""

from itertools import product

TRENDS = (
    "marathon route",
    "lantern festival",
    "first snow",
    "night market",
    "bridge reopening",
    "open air cinema",
    "cup final",
    "meteor shower",
    "museum night",
    "storm warning",
    "new tram line",
    "street piano day",
    "book fair",
    "flower parade",
    "rooftop concert",
    "giant pumpkin",
)

THINGS = (
    "bakery",
    "bicycle shop",
    "library",
    "swimming pool",
    "noodle bar",
    "bus timetable",
    "pharmacy",
    "playground",
    "post office",
    "coffee",
    "hairdresser",
    "parking",
    "cinema",
    "dentist",
    "florist",
    "garden centre",
    "gym",
    "ice cream",
    "kindergarten",
    "laundry",
    "museum",
    "optician",
    "picnic spot",
    "pizza",
    "recycling",
    "running track",
    "shoe repair",
    "tailor",
    "theatre",
    "vet",
    "viewpoint",
    "yoga",
)

PLACES = (
    "harbour",
    "old town",
    "north gate",
    "station",
    "university",
    "river bank",
    "castle hill",
    "east park",
    "mill street",
    "market square",
    "lakeside",
    "south bridge",
    "cathedral",
    "airport",
    "town hall",
    "west end",
    "botanical garden",
    "stadium",
    "canal",
    "observatory",
)


def search_names(count: int) -> list[str]:
    """Return so many different names; when things and places have run out, numbers are added."""
    pairs = [f"{thing} {place}" for place, thing in product(PLACES, THINGS)]
    return [pairs[n % len(pairs)] + (f" {n // len(pairs) + 1}" if n >= len(pairs) else "") for n in range(count)]
