// WikiText-103 and LAMBADA: what a GPT does without finetuning (`teratron tasks`).
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "teratron/tasks/replicas.h"

namespace teratron {

struct ZeroShotOptions {
  bool lambada = false;  // else WikiText-103
  int64_t seq_length = 0;
  int64_t overlap = 32;
  bool strict = false;
  // "working on iteration" is printed after so many iterations of so many samples of a replica.
  int64_t log_interval = 100;
  int64_t micro_batch_size = 1;
};

/// Sums over one text, or several.
struct ZeroShotSums {
  double loss = 0.0;            // cross entropy of all predicted tokens
  int64_t tokens = 0;           // of the texts
  int64_t original_tokens = 0;  // words of the texts, which blanks separate
  int64_t texts = 0;
  int64_t correct = 0, examples = 0;

  void add(const ZeroShotSums& other);
  double mean_loss() const;
  double token_ratio() const;
  double perplexity() const;
  double adjusted_perplexity() const;  // per word
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(examples); }
};

/// The line with the figures, as Megatron-LM's.
std::string zeroshot_line(const ZeroShotOptions& options, const ZeroShotSums& sums);
/// loss, perplexity, adjusted_perplexity, token_ratio, tokens, original_tokens; or accuracy, correct,
/// examples.
nlohmann::ordered_json zeroshot_json(const ZeroShotOptions& options, const ZeroShotSums& sums);

/// The samples of a file.
class ZeroShotTask {
 public:
  /// Reads the file: UserError(data) for what is wrong with it. `max_positions`: the model's; longer samples
  /// lose their beginning.
  ZeroShotTask(const ZeroShotOptions& options, const Tokenizer& tokenizer, const std::string& path,
               int64_t max_positions);
  /// The samples with something to predict.
  RequestList requests() const;
  ZeroShotSums sums_of(const std::vector<RequestOutcome>& outcomes) const;
  /// Megatron-LM's line on what was read.
  const std::string& description() const { return description_; }

 private:
  void read_text_windows(const Tokenizer& tokenizer, const std::string& path);
  void read_lambada(const Tokenizer& tokenizer, const std::string& path, int64_t max_positions);

  ZeroShotOptions options_;
  std::function<GenerationRequest(int64_t)> get_;
  int64_t size_ = 0;
  ZeroShotSums known_;  // before the model has run
  std::string description_;
};

/// Runs the model over the samples; prints progress. Collective.
ZeroShotSums run_zeroshot(const ReplicatedModel& model, const ZeroShotTask& task,
                          const ZeroShotOptions& options);

}  // namespace teratron
