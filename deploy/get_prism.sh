#!/bin/sh
# Builds Beam's local streaming runner, Prism, for the installed apache-beam and prints the path of the binary.
# Beam can download a ready binary by itself. That one listens on every interface without a password, whatever it is told;
# this one listens on loopback. Go checks the source against its checksum database.
set -eu

fail() { echo "get_prism: $1" >&2; exit 1; }

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
version=$("$python" -c 'from importlib.metadata import version; print(version("apache-beam"))' 2>/dev/null) ||
    fail "apache-beam is not installed for '$python'; activate the project's environment or set PYTHON"
folder=${1:-$root/.cache/prism}/v$version-loopback

if [ ! -x "$folder/prism" ]; then
    command -v go >/dev/null || fail "Go is not installed; install Go (any release since 1.21) and run this again"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    echo "get_prism: building Prism v$version (a minute or two)" >&2
    source=$(cd "$folder" && go mod download -json "github.com/apache/beam/sdks/v2@v$version" 2>"$folder/build.log" |
        sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$source" ] || fail "Go could not fetch Beam's source, see $folder/build.log"
    scratch=$(mktemp -d "$folder/source.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    cp -R "$source/go" "$source/go.mod" "$source/go.sum" "$scratch"
    chmod -R u+w "$scratch"
    server=$scratch/go/pkg/beam/runners/prism/internal/jobservices/server.go
    sed 's/net.Listen("tcp", fmt.Sprintf(":%d", port))/net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))/' "$server" >"$scratch/server.go"
    ! cmp -s "$server" "$scratch/server.go" || fail "Prism v$version listens in another place than expected: $server"
    mv "$scratch/server.go" "$server"
    (cd "$scratch" && go build -buildvcs=false -trimpath -o "$folder/prism" ./go/cmd/prism) >"$folder/build.log" 2>&1 ||
        { tail -n 5 "$folder/build.log" >&2; fail "go build failed, see $folder/build.log"; }
fi
cd "$folder" && echo "$PWD/prism"
