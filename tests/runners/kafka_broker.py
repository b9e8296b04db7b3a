"""A Kafka broker in KRaft mode on loopback; Maven fetches Kafka (60 MB) on first use."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
JARS = HERE.parents[1] / ".cache" / "kafka" / "lib"
HOST = "127.0.0.1"
SECONDS = 60
CLUSTER_ID = "privstreamLocalBrokerA"  # 16 bytes in base64
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Broker:
    """A broker, with its data in a folder; it can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"{HOST}:{self.port}"
        if shutil.which("java") is None or shutil.which("mvn") is None:
            raise RuntimeError("install Java 11 or 17 and Maven")
        if not JARS.is_dir():
            where = [f"-DoutputDirectory={JARS}", "-DincludeScope=runtime"]
            subprocess.run(["mvn", "-B", "-q", "-f", str(HERE / "kafka_pom.xml"), COPY, *where], check=True)
        controller = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": folder / "data",
            "log.message.timestamp.type": "LogAppendTime",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
        }
        self._config = folder / "server.properties"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        self._java = ["java", "-Xmx256m", quiet, "-cp", f"{JARS}/*"]
        format = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._config)]
        subprocess.run(format, check=True, capture_output=True)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with (self.folder / "broker.out").open("ab") as output:
            command = [*self._java, "kafka.Kafka", str(self._config)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"no broker; see {self.folder}/broker.out")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(SECONDS)
