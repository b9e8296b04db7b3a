"""A Kafka broker in KRaft mode on this machine, on loopback only, for tests and for trying things out.

    python deploy/kafka/broker.py start       # prints its address; fetches Kafka with Maven on first use (60 MB)
    python deploy/kafka/broker.py stop

Data, log and pid file lie in the run folder.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import processes
from maven_jars import JarsError, fetch_jars

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "kafka"
HOST = "127.0.0.1"
START_SECONDS = 60
CLUSTER_ID = "privstreamLocalBrokerA"  # 16 bytes in base64; a random one that begins with "-" is taken for an option
STORAGE_TOOL, BROKER = "kafka.tools.StorageTool", "kafka.Kafka"


class BrokerError(Exception):
    """Something the user can put right; the message says what to do."""


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def settings(run: Path, port: int, controller_port: int) -> dict[str, object]:
    """Return the settings of one process that is broker and controller; brokers stamp records with their own time."""
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(run / "data"),
        "log.message.timestamp.type": "LogAppendTime",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
    }


def start(run: Path, port: int | None) -> str:
    """Start the broker, wait until it listens, and return its address."""
    if any(processes.alive(file) for file in run.glob("*.pid")):
        raise BrokerError(f"a broker runs already in {run}; stop it first")
    classes = f"{fetch_jars(HERE / 'pom.xml', CACHE / 'lib', 'Kafka (60 MB)')}/*"
    run.mkdir(parents=True, exist_ok=True)
    known = run / "broker.json"
    address = json.loads(known.read_text()) if known.exists() else [port or free_port(), free_port()]
    known.write_text(json.dumps(address))
    config = run / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings(run, *address).items()))
    java = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classes]
    if not (run / "data").exists():
        formatted = subprocess.run(
            [*java, STORAGE_TOOL, "format", "-t", CLUSTER_ID, "-c", str(config)],
            capture_output=True,
            text=True,
            check=False,
        )
        if formatted.returncode:
            raise BrokerError(f"Kafka refused its configuration: {formatted.stderr.strip()[-500:]}")
    processes.start(run, "broker", [*java, BROKER, str(config)])
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, address[0])) == 0:
                return f"{HOST}:{address[0]}"
        if not processes.alive(run / "broker.pid"):
            raise BrokerError(f"the broker ended at once; see {run}/broker.out")
        time.sleep(0.2)
    stop(run)
    raise BrokerError(f"waited {START_SECONDS} s in vain for the broker; see {run}/broker.out")


def stop(run: Path) -> None:
    """End the broker that was started with this run folder."""
    for file in run.glob("*.pid"):
        print(f"{file.stem}: {'stopped' if processes.stop(file) else 'was not running'}")


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["start", "stop"])
    parser.add_argument("--run", type=Path, default=CACHE / "run", help="run folder (%(default)s)")
    parser.add_argument("--port", type=int, help="default: any that is free, the same at every start of one run folder")
    arguments = parser.parse_args()
    try:
        if arguments.command == "start":
            print(start(arguments.run.resolve(), arguments.port))
        else:
            stop(arguments.run.resolve())
    except (BrokerError, JarsError) as error:
        sys.exit(f"broker: {error}")


if __name__ == "__main__":
    main()
