#include "teratron/serve/routes.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "teratron/base/log.h"
#include "teratron/base/sha256.h"
#include "teratron/base/strings.h"
#include "teratron/generate/json/request_json.h"
#include "teratron/serve/api/embeddings.h"
#include "teratron/serve/api/openai_answer.h"
#include "teratron/serve/api/tokenize_request.h"
#include "teratron/serve/event_stream.h"

namespace teratron {

extern const char* const kServePage;  // page/page.html with what it shares, embedded by CMake

namespace {

using Clock = std::chrono::steady_clock;
using Handled = httplib::Server::HandlerResponse;

constexpr auto poll_interval = std::chrono::milliseconds(200);
constexpr const char* json_type = "application/json";
// The client has left: nobody reads this status but the metrics.
constexpr int client_closed = 499;
constexpr const char* not_http = "not a valid HTTP request";

void write_error(httplib::Response& response, const ApiError& error) {
  response.status = error.status();
  response.set_content(dump_line(error.to_json()) + "\n", json_type);
  if (error.details().retry_after > 0)
    response.set_header("Retry-After", std::to_string(error.details().retry_after));
}

ApiError overload_error(const Overload& overload) {
  const ApiErrorDetails details{.code = overload.stopping ? "stopping" : "queue_full",
                                .retry_after = overload.retry_after};
  return overload.stopping ? ApiError(503, "The server is stopping and accepts nothing more.", details)
                           : ApiError(429, "The queue of requests is full. Please retry later.", details);
}

// Runs a handler; what it throws becomes an error in OpenAI's form.
template <typename Work>
void answer_errors(httplib::Response& response, const Work& work) {
  try {
    work();
  } catch (const ApiError& error) {
    write_error(response, error);
  } catch (const UserError& error) {
    write_error(response, api_error(error));
  } catch (const Overload& overload) {
    write_error(response, overload_error(overload));
  }
}

// Errors that httplib found itself have no content yet.
std::string explain_status(const httplib::Request& request, int status, size_t max_body_bytes) {
  switch (status) {
    case 404:
      return fmt::format(
          "there is no {} {}. See / for the page, and /v1/completions, /v1/chat/completions, "
          "/v1/embeddings, /v1/models, /tokenize, /detokenize, /api, /health, /metrics",
          printable(request.method, 20), printable(request.path, 100));
    case 413:
      return fmt::format("the body is longer than {} bytes (--max-body-bytes)", max_body_bytes);
    case 416:
      return "ranges are not supported";
    default:
      return not_http;
  }
}

// Other paths could be as many as there are clients.
std::string known_path(const std::string& path) {
  constexpr const char* known[] = {"/",
                                   "/api",
                                   "/completions",
                                   "/v1/completions",
                                   "/chat/completions",
                                   "/v1/chat/completions",
                                   "/v1/models",
                                   "/health",
                                   "/v1/health",
                                   "/metrics",
                                   "/tokenize",
                                   "/detokenize",
                                   "/embeddings",
                                   "/v1/embeddings"};
  return std::find(std::begin(known), std::end(known), path) == std::end(known) ? "other" : path;
}

bool has_body(const httplib::Request& request) {
  return request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
}

// "Application/JSON; charset=utf-8" as "application/json".
std::string media_type(const httplib::Request& request) {
  const std::string type = request.get_header_value("Content-Type");
  return to_lower(type.substr(0, type.find_first_of("; \t")));
}

// The KEY of "Authorization: Bearer KEY".
std::string bearer_key(const httplib::Request& request) {
  const std::string given = request.get_header_value("Authorization");
  const size_t key = given.find_first_not_of(' ', given.find(' '));
  const bool is_bearer = to_lower(given.substr(0, given.find(' '))) == "bearer";
  return is_bearer && key != given.npos ? given.substr(key) : "";
}

}  // namespace

Routes::Routes(HttpServer& server, Service& service, Metrics& metrics, RoutesOptions options)
    : server_(server),
      service_(service),
      metrics_(metrics),
      options_(std::move(options)),
      browsers_(options_.browsers),
      started_(static_cast<int64_t>(std::time(nullptr))) {
  install_checks();
  install_information();
  install_generation();
}

std::optional<ApiError> Routes::refusal_of(const Request& request) const {
  const std::string encoding = request.get_header_value("Content-Encoding");
  if (!encoding.empty() && encoding != "identity")
    return ApiError(415, "compressed bodies are not accepted: leave out Content-Encoding");
  // Versions of cpp-httplib name their own conversion differently.
  const std::string length = request.get_header_value("Content-Length");
  if (has_body(request) && std::strtoull(length.c_str(), nullptr, 10) > options_.max_body_bytes)
    return ApiError(413, explain_status(request, 413, options_.max_body_bytes), {.code = "body_too_large"});
  // Browsers let pages of other sites send some other types without asking first.
  if (has_body(request) && media_type(request) != json_type)
    return ApiError(415, "the body must be JSON: send it with Content-Type: application/json");
  if (const std::optional<std::string> problem = browsers_.problem(request))
    return ApiError(403, *problem, {.code = "not_allowed"});
  const bool open = std::find(health_paths.begin(), health_paths.end(), request.path) != health_paths.end() ||
                    request.path == "/" || request.path == "/index.html";
  if (options_.api_key.empty() || open) return std::nullopt;
  // Digests take the same time to compare wherever the keys differ.
  if (equal_digests(sha256(bearer_key(request)), sha256(options_.api_key))) return std::nullopt;
  return ApiError(401,
                  request.has_header("Authorization")
                      ? "the API key is wrong"
                      : "an API key is needed: send Authorization: Bearer KEY",
                  {.code = "invalid_api_key"});
}

// Before the body is read: a request that is refused here ends its connection.
Handled Routes::check(const Request& request, Response& response) {
  browsers_.share(request, response);
  if (browsers_.answer_preflight(request, response)) return Handled::Handled;
  const std::optional<ApiError> refusal = refusal_of(request);
  if (!refusal) return Handled::Unhandled;
  write_error(response, *refusal);
  response.set_header("Connection", "close");
  if (has_body(request)) server_.close_after(request);
  return Handled::Handled;
}

void Routes::write_refusal(const Refusal& refusal, const Request& request, Response& response) const {
  const std::string why = refusal.why.empty()
                              ? explain_status(request, refusal.status, options_.max_body_bytes)
                              : fmt::format("{}: {}", not_http, refusal.why);
  write_error(response, ApiError(refusal.status, why));
}

void Routes::install_checks() {
  server_.set_pre_routing_handler(
      [this](const Request& request, Response& response) { return check(request, response); });
  server_.set_expect_100_continue_handler([this](const Request& request, Response& response) {
    return check(request, response) == Handled::Handled ? response.status : 100;
  });
  server_.set_error_handler(
      httplib::Server::HandlerWithResponse([this](const Request& request, Response& response) {
        const std::optional<Refusal> refusal = server_.refusal_of(request);
        if (refusal) write_refusal(*refusal, request, response);
        if (response.body.empty())
          write_error(response, ApiError(response.status,
                                         explain_status(request, response.status, options_.max_body_bytes)));
        const bool understood = !request.remote_addr.empty();
        if (!understood || refusal) response.set_header("Connection", "close");
        return Handled::Handled;
      }));
  server_.set_refusal_handler([this](const Refusal& refusal, Response& response) {
    write_refusal(refusal, {}, response);
    metrics_.add_response("other", response.status);
  });
  server_.set_default_headers({{"X-Content-Type-Options", "nosniff"}});
  server_.set_exception_handler([](const Request&, Response& response, std::exception_ptr thrown) {
    std::string what = "unknown";
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    warn("a request failed: {}", printable(what));
    write_error(response, ApiError(500, "the server failed to answer"));
  });
  server_.set_logger([this](const Request& request, const Response& response) {
    metrics_.add_response(known_path(request.path), response.status);
  });
}

// `adapter`: as GenerationRequest's.
nlohmann::ordered_json Routes::model_json(int64_t adapter) const {
  const ServedModel& model = options_.model;
  nlohmann::ordered_json json = {
      {"id", adapter == 0 ? model.name : model.adapters[static_cast<size_t>(adapter) - 1]},
      {"object", "model"},
      {"created", started_},
      {"owned_by", "teratron"},
      {"max_model_len", model.limits.max_positions},
      {"sampling",
       {{"temperature", model.sampling.temperature},
        {"top_p", model.sampling.top_p == 0.0 ? 1.0 : model.sampling.top_p},
        {"top_k", model.sampling.top_k}}},
      {"chat_template", options_.chat ? nlohmann::ordered_json(options_.chat->name()) : nullptr}};
  if (adapter > 0) json["parent"] = model.name;
  return json;
}

void Routes::install_information() {
  const auto page = [](const Request&, Response& response) {
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                        "connect-src 'self'; img-src data:; frame-ancestors 'none'");
    response.set_content(kServePage, "text/html; charset=utf-8");
  };
  server_.Get("/", page);
  server_.Get("/index.html", page);
  const auto health = [this](const Request&, Response& response) {
    const bool ready = !service_.is_draining();
    response.status = ready ? 200 : 503;
    response.set_content(dump_line({{"status", ready ? "ok" : "stopping"}, {"ready", ready}}) + "\n",
                         json_type);
  };
  server_.Get("/health", health);
  server_.Get("/v1/health", health);
  server_.Get("/metrics", [this](const Request&, Response& response) {
    response.set_content(metrics_.prometheus(), "text/plain; version=0.0.4");
  });
  server_.Get("/v1/models", [this](const Request&, Response& response) {
    nlohmann::ordered_json list = {{"object", "list"}, {"data", nlohmann::ordered_json::array()}};
    for (size_t i = 0; i <= options_.model.adapters.size(); ++i)
      list["data"].push_back(model_json(static_cast<int64_t>(i)));
    response.set_content(dump_line(list) + "\n", json_type);
  });
  server_.Get("/v1/models/(.+)", [this](const Request& request, Response& response) {
    answer_errors(response, [&] {
      const int64_t adapter = adapter_named(request.matches[1], options_.model);
      response.set_content(dump_line(model_json(adapter)) + "\n", json_type);
    });
  });
}

