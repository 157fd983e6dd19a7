#include "teratron/tasks/live_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "teratron/generate/engine.h"
#include "teratron/generate/texts.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/end_tokens.h"

namespace teratron {

namespace {

constexpr int64_t max_texts_at_once = 16;

// Replicas that share experts generate in step.
InferenceRanks ranks_of(const Trainer& trainer) {
  const Mesh& mesh = trainer.mesh();
  const Group& stages = mesh.group(Axis::pp);
  const bool shared = mesh.group(Axis::tp).size % mesh.group({Axis::etp, Axis::ep}).size != 0;
  return {.tensor_parallel = mesh.group(Axis::tp),
          .pipeline = {.chunks = trainer.engine().options().parallel.pipeline.chunks_of_stage(stages.rank),
                       .group = stages,
                       .links = mesh.pipeline_links()},
          .mesh = mesh,
          .copies = shared ? mesh.replicas() : Group()};
}

// What the longest and the widest of the requests need.
EngineSettings settings_for(const std::vector<GenerationRequest>& requests, const Tokenizer& tokenizer) {
  EngineSettings settings{
      .tokenizer = &tokenizer, .newlines = newline_tokens(tokenizer), .longest = 1, .longest_source = 1};
  int64_t rows = 0, widest = 1;
  for (const GenerationRequest& request : requests) {
    const auto length = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
    settings.longest = std::max(settings.longest, length);
    settings.longest_source = std::max(settings.longest_source, static_cast<int64_t>(request.source.size()));
    rows += std::max(request.choices, request.beams.width);
    widest = std::max({widest, request.choices, request.beams.width});
  }
  settings.max_rows = std::max(widest, std::min(rows, max_texts_at_once));
  return settings;
}

}  // namespace

LiveModel::LiveModel(Trainer& trainer)
    : trainer_(trainer),
      ranks_(*trainer.mesh().world().communicator),
      parameters_({.dtype = trainer.engine().options().precision.dtype,
                   .device = trainer.device(),
                   .seed = 0,
                   .aliases = true}),
      model_(language_model(trainer.model(), parameters_, ranks_of(trainer))) {
  parameters_.alias(trainer.engine().parameters());
}

RequestReader LiveModel::reader() const {
  const Tokenizer& tokenizer = trainer_.tokenizer();
  RequestReader reader{.tokenizer = &tokenizer, .document_end = tokenizer.special().eod.value_or(-1)};
  reader.defaults.sampling.seed = static_cast<uint64_t>(trainer_.args().seed);
  reader.defaults.stop.tokens = end_tokens(tokenizer_options(trainer_.args()), tokenizer);
  if (!trainer_.model().source) return reader;
  const int32_t end = use_encoder_rules(reader, /*configured=*/{});  // as training samples begin
  if (end >= 0) add_end(end, reader.defaults.stop.tokens);
  return reader;
}

RequestLimits LiveModel::limits() const {
  return {.vocabulary = trainer_.model().vocabulary,
          .max_positions = trainer_.model().max_positions,
          .max_rows = most_request_rows,
          .max_tokens = std::numeric_limits<int64_t>::max(),
          .has_tokenizer = true,
          .has_source = trainer_.model().source.has_value()};
}

std::vector<GenerationResult> LiveModel::answers(const std::vector<GenerationRequest>& requests) {
  trainer_.engine().buffers().finish_param_gather();
  Engine engine(model_, settings_for(requests, trainer_.tokenizer()), ranks_);
  for (const GenerationRequest& request : requests) engine.submit(request);
  while (engine.step()) {
  }
  std::vector<GenerationResult> results = engine.take_results();
  std::sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return results;
}

}  // namespace teratron
