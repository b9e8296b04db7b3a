#!/bin/sh
# Puts Beam's Flink job server into the cache and prints the path of its jar; says on stderr where it comes from.
# Usage: deploy/get_flink_job_server.sh [cache folder]        (default: .cache/flink in the repository)
# First the job server that Beam publishes with the installed apache-beam; where Maven cannot get it, one put together from
# what Beam and Flink publish as libraries (flink_job_server/pom.xml).
# FLINK_VERSION chooses another release of Flink than the file flink_version, here and in all else that this repository starts.
# FLINK_JOB_SERVER_JAR names a jar that is there already: it is checked and its path printed.
# What is in the cache stays as it is, since jobs may use it: one of other sources gets a folder of its own, and a link,
# job-server-FLINK-beam-BEAM-newest, by which deploy/flink_cluster.py finds the last one.
set -eu

say() { echo "get_flink_job_server: $1" >&2; }
fail() { say "$1"; exit 1; }
fetch() { mvn -B --strict-checksums "$@" >"$scratch/mvn.log" 2>&1; }
# Unlike mv, it moves nothing into a folder that is there, and puts a link in the place of another one at once.
rename() { "$python" -c 'import os, sys; os.replace(*sys.argv[1:])' "$1" "$2" 2>/dev/null; }
reason() { sed -n 's/^\[ERROR\] \(Failed to execute goal .* on project [^:]*: \)\{0,1\}//p' "$scratch/mvn.log" | head -n 1 | cut -c 1-300; }

command -v java >/dev/null || fail "Java is not installed; install a Java runtime (11 or 17) and run this again"
if [ -n "${FLINK_JOB_SERVER_JAR:-}" ]; then
    [ -r "$FLINK_JOB_SERVER_JAR" ] || fail "FLINK_JOB_SERVER_JAR must name a readable jar, got $FLINK_JOB_SERVER_JAR"
    say "the one that FLINK_JOB_SERVER_JAR names"
    echo "$FLINK_JOB_SERVER_JAR"
    exit 0
fi

deploy=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
flink=${FLINK_VERSION:-$(cat "$deploy/flink_version")}
line=${flink%.*}
beam=$("$python" -c 'from importlib.metadata import version; print(version("apache-beam"))' 2>/dev/null) ||
    fail "apache-beam is not installed for '$python'; activate the project's environment or set PYTHON"
cache=${1:-$deploy/../.cache/flink}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
name=job-server-$flink-beam-$beam
sources=$(cat "$deploy"/flink_job_server/*.* | cksum | tr ' ' -)
folder=$cache/$name-$sources

if [ ! -r "$folder/job-server.jar" ]; then
    command -v mvn >/dev/null || fail "Maven is not installed; install mvn, or set FLINK_JOB_SERVER_JAR to a jar you have"
    plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1
    artifact=beam-runners-flink-$line-job-server
    pom=$deploy/flink_job_server/pom.xml
    scratch=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    say "fetching org.apache.beam:$artifact:$beam"
    if fetch -U $plugin:copy "-Dartifact=org.apache.beam:$artifact:$beam" "-DoutputDirectory=$scratch"; then
        mv "$scratch/$artifact-$beam.jar" "$scratch/job-server.jar"
        echo "Beam's own, org.apache.beam:$artifact:$beam" >"$scratch/origin"
    else
        say "not to be had: $(reason | sed 's/ in [^ ]* (http.*//')"
        runner=$(sed -n 's|.*<artifactId>beam-runners-flink-\(.*\)</artifactId>.*|\1|p' "$pom")
        lines=$(sed -n 's|.*<flink.lines>\(.*\)</flink.lines>.*|\1|p' "$pom")
        case " $lines " in
            *" $line "*) ;;
            *) fail "one can be put together for Flink ${lines% *} and ${lines#* } only, not $flink; set FLINK_JOB_SERVER_JAR to a jar you have" ;;
        esac
        command -v javac >/dev/null || fail "javac is missing: a JDK (11 or 17) is needed to put one together"
        say "putting one together for Flink $flink from published libraries (100 MB)"
        fetch -f "$pom" $plugin:copy-dependencies "-Dflink.version=$flink" -DincludeScope=runtime \
            "-DoutputDirectory=$scratch/lib" ||
            fail "not to be had: $(reason); set FLINK_JOB_SERVER_JAR to a jar you have"
        javac --release 11 -cp "$scratch/lib/*" -d "$scratch/classes" "$deploy"/flink_job_server/*.java \
            >"$scratch/javac.log" 2>&1 || fail "javac failed: $(head -n 1 "$scratch/javac.log")"
        java -cp "$scratch/classes:$scratch/lib/*" privstream.PromptWatermarks "$scratch/classes" >"$scratch/java.log" 2>&1 ||
            fail "Beam's operator is not the known one: $(head -n 1 "$scratch/java.log")"
        "$python" "$deploy/flink_job_server/thin_jar.py" "$scratch"
        mkdir "$scratch/conf"
        cp "$deploy/flink_job_server/config.yaml" "$scratch/conf/"
        origin=$(sed -n 's|.*<beam.version>\(.*\)</beam.version>.*|\1|p' "$pom")
        echo "put together from libraries: Beam's Flink runner $origin for Flink $runner on Flink $flink" >"$scratch/origin"
    fi
    chmod 755 "$scratch"
    rename "$scratch" "$folder" || [ -r "$folder/job-server.jar" ] || fail "cannot write $folder"
fi
ln -sfn "$name-$sources" "$cache/$name.$$"
rename "$cache/$name.$$" "$cache/$name-newest" || fail "cannot write $cache/$name-newest"
say "$(cat "$folder/origin")"
echo "$folder/job-server.jar"
