package org.apache.beam.sdk.fn.server;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.beam.model.pipeline.v1.Endpoints.ApiServiceDescriptor;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.BindableService;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.Server;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.ServerInterceptors;
import org.apache.beam.vendor.grpc.v1p69p0.io.grpc.netty.NettyServerBuilder;

/**
 * Stands in front of Beam's class of this name, whose servers listen on every interface whatever address they are given: anyone in
 * reach could submit jobs and read the data of those that run. These listen on loopback alone.
 */
public abstract class ServerFactory {
  /** Writes the address of a server for its clients. */
  public interface UrlFactory {
    String createUrl(String host, int port);

    static UrlFactory createDefault() {
      return (host, port) -> host + ":" + port;
    }
  }

  public abstract Server allocateAddressAndCreate(List<BindableService> services, ApiServiceDescriptor.Builder address)
      throws IOException;

  public abstract Server create(List<BindableService> services, ApiServiceDescriptor address) throws IOException;

  public static ServerFactory createDefault() {
    return createWithUrlFactory(UrlFactory.createDefault());
  }

  public static ServerFactory createWithUrlFactory(UrlFactory urls) {
    return createWithUrlFactoryAndPortSupplier(urls, () -> 0);
  }

  public static ServerFactory createWithPortSupplier(Supplier<Integer> ports) {
    return createWithUrlFactoryAndPortSupplier(UrlFactory.createDefault(), ports);
  }

  public static ServerFactory createWithUrlFactoryAndPortSupplier(UrlFactory urls, Supplier<Integer> ports) {
    return new ServerFactory() {
      @Override
      public Server allocateAddressAndCreate(List<BindableService> services, ApiServiceDescriptor.Builder address)
          throws IOException {
        Server server = listen(services, ports.get());
        address.setUrl(urls.createUrl("localhost", server.getPort()));
        return server;
      }

      @Override
      public Server create(List<BindableService> services, ApiServiceDescriptor address) throws IOException {
        String url = address.getUrl();
        return listen(services, Integer.parseInt(url.substring(url.lastIndexOf(':') + 1)));
      }
    };
  }

  private static Server listen(List<BindableService> services, int port) throws IOException {
    NettyServerBuilder builder =
        NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), port))
            .maxInboundMessageSize(Integer.MAX_VALUE)
            .permitKeepAliveTime(20, TimeUnit.SECONDS);
    for (BindableService service : services) {
      builder.addService(ServerInterceptors.intercept(service, GrpcContextHeaderAccessorProvider.interceptor()));
    }
    return builder.build().start();
  }
}
