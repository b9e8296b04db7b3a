#!/bin/sh
# Fetches Beam's Flink job server from a Maven repository and prints the path of the jar.
# Usage: deploy/get_flink_job_server.sh [cache folder]        (default: .cache/flink in the repository)
# FLINK_VERSION (default 1.20) and BEAM_JAVA_VERSION (default: the installed apache-beam) choose the artifact.
# FLINK_JOB_SERVER_JAR names a jar that is there already: it is checked and its path printed.
set -eu

fail() { echo "get_flink_job_server: $1" >&2; exit 1; }

command -v java >/dev/null || fail "Java is not installed; install a Java runtime (11 or 17) and run this again"
if [ -n "${FLINK_JOB_SERVER_JAR:-}" ]; then
    [ -r "$FLINK_JOB_SERVER_JAR" ] || fail "FLINK_JOB_SERVER_JAR must name a readable jar, got $FLINK_JOB_SERVER_JAR"
    echo "$FLINK_JOB_SERVER_JAR"
    exit 0
fi

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
flink=${FLINK_VERSION:-1.20}
version=${BEAM_JAVA_VERSION:-$("$python" -c 'from importlib.metadata import version; print(version("apache-beam"))' 2>/dev/null)} ||
    fail "apache-beam is not installed for '$python'; activate the project's environment or set PYTHON"
artifact=beam-runners-flink-$flink-job-server
folder=${1:-$root/.cache/flink}

if [ ! -s "$folder/$artifact-$version.jar" ]; then
    command -v mvn >/dev/null || fail "Maven is not installed; install mvn, or set FLINK_JOB_SERVER_JAR to a jar you have"
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    echo "get_flink_job_server: fetching org.apache.beam:$artifact:$version" >&2
    mvn -B -U org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        "-Dartifact=org.apache.beam:$artifact:$version" "-DoutputDirectory=$folder" >"$folder/mvn.log" 2>&1 ||
        { grep -m 1 'ERROR' "$folder/mvn.log" | cut -c 1-400 >&2
          fail "Maven has no org.apache.beam:$artifact:$version (see $folder/mvn.log); set FLINK_JOB_SERVER_JAR to a jar you have"; }
fi
cd "$folder" && echo "$PWD/$artifact-$version.jar"
