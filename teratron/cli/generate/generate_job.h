// What the modes of `teratron generate` share: prompts (generate_texts.h), JSON lines (generate_lines.h), a
// terminal (generate_terminal.h).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "teratron/generate/json/request_json.h"
#include "teratron/generate/loaded_model.h"
#include "teratron/generate/ranked_engine.h"

namespace teratron {

struct GenerateJob {
  const Mesh& mesh;
  LoadedModel loaded;
  std::unique_ptr<Tokenizer> tokenizer;  // null: prompts are ids
  RequestReader reader;                  // with the flags as defaults

  const Arguments& args() const { return loaded.args; }
  HostGroup& ranks() const { return *mesh.world().communicator; }
};

/// Loads the model. `needs_tokenizer`: UserError if there is none. `families`: a program's. `adapters`: to be
/// loaded beside it. Collective.
GenerateJob load_generate_job(const ParsedArguments& parsed, const Mesh& mesh, bool needs_tokenizer,
                              std::span<const Family> families = {},
                              std::span<const NamedAdapter> adapters = {});

/// What the requests have by default, by the flags in `loaded.args`. The tokenizer may be null.
RequestReader request_reader(const LoadedModel& loaded, const Tokenizer* tokenizer);

/// The sampling that generation_config.json in the folder of --hf recommends, with a notice; else the usual
/// one.
SamplingOptions recommended_sampling(const Arguments& args);

/// The engine that the flags ask for.
EngineSettings engine_settings(const GenerateJob& job);

/// Calls `body` on rank 0 with an engine over all ranks, the others follow. `settings` are the same on all.
void with_engine(const GenerateJob& job, const EngineSettings& settings,
                 const std::function<void(RankedEngine&)>& body);

}  // namespace teratron
