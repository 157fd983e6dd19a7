#include <filesystem>
#include <mutex>

#include <malloc.h>

#include "teratron/base/background_log.h"
#include "teratron/base/config/help_view.h"
#include "teratron/base/environment.h"
#include "teratron/base/log.h"
#include "teratron/cli/commands.h"
#include "teratron/cli/generate/generate_job.h"
#include "teratron/cli/inference_program.h"
#include "teratron/cli/run_job.h"
#include "teratron/cli/serve/access_options.h"
#include "teratron/cli/serve/adapter_flags.h"
#include "teratron/comm/transport/descriptor_limit.h"
#include "teratron/hf/architecture.h"
#include "teratron/serve/run_server.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/guards/signals.h"

namespace teratron {

namespace {

HelpPage help(const Program& program) {
  return {
      .command = "teratron serve",
      .full =
          arguments_help({"teratron serve (--load DIR | --hf DIR) [--host 127.0.0.1] [--port 5000] [FLAGS]",
                          program.names}) +
          "\nModel and tokenizer come from the checkpoint or the Hugging Face folder. --lora NAME=DIR, "
          "once or more,\nserves the model with these adapters under another name beside it.\n",
      .main_flags = {"--load",
                     "--hf",
                     "--lora",
                     "--ckpt-step",
                     "--host",
                     "--port",
                     "--api-key-file",
                     "--allow-host",
                     "--cors-origin",
                     "--served-model-name",
                     "--chat-template",
                     "--max-queued-requests",
                     "--max-connections",
                     "--answer-timeout",
                     "--inference-max-requests",
                     "--inference-dynamic-batching-buffer-size-gb",
                     "--tensor-model-parallel-size",
                     "--pipeline-model-parallel-size",
                     "--bf16",
                     "--device",
                     "--config-file"},
      .example = "teratron serve --hf DIR --port 5000"};
}

struct Ports {
  int port = 0;
  std::optional<PortRange> range = {};
};

// A port that the user names must be in the range, which `teratron launch` may have given.
Ports ports_of(const ParsedArguments& parsed) {
  const Arguments& args = parsed.args;
  const auto given = args.port_range ? args.port_range : process_environment("TERATRON_PORT_RANGE");
  if (!given) return {.port = static_cast<int>(args.port)};
  const char* const name = args.port_range ? "--port-range" : "TERATRON_PORT_RANGE";
  const PortRange range = parse_port_range(*given, name);
  if (!parsed.sources.contains("port") || args.port == 0) return {.port = 0, .range = range};
  require_in_range(static_cast<int>(args.port), "--port", range);
  return {.port = static_cast<int>(args.port)};
}

HttpOptions http_options(const ParsedArguments& parsed, Metrics& metrics) {
  const Arguments& args = parsed.args;
  const Ports ports = ports_of(parsed);
  return {.host = args.host,
          .port = ports.port,
          .ports = ports.range,
          .max_connections = static_cast<size_t>(args.max_connections),
          .max_body_bytes = static_cast<size_t>(args.max_body_bytes),
          .probes = health_paths,
          .on_connections = [&metrics](int64_t change) { metrics.add_connections(change); }};
}

std::string model_name(const Arguments& args) {
  if (args.served_model_name) return *args.served_model_name;
  const std::filesystem::path folder =
      std::filesystem::absolute(args.load ? *args.load : args.hf.value()).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

void check_names(const std::vector<NamedAdapter>& adapters, const Arguments& args) {
  for (const NamedAdapter& each : adapters) {
    if ((!args.load && !args.hf) || each.name != model_name(args)) continue;
    throw config_error(
        {.what = fmt::format("an adapter is called {}, as the model", printable(each.name, 80)),
         .where = "--lora",
         .fix = "Use another name, or --served-model-name"});
  }
}

// The chat template, or why there is none.
void choose_chat(const Arguments& args, const Tokenizer& tokenizer, RoutesOptions& routes) {
  try {
    routes.chat = choose_chat_template(args.chat_template, args.tokenizer_model.value_or(""));
    if (routes.chat) routes.chat = routes.chat->with_marks(marks_of(tokenizer));
    routes.no_chat = "the model has no chat template: start the server with --chat-template NAME";
  } catch (const UserError& error) {
    routes.no_chat = error.problems().front().what + ". " + error.problems().front().fix;
    notice("no chats: {}", error.what());
  }
}

RoutesOptions routes_options(const GenerateJob& job, const Arguments& given, const AccessOptions& access,
                             const Engine& engine) {
  RoutesOptions routes{.model = {.tokenizer = *job.tokenizer,
                                 .name = model_name(given),
                                 .limits = engine.limits(),
                                 .document_end = job.reader.document_end,
                                 .end_tokens = job.reader.defaults.stop.tokens,
                                 .max_request_tokens = given.max_tokens_to_oom.value_or(0),
                                 .sampling = recommended_sampling(given),
                                 .lenient_errors = !given.api_strict},
                       .api_key = access.api_key,
                       .answer_timeout = std::chrono::seconds(given.answer_timeout),
                       .max_body_bytes = static_cast<size_t>(given.max_body_bytes),
                       .browsers = access.browsers};
  for (const LoadedAdapter& each : job.loaded.adapters) routes.model.adapters.push_back(each.name);
  Arguments args = job.args();
  args.chat_template = given.chat_template;
  choose_chat(args, *job.tokenizer, routes);
  return routes;
}

void announce(const Arguments& args, const AccessOptions& access, const std::string& name, int port) {
  if (!is_loopback(args.host) && access.api_key.empty())
    notice("all who reach {}:{} may use the server; TERATRON_API_KEY or --api-key-file asks for a key",
           args.host, port);
  print("serving {} at http://{}:{}", name,
        args.host.find(':') != std::string::npos ? "[" + args.host + "]" : args.host, port);
}

// The signals of the process, shared by its rank threads; installed once the model is loaded: before, a
// signal simply ends the process.
class DrainSignals {
 public:
  int received() {
    const std::lock_guard lock(mutex_);
    if (!signals_) signals_.emplace("finishing the answers in progress; once more ends immediately\n");
    return signals_->received();
  }

 private:
  std::mutex mutex_;
  std::optional<StopSignals> signals_;
};

struct ServeJob {
  const ParsedArguments& parsed;
  const Registry& registry;
  const std::vector<NamedAdapter>& adapters;
};

void serve_rank(const ServeJob& serve, const Mesh& mesh, DrainSignals& signals) {
  const ParsedArguments& parsed = serve.parsed;
  const Arguments& args = parsed.args;
  Metrics metrics;
  std::optional<HttpServer> server;
  AccessOptions access;
  int port = 0;
  if (mesh.rank() == 0) {  // before the model is loaded, since a port in use is soon found
    access = access_options(args);
    server.emplace(http_options(parsed, metrics));
    port = server->bind();
  }
  const GenerateJob job = load_generate_job(parsed, mesh, true, serve.registry.families, serve.adapters);
  if (job.reader.has_source) {
    throw config_error({.what = "the server's prompts are those of a decoder, but the model has an encoder",
                        .where = "--load",
                        .fix = "Use a GPT, or `teratron generate` for this model"});
  }
  signals.received();
  with_engine(job, engine_settings(job), [&](RankedEngine& engine) {
    const ServerOptions options{.routes = routes_options(job, args, access, engine.local()),
                                .service = {.max_waiting = args.max_queued_requests}};
    announce(args, access, options.routes.model.name, port);
    run_server(engine, *server, metrics, options, [&] { return signals.received() != 0; });
  });
}

// glibc keeps what a thread freed for the threads of its arena, and has eight arenas for each core.
void bound_freed_memory() {
  constexpr int arenas = 4;
  ::mallopt(M_ARENA_MAX, arenas);
}

}  // namespace

int serve_command(std::span<const std::string> args, const Registry& registry) {
  bound_freed_memory();
  const Program program = inference_program("serve");
  if (asks_for_help(args)) {
    print_line(help_view(help(program), args));
    return 0;
  }
  const AdapterFlags flags = take_adapter_flags(args);
  const ParsedArguments parsed =
      parse_arguments(program, flags.others, {.architecture = architecture_settings});
  log_in_background("GET /metrics counts the requests");
  raise_descriptor_limit();
  start_inference(parsed);
  DrainSignals signals;
  check_names(flags.adapters, parsed.args);
  const ServeJob serve{parsed, registry, flags.adapters};
  run_model_parallel(parsed, [&](const Mesh& mesh) { serve_rank(serve, mesh, signals); });
  return static_cast<int>(ExitCode::ok);
}

}  // namespace teratron
