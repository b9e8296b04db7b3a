#!/bin/sh
# Builds Beam's local streaming runner, Prism, for the installed apache-beam and prints the path of the binary.
# Usage: deploy/get_prism.sh [cache folder]        (default: .cache/prism in the repository)
# Beam can download a ready binary by itself; this is for machines that reach a Go module proxy but not the release page.
set -eu

fail() { echo "get_prism: $1" >&2; exit 1; }

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
version=$("$python" -c 'from importlib.metadata import version; print(version("apache-beam"))' 2>/dev/null) ||
    fail "apache-beam is not installed for '$python'; activate the project's environment or set PYTHON"
folder=${1:-$root/.cache/prism}/v$version

if [ ! -x "$folder/prism" ]; then
    command -v go >/dev/null || fail "Go is not installed; install Go (any release since 1.21) and run this again"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    echo "get_prism: building Prism v$version (a minute or two)" >&2
    GOBIN=$folder go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$version" >"$folder/build.log" 2>&1 ||
        { tail -n 5 "$folder/build.log" >&2; fail "go install failed, see $folder/build.log"; }
fi
cd "$folder" && echo "$PWD/prism"
