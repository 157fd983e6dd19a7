// Texts and logits of a saved model, by this process alone.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "teratron/cli/generate/generate_job.h"

namespace teratron::python {

class Generator {
 public:
  /// `flags` as those of `teratron generate`, with --load or --hf. UserError as its.
  explicit Generator(const std::vector<std::string>& flags);

  /// The prompts with their answers, in order; `flags` are those of `teratron generate` for this call.
  std::vector<std::string> generate(const std::vector<std::string>& prompts,
                                    const std::vector<std::string>& flags);
  /// [B, S, vocabulary] of token ids [B, S], without dropout.
  at::Tensor logits(const at::Tensor& ids_BS);
  std::vector<int32_t> encode(const std::string& text) const;
  std::string decode(const std::vector<int32_t>& ids) const;
  int64_t iteration() const { return job_.loaded.checkpoint.iteration; }
  std::string json() const { return to_json(job_.args()); }

 private:
  const Tokenizer& tokenizer() const;
  std::mutex calls_;  // those of several threads follow one another
  Mesh mesh_;
  GenerateJob job_;
  Arguments given_;  // the settings before a call's
};

}  // namespace teratron::python
