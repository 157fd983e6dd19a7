#include "teratron/serve/run_server.h"

#include <thread>

namespace teratron {

void run_server(RankedEngine& engine, HttpServer& server, Metrics& metrics, const ServerOptions& options,
                const std::function<bool()>& should_stop) {
  Service service(engine, options.service, metrics);
  const Routes routes(server, service, metrics, options.routes);
  std::thread http([&] {
    server.serve();
    service.drain();
  });
  const auto end = [&] {
    const bool served = server.finish();
    http.join();
    return served;
  };
  try {
    service.run(should_stop);
  } catch (...) {
    end();
    throw;
  }
  if (!end()) throw Fault("the server can accept no more connections. Restart it");
}

}  // namespace teratron
