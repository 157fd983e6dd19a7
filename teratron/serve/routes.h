// The endpoints: what an HTTP request asks of the service, and how its answer is written.
//
//   PUT  /api                    Megatron-LM's (api/megatron_request.h)
//   POST /v1/completions         OpenAI's (api/openai_request.h), also /completions
//   POST /v1/chat/completions    the same, also /chat/completions
//   POST /v1/embeddings          the same (api/embeddings.h)
//   GET  /v1/models              the model, and its names with adapters
//   GET  /health                 200; 503 while the server drains
//   GET  /metrics                Prometheus (metrics.h)
//   GET  /                       the page (page/)
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "teratron/serve/api/api_error.h"
#include "teratron/serve/api/megatron_request.h"
#include "teratron/serve/api/openai_request.h"
#include "teratron/serve/api/served_model.h"
#include "teratron/serve/browser_policy.h"
#include "teratron/serve/http_server.h"
#include "teratron/serve/metrics.h"
#include "teratron/serve/semaphore.h"
#include "teratron/serve/service.h"

namespace teratron {

struct RoutesOptions {
  ServedModel model;
  std::optional<ChatTemplate> chat = {};
  std::string no_chat = {};  // why there is none
  std::string api_key = {};  // empty: none is needed
  std::chrono::seconds answer_timeout{600};
  size_t max_body_bytes = size_t{16} << 20U;
  BrowserPolicyOptions browsers = {};
};

/// Paths that tell whether the server runs (HttpOptions::probes).
inline const std::vector<std::string> health_paths = {"/health", "/v1/health"};

class Routes {
 public:
  /// Installs its handlers. All must outlive the server's threads.
  Routes(HttpServer& server, Service& service, Metrics& metrics, RoutesOptions options);

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;
  using Answer = std::shared_ptr<PendingAnswer>;

  void install_checks();
  void install_information();
  void install_generation();
  httplib::Server::HandlerResponse check(const Request& request, Response& response);
  /// Why the request is refused before its body is read.
  std::optional<ApiError> refusal_of(const Request& request) const;
  void write_refusal(const Refusal& refusal, const Request& request, Response& response) const;
  MegatronRequest read_megatron(const Request& request);
  void megatron(const Request& request, Response& response);
  OpenAiRequest read_openai(const Request& request, bool is_chat);
  void openai(const Request& request, Response& response, bool is_chat);
  void embeddings(const Request& request, Response& response);
  void stream(Response& response, std::shared_ptr<const OpenAiRequest> parsed);
  /// Throws ApiError, also when the client has left.
  std::vector<GenerationResult> results_of(const Request& request, const Answer& answer);
  nlohmann::ordered_json model_json(int64_t adapter) const;

  HttpServer& server_;
  Service& service_;
  Metrics& metrics_;
  RoutesOptions options_;
  BrowserPolicy browsers_;
  int64_t started_;
  // A text takes forty times its size while it is read and tokenized: few do so at a time.
  Semaphore readers_{4};
};

}  // namespace teratron
