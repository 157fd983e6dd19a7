#include "teratron/cli/generate/generate_job.h"

#include <filesystem>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/json.h"
#include "teratron/base/log.h"
#include "teratron/generate/texts.h"
#include "teratron/models/precision.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"
#include "teratron/tokenizer/end_tokens.h"
#include "teratron/train/engine/engine_options.h"

namespace teratron {

namespace {

// What ends an answer: the tokens that the model's files and the tokenizer name, or --stop-token alone.
std::vector<int32_t> ends_of(const Arguments& args, const ConfiguredTokens& configured,
                             const Tokenizer* tokenizer, int32_t usual_end) {
  if (args.stop_token) return {static_cast<int32_t>(*args.stop_token)};
  std::vector<int32_t> ends = configured.ends;
  if (tokenizer) {
    for (const int32_t id : end_tokens(tokenizer_options(args), *tokenizer)) add_end(id, ends);
  }
  if (usual_end >= 0) add_end(usual_end, ends);
  return ends;
}

}  // namespace

RequestReader request_reader(const LoadedModel& loaded, const Tokenizer* tokenizer) {
  const Arguments& args = loaded.args;
  const bool has_source = loaded.model.source.has_value();
  RequestReader reader{.tokenizer = tokenizer, .add_bos = args.add_bos};
  if (tokenizer) reader.document_end = tokenizer->special().eod.value_or(-1);
  const ConfiguredTokens configured = saved_configured_tokens(loaded.checkpoint.config);
  const int32_t usual_end = has_source ? use_encoder_rules(reader, configured) : reader.document_end;
  if (has_source && args.add_bos) {
    throw config_error({.what = "the prompt is an encoder's source, which begins with no added token",
                        .where = "--add-bos",
                        .fix = "Leave it out"});
  }
  GenerationRequest& request = reader.defaults;
  request.sampling = {.temperature = args.temperature,
                      .top_k = args.greedy ? 1 : args.top_k,
                      .top_p = args.top_p,
                      .top_p_decay = args.top_p_decay,
                      .top_p_bound = args.top_p_bound,
                      .seed = static_cast<uint64_t>(args.seed)};
  check_sampling(request.sampling);
  request.stop.tokens = ends_of(args, configured, tokenizer, usual_end);
  request.stop.texts = args.stop;
  request.stop.on_eol = args.stop_on_eol;
  request.stop.on_double_eol = args.stop_on_double_eol;
  request.prevent_newline_after_colon = args.prevent_newline_after_colon;
  request.beams = {.width = args.num_beams > 1 ? args.num_beams : 0, .length_penalty = args.length_penalty};
  request.choices = args.num_return_sequences;
  request.logprobs = args.logprobs;
  if (args.max_new_tokens) {
    request.max_new_tokens = *args.max_new_tokens;
  } else {
    reader.total_length = args.out_seq_length;
  }
  return reader;
}

SamplingOptions recommended_sampling(const Arguments& args) {
  SamplingOptions sampling;
  const std::filesystem::path file =
      args.hf ? std::filesystem::path(*args.hf) / "generation_config.json" : std::filesystem::path();
  if (file.empty() || !std::filesystem::exists(file)) return sampling;
  const nlohmann::json config = read_json(file, {.kind = ExitCode::checkpoint});
  std::vector<std::string> taken;
  const auto take = [&](const char* name, auto& target) {
    if (!config.is_object() || !config.value(name, nlohmann::json()).is_number()) return;
    config.at(name).get_to(target);
    taken.push_back(fmt::format("{} = {}", name, target));
  };
  take("temperature", sampling.temperature);
  take("top_p", sampling.top_p);
  take("top_k", sampling.top_k);
  take("min_p", sampling.min_p);
  take("repetition_penalty", sampling.repetition_penalty);
  sampling.joins_filters = true;
  for (const Problem& problem : sampling_problems(sampling))
    warn("generation_config.json is left out: {}", problem.what);
  if (!sampling_problems(sampling).empty()) return {};
  if (!taken.empty())
    notice("defaults of requests from generation_config.json: {}", fmt::format("{}", fmt::join(taken, ", ")));
  return sampling;
}

GenerateJob load_generate_job(const ParsedArguments& parsed, const Mesh& mesh, bool needs_tokenizer,
                              std::span<const Family> families, std::span<const NamedAdapter> adapters) {
  GenerateJob job{.mesh = mesh,
                  .loaded = load_for_inference(parsed,
                                               {.dtype = model_dtype(parsed.args),
                                                .device = choose_device(parsed.args),
                                                .generates = true,
                                                .families = families,
                                                .adapters = adapters},
                                               mesh),
                  .tokenizer = nullptr,
                  .reader = {}};
  std::string problem;
  try {
    job.tokenizer = build_tokenizer(tokenizer_options(job.args()));
  } catch (const UserError& error) {
    if (needs_tokenizer) throw;
    problem = error.what();
  }
  job.reader = request_reader(job.loaded, job.tokenizer.get());
  job.reader.no_tokenizer = problem;
  return job;
}

EngineSettings engine_settings(const GenerateJob& job) {
  const Arguments& args = job.args();
  const LanguageModel& model = job.loaded.model;
  EngineSettings settings{.tokenizer = job.tokenizer.get(),
                          .max_rows = args.inference_max_requests.value_or(0),
                          .graphs = !experts_wait_for_device(args, model.device, model.dtype)};
  for (const LoadedAdapter& each : job.loaded.adapters) settings.adapters.push_back(&each.model);
  if (job.tokenizer) settings.newlines = newline_tokens(*job.tokenizer);
  if (const auto gigabytes = args.inference_dynamic_batching_buffer_size_gb)
    settings.cache_bytes = static_cast<int64_t>(*gigabytes * 1024 * 1024 * 1024);
  return settings;
}

void with_engine(const GenerateJob& job, const EngineSettings& settings,
                 const std::function<void(RankedEngine&)>& body) {
  Engine local(job.loaded.model, settings, job.ranks());
  RankedEngine engine(local, job.ranks());
  if (job.mesh.rank() != 0) return engine.follow();
  body(engine);
  engine.stop();
}

}  // namespace teratron
