#!/bin/sh
# Shows heavy hitters on a Flink cluster of this machine: simulates events, starts the cluster, runs the pipeline, prints its
# rows, and ends what it has started. Needs Java; the cluster and Beam's job server are fetched on first use.
# Usage: deploy/flink_demo.sh        (PYTHON names the Python that has the package; python3 by default)
set -eu

deploy=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
scratch=$(mktemp -d)
cluster() { command=$1; shift; "$python" "$deploy/flink_cluster.py" "$command" --run "$scratch/cluster" "$@"; }
privstream() { "$python" -c 'import sys; from privstream.pipelines.cli import main; sys.exit(main())' "$@"; }
end() { cluster stop >/dev/null 2>&1 || true; rm -rf "$scratch"; }
trap end EXIT
trap 'exit 130' INT TERM

jar=$(PYTHON=$python "$deploy/get_flink_job_server.sh")
privstream simulate heavy-hitters --users 20000 --windows 6 --seed 5 --output "$scratch/events.parquet"
(umask 077 && head -c 32 /dev/urandom >"$scratch/noise.key")
echo "Starting ZooKeeper, a job manager, two task managers and a pool of Python workers (half a minute)"
cluster start
echo "Watching the events on it, mostly waiting for workers to start (half a minute or two)"
# shellcheck disable=SC2046 # the options are words
privstream heavy-hitters --input "$scratch/events.parquet" --window 3600 --epsilon 2 --delta 1e-6 --max_hits 4 --horizon 24 \
    --noise_key_file "$scratch/noise.key" --output - $(cluster options) --flink_job_server_jar="$jar"
cluster status
end
echo "Done: the cluster is stopped and its files are removed. How to run one of your own: docs/operations.md"
