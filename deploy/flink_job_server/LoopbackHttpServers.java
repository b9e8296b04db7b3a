package privstream;

import com.sun.net.httpserver.HttpServer;
import com.sun.net.httpserver.HttpsServer;
import com.sun.net.httpserver.spi.HttpServerProvider;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;

/**
 * Makes Java's own HTTP servers listen on loopback alone: Flink's Prometheus reporter, which is given a port and no address, would
 * show the metrics, which have no noise, to every machine in reach. Chosen by -Dcom.sun.net.httpserver.HttpServerProvider.
 */
public final class LoopbackHttpServers extends HttpServerProvider {
  private final HttpServerProvider theirs;

  public LoopbackHttpServers() throws ReflectiveOperationException {
    Class<?> found = Class.forName("sun.net.httpserver.DefaultHttpServerProvider"); // needs --add-exports
    theirs = (HttpServerProvider) found.getDeclaredConstructor().newInstance();
  }

  @Override
  public HttpServer createHttpServer(InetSocketAddress address, int backlog) throws IOException {
    return theirs.createHttpServer(loopback(address), backlog);
  }

  @Override
  public HttpsServer createHttpsServer(InetSocketAddress address, int backlog) throws IOException {
    return theirs.createHttpsServer(loopback(address), backlog);
  }

  private static InetSocketAddress loopback(InetSocketAddress address) {
    return new InetSocketAddress(InetAddress.getLoopbackAddress(), address.getPort());
  }
}
