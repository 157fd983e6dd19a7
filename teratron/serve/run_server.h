// A server from its parts: HTTP threads, the service and the engine.
#pragma once

#include <functional>

#include "teratron/serve/routes.h"

namespace teratron {

struct ServerOptions {
  RoutesOptions routes;
  Service::Options service = {};
};

/// Answers the requests that reach `server`, which is bound, until `should_stop` and all is answered. On rank
/// 0; this is the engine's thread. A Fault of the engine ends the server, and is thrown.
void run_server(RankedEngine& engine, HttpServer& server, Metrics& metrics, const ServerOptions& options,
                const std::function<bool()>& should_stop);

}  // namespace teratron
