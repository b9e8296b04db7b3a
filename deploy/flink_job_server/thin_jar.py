"""Writes a jar that starts Beam's Flink job server from the jars in `lib` beside it: `thin_jar.py FOLDER`.

The classes in `classes` beside it go into the jar and so come before those of the libraries.
"""

import itertools
import sys
import zipfile
from pathlib import Path

# What Flink and its serializers ask of Java 17.
OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.text", "java.time",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.misc", "sun.nio.ch",
)  # fmt: skip
WIDTH = 72  # bytes of a manifest's line, its line end excluded


def main(folder: Path) -> None:
    """Write `job-server.jar`."""
    attributes = {
        "Manifest-Version": "1.0",
        "Main-Class": "privstream.LoopbackJobServer",
        "Class-Path": " ".join(f"lib/{jar.name}" for jar in sorted(folder.glob("lib/*.jar"))),
        "Add-Opens": " ".join(f"java.base/{package}" for package in OPENED),
    }
    with zipfile.ZipFile(folder / "job-server.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "".join(_attribute(*pair) for pair in attributes.items()) + "\r\n")
        for file in sorted(folder.glob("classes/**/*.class")):
            jar.write(file, file.relative_to(folder / "classes").as_posix())


def _attribute(name: str, value: str) -> str:
    """Return an attribute in lines; a line that begins with a space continues the one before."""
    text = f"{name}: {value}"
    cuts = [0, *range(WIDTH, len(text), WIDTH - 1), len(text)]
    return "\r\n ".join(text[start:end] for start, end in itertools.pairwise(cuts)) + "\r\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