void Routes::install_generation() {
  server_.Put("/api", [this](const Request& request, Response& response) { megatron(request, response); });
  for (const char* prefix : {"/v1", ""}) {
    server_.Post(std::string(prefix) + "/completions",
                 [this](const Request& request, Response& response) { openai(request, response, false); });
    server_.Post(std::string(prefix) + "/chat/completions",
                 [this](const Request& request, Response& response) { openai(request, response, true); });
    server_.Post(std::string(prefix) + "/embeddings",
                 [this](const Request& request, Response& response) { embeddings(request, response); });
  }
  const auto answer_json = [this](auto answer_of) {
    return [this, answer_of](const Request& request, Response& response) {
      answer_errors(response, [&] {
        const Semaphore::Permit permit(readers_);
        response.set_content(dump_line(answer_of(RequestBody(request.body))) + "\n", json_type);
      });
    };
  };
  server_.Post("/tokenize", answer_json([this](const RequestBody& body) {
                 return tokenize_answer(body, options_.model, options_.chat ? &*options_.chat : nullptr);
               }));
  server_.Post("/detokenize", answer_json([this](const RequestBody& body) {
                 return detokenize_answer(body, options_.model);
               }));
}

std::vector<GenerationResult> Routes::results_of(const Request& request, const Answer& answer) {
  const Clock::time_point end = Clock::now() + options_.answer_timeout;
  while (true) {
    const PendingAnswer::News news = answer->wait(poll_interval);
    if (!news.failure.empty())
      throw ApiError(503, "the engine failed: " + news.failure, {.code = "engine_failed"});
    if (news.finished) return answer->results();
    const bool late = Clock::now() > end;
    if (!late && server_.is_open(request)) continue;
    service_.cancel(answer);
    if (!late) throw ApiError(client_closed, "the client has left");
    throw ApiError(504,
                   fmt::format("the answer took more than {} seconds (--answer-timeout)",
                               options_.answer_timeout.count()),
                   {.code = "timeout"});
  }
}

