#include "teratron/cli/plan_assumptions.h"

#include <filesystem>

#include "teratron/base/log.h"
#include "teratron/cli/training_arguments.h"

namespace teratron {

namespace {

bool names_data(const Arguments& a) {
  return a.mock_data || a.sft || a.task || a.data_args_path || a.per_split_data_args_path ||
         !a.data_path.empty() || !a.train_data_path.empty() || !a.valid_data_path.empty() ||
         !a.test_data_path.empty();
}

// Vocabularies of published tokenizers, by type.
constexpr std::pair<std::string_view, int64_t> published[] = {{"GPT2BPETokenizer", 50257},
                                                              {"BertWordPieceLowerCase", 30522},
                                                              {"BertWordPieceCase", 28996},
                                                              {"Llama2Tokenizer", 32000}};

bool is_missing(const std::optional<std::string>& file) {
  std::error_code ignored;
  return !file || !std::filesystem::exists(*file, ignored);
}

// Whether the tokenizer cannot be read here, and no flag says how large it is.
bool lacks_vocabulary(const Arguments& a, const std::string& type) {
  if (a.vocab_size || a.padded_vocab_size || type == "NullTokenizer") return false;
  if (type == "GPT2BPETokenizer") return is_missing(a.vocab_file) || is_missing(a.merge_file);
  if (type.starts_with("BertWordPiece")) return is_missing(a.vocab_file);
  return is_missing(a.tokenizer_model);
}

// The named architecture's; 0: there is none.
int64_t vocabulary_of_architecture(const Arguments& a, const JobModel& model) {
  std::vector<std::string> flags = {"--mock-data"};
  if (a.model_preset) flags.insert(flags.end(), {"--model-preset", *a.model_preset});
  if (a.hf_config) flags.insert(flags.end(), {"--hf-config", *a.hf_config});
  if (flags.size() == 1) return 0;
  return flag_arguments(flags, model).args.vocab_size.value_or(-1) + 1;
}

}  // namespace

std::vector<std::string> with_assumptions(std::span<const std::string> flags, const ParsedArguments& given,
                                          const JobModel& model) {
  const Arguments& a = given.args;
  std::vector<std::string> all(flags.begin(), flags.end());
  const bool mock = !names_data(a);
  if (mock) all.emplace_back("--mock-data");
  if (!mock && !a.mock_data && !a.micro_batch_size) {
    notice("plan assumes micro-batches of 1");
    all.insert(all.end(), {"--micro-batch-size", "1"});
  }
  const bool chosen = a.tokenizer_type || a.tokenizer_model || a.vocab_file || a.merge_file;
  if ((mock || a.mock_data) && !chosen) return all;  // it has the model's vocabulary
  const std::string type = a.tokenizer_type.value_or(model.family.settings.tokenizer_type);
  if (!lacks_vocabulary(a, type)) return all;
  int64_t size = vocabulary_of_architecture(a, model);
  for (const auto& [name, tokens] : published) {
    if (size == 0 && name == type) size = tokens;
  }
  if (size == 0) return all;
  notice("the files of the tokenizer are not here: plan assumes a vocabulary of {}", size);
  all.insert(all.end(), {"--tokenizer-type", "NullTokenizer", "--vocab-size", std::to_string(size - 1)});
  return all;
}

}  // namespace teratron
