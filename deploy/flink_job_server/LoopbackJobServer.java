package privstream;

import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.beam.runners.flink.FlinkJobServerDriver;

/**
 * Starts Beam's job server with the Flink settings beside its jar, unless FLINK_CONF_DIR or --flink-conf-dir names others.
 * It ends with the process whose id PRIVSTREAM_JOB_SERVER_OWNER is, if that is set: one that is killed can end nothing.
 */
public final class LoopbackJobServer {
  public static void main(String[] arguments) throws Exception {
    String owner = System.getenv("PRIVSTREAM_JOB_SERVER_OWNER");
    if (owner != null) {
      ProcessHandle.of(Long.parseLong(owner))
          .map(ProcessHandle::onExit)
          .orElseGet(() -> CompletableFuture.completedFuture(null))
          .thenRunAsync(() -> Runtime.getRuntime().exit(1));
    }
    List<String> all = new ArrayList<>(Arrays.asList(arguments));
    if (System.getenv("FLINK_CONF_DIR") == null) {
      Path jar = Paths.get(LoopbackJobServer.class.getProtectionDomain().getCodeSource().getLocation().toURI());
      all.addAll(0, List.of("--flink-conf-dir", jar.resolveSibling("conf").toString())); // the last one given counts
    }
    FlinkJobServerDriver.main(all.toArray(new String[0]));
  }
}