namespace {

void log_megatron(const httplib::Request& request) {
  print("request IP: {}", request.remote_addr);
  print_line(printable(request.body, 2000));
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  print("start time:  {:04}-{:02}-{:02} {:02}:{:02}:{:02}", local.tm_year + 1900, local.tm_mon + 1,
        local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec);
}

}  // namespace

MegatronRequest Routes::read_megatron(const Request& request) {
  const Semaphore::Permit permit(readers_);
  return parse_megatron(parse_body(request.body), options_.model);
}

OpenAiRequest Routes::read_openai(const Request& request, bool is_chat) {
  const Semaphore::Permit permit(readers_);
  const RequestBody body(request.body);
  return is_chat ? parse_chat(body, options_.model, *options_.chat) : parse_completion(body, options_.model);
}

void Routes::megatron(const Request& request, Response& response) {
  const auto fail = [&](int status, const std::string& text) {
    response.status = status == 200 && !options_.model.lenient_errors ? 400 : status;
    response.set_content(dump_line(text) + "\n", json_type);
  };
  answer_errors(response, [&] {
    try {
      const MegatronRequest parsed = read_megatron(request);
      if (parsed.logs) log_megatron(request);  // not among the readers: standard output may block
      const Answer answer = service_.submit(parsed.prompts, false);
      const std::vector<GenerationResult> results = results_of(request, answer);
      response.set_content(dump_line(megatron_answer(parsed, results, options_.model)) + "\n", json_type);
    } catch (const MegatronError& error) {
      fail(error.status, error.text);
    } catch (const UserError& error) {
      fail(200, api_error(error).what());
    }
  });
}

