// Generates the texts of many requests at once: each step, all sequences that are being generated get their
// next token, beside chunks of the prompts of new ones (Yu et al. 2022, "Orca"; Kwon et al. 2023; Agrawal et
// al. 2023). Requests join and leave between steps.
//
//   Engine engine(model, {.tokenizer = &tokenizer}, ranks);
//   engine.submit({.prompt = ids, .on_token = print});
//   while (engine.step()) {}
//   for (const GenerationResult& result : engine.take_results()) ...
//
// On several ranks all must call the same functions with the same requests; RankedEngine (ranked_engine.h)
// does so for a rank that knows them alone. Not thread-safe.
//
// The pages and slots of a request are reserved when it joins: no request ever has to leave because memory is
// short. Unless max_rows is given, a request of more sequences is answered alone, with memory that is
// allocated then.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "teratron/comm/ranks/host_group.h"
#include "teratron/generate/beam_search.h"
#include "teratron/generate/memory/beam_pages.h"
#include "teratron/generate/memory/engine_memory.h"
#include "teratron/generate/memory/page_pool.h"
#include "teratron/generate/memory/request_needs.h"
#include "teratron/generate/request.h"
#include "teratron/generate/stage_runner.h"
#include "teratron/generate/token_rules.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

struct EngineSettings {
  const Tokenizer* tokenizer = nullptr;  // of texts that end an answer; may be null
  NewlineTokens newlines = {};
  int64_t max_rows = 0;        // sequences at once; 0: 64 on a GPU, 16 on a CPU, or more of one request
  int64_t longest = 0;         // tokens of the longest sequence that is expected; 0: the model's positions
  int64_t longest_source = 0;  // likewise of an encoder's tokens
  int64_t cache_bytes = 0;     // 0: what is free, up to max_rows sequences of the longest
  int64_t page_size = 16;      // a power of 2
  int64_t prompt_tokens = 0;   // of prompts in a step; 0: 4,096 on a GPU, 512 on a CPU
  bool graphs = true;
  std::vector<const LanguageModel*> adapters = {};  // the same model with other weights
};

struct EngineLoad {
  int64_t waiting = 0;  // requests that have not begun
  int64_t rows = 0;     // sequences that are generated
  int64_t used_pages = 0, pages = 0;
};

class Engine {
 public:
  /// Collective over `ranks`, all those of the model. The model must outlive it.
  Engine(const LanguageModel& model, const EngineSettings& settings, HostGroup& ranks);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const RequestLimits& limits() const { return limits_; }
  /// All that is wrong with a request; thread-safe.
  std::vector<Problem> problems_of(const GenerationRequest& request) const;
  /// Its id. UserError(config) with all that is wrong with it. An answer ends at the model's last position.
  int64_t submit(GenerationRequest request);
  /// Ends a request with what it has so far; unknown and finished ones are ignored.
  void cancel(int64_t id);
  /// One forward; false if there is nothing to do.
  bool step();
  bool idle() const { return waiting_.empty() && active_.empty(); }
  /// Results of the requests that finished since the last call, in the order in which they did.
  std::vector<GenerationResult> take_results();
  int64_t generated_tokens() const { return generated_; }
  EngineLoad load() const;

 private:
  struct Sequence;
  struct Active;
  struct Plan;

  RequestNeeds needs_of(const GenerationRequest& request) const;
  CacheRequest cache_of(int64_t rows) const;
  /// Allocates the states of so many sequences at once, in place of those there are. Collective.
  void allocate(int64_t rows);
  /// Whether a request can join now; allocates more for it if nothing else is generated.
  bool has_room(const RequestNeeds& needs);
  void admit();
  void start(int64_t id, GenerationRequest request, const RequestNeeds& needs);
  Plan plan_step();
  void add_row(Plan& plan, Active& active, Sequence& sequence, int64_t tokens);
  bool continues(const Plan& plan) const;
  void apply(const Plan& plan, const StepOutput& output);
  void apply_token(Active& active, Sequence& sequence, const std::vector<StepOutput::Token>& tokens);
  void apply_beams(Active& active, const std::vector<std::vector<StepOutput::Token>>& best);
  void finish(Active& active, const char* reason);
  void retire_finished();

  const LanguageModel& model_;
  HostGroup& ranks_;
  EngineSettings settings_;
  TokenRules rules_;
  RequestLimits limits_;
  int64_t allocated_rows_ = 0;
  std::optional<PagePool> pool_, slots_;
  std::unique_ptr<StageRunner> runner_;
  std::deque<std::pair<int64_t, GenerationRequest>> waiting_;
  std::vector<std::unique_ptr<Active>> active_;
  int64_t rows_ = 0;  // of the active requests
  int64_t next_id_ = 0;
  int64_t generated_ = 0;
  std::vector<GenerationResult> results_;
};

}  // namespace teratron