void Routes::openai(const Request& request, Response& response, bool is_chat) {
  answer_errors(response, [&] {
    if (is_chat && !options_.chat) throw ApiError(400, options_.no_chat, {.code = "no_chat_template"});
    const auto parsed = std::make_shared<const OpenAiRequest>(read_openai(request, is_chat));
    if (parsed->stream) return stream(response, parsed);
    const std::vector<GenerationResult> results =
        results_of(request, service_.submit(parsed->prompts, false));
    response.set_content(dump_line(OpenAiAnswer(*parsed, options_.model).whole(results)) + "\n", json_type);
  });
}

void Routes::embeddings(const Request& request, Response& response) {
  answer_errors(response, [&] {
    EmbeddingsRequest parsed;
    {
      const Semaphore::Permit permit(readers_);
      parsed = parse_embeddings(RequestBody(request.body), options_.model);
    }
    const std::vector<GenerationResult> results = results_of(request, service_.submit(parsed.inputs, false));
    response.set_content(dump_line(embeddings_answer(parsed, results)) + "\n", json_type);
  });
}

void Routes::stream(Response& response, std::shared_ptr<const OpenAiRequest> parsed) {
  const Answer answer = service_.submit(parsed->prompts, true);
  const auto events = std::make_shared<EventStream>(std::move(parsed), options_.model, answer,
                                                    Clock::now() + options_.answer_timeout);
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  response.set_chunked_content_provider(
      "text/event-stream",
      [events](size_t, httplib::DataSink& sink) {
        const std::string next = events->next();
        if (!next.empty() && !sink.write(next.data(), next.size())) return false;
        if (events->finished()) sink.done();
        return true;
      },
      [this, answer](bool) { service_.cancel(answer); });  // nothing, once it is finished
}

}  // namespace teratron
