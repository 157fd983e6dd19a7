#include "teratron/settings/checks/validate.h"

#include <algorithm>
#include <utility>

#include "teratron/settings/checks/formula.h"
#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace {

void require(Validation& v, std::string_view name, std::string_view why) {
  if (!std::holds_alternative<std::monostate>(get_value(arguments_schema().field(name), &v.args))) return;
  v.reject(name, fmt::format("{} is not set", name), fmt::format("Give {}: {}", flag_of(name), why));
}

void require_model(Validation& v, const Program& program) {
  const Arguments& a = v.args;
  const bool has_length = a.seq_length || a.encoder_seq_length;
  const bool nothing = !a.num_layers && !a.encoder_num_layers && !a.hidden_size && !a.num_attention_heads;
  if (nothing) {
    return v.reject("model_preset", "no model is given",
                    fmt::format("Give --model-preset, such as gpt2, --hf with a Hugging Face folder, or "
                                "--num-layers, --hidden-size{} and "
                                "--num-attention-heads",
                                has_length ? "" : ", --seq-length"));
  }
  for (const auto& [setting, meaning] : program.required) {
    if (setting != "seq_length" || !has_length) require(v, setting, meaning);
  }
}

void require_training(Validation& v) {
  const Arguments& a = v.args;
  require(v, "micro_batch_size", "the samples per forward pass of a rank");
  if (!a.skip_train && !a.train_iters && !a.train_samples && !a.num_train_epochs) {
    v.reject("train_iters", "none of train_iters, train_samples and num_train_epochs is set",
             "Give --train-iters: the number of steps");
  }
  if (!a.skip_train && a.train_iters == 0 && !a.lr_decay_iters) {
    v.reject("train_iters", "train_iters = 0 trains nothing and has no learning-rate decay",
             "Give 1 or more, or --skip-train to only evaluate");
  }
  if (!a.skip_train) require(v, "lr", "the maximum learning rate");
  if (!a.mock_data && a.data_path.empty() && a.train_data_path.empty() && a.valid_data_path.empty() &&
      a.test_data_path.empty() && a.train_data.empty() && a.valid_data.empty() && !a.data_args_path &&
      !a.per_split_data_args_path) {
    v.reject("data_path", "no dataset is given",
             "Give --data-path with the prefix of a dataset, or --mock-data");
  }
}

void derive_program_defaults(Validation& v, const Program& program) {
  Arguments& a = v.args;
  if (!a.tokenizer_type) v.derive("tokenizer_type", a.tokenizer_type, program.tokenizer_type);
  if (program.derive) program.derive(v);
  if (!a.dataloader_type) v.derive("dataloader_type", a.dataloader_type, "single");
}

// A setting that is invalid, misspelled or refused keeps its default, which may contradict others.
bool follows_from_unresolved(const Problem& problem, const ParsedArguments& parsed) {
  const std::vector<std::string>& names = parsed.unresolved;
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const auto source = parsed.sources.find(name);
    return (source != parsed.sources.end() && source->second == problem.where) ||
           problem.where == flag_of(name) || problem.what.find(name) != std::string::npos ||
           problem.what.find(flag_of(name)) != std::string::npos;
  });
}

}  // namespace

bool Validation::chosen(std::string_view name) const {
  const auto it = sources.find(name);
  return it != sources.end() && (is_users(it->second) || it->second == program_default_source);
}

std::string Validation::where(std::string_view name) const {
  const auto it = sources.find(name);
  if (it == sources.end()) return flag_of(name);
  if (it->second == program_default_source) return fmt::format("{} ({})", flag_of(name), it->second);
  return is_users(it->second) ? it->second : flag_of(name);
}

void Validation::reject(std::string_view name, std::string what, std::string fix) {
  problems.push_back({.what = std::move(what), .where = where(name), .fix = std::move(fix)});
}

bool Validation::divisible(const Divisible& check) {
  if (check.value % check.divisor == 0) return true;
  const std::string_view what = check.what.empty() ? check.name : check.what;
  std::string fix = fmt::format("Use {} = {}", what, multiples_text(check.value, check.divisor));
  if (check.value % check.factor == 0) {
    const std::string_view free = check.factor == 1 ? check.by : check.by.substr(check.by.find("* ") + 2);
    fix += fmt::format(", or {} = one of {}", free, divisors_text(check.value / check.factor));
  }
  reject(check.name,
         fmt::format("{} = {} is not divisible by {} = {}. {}", what, check.value, check.by, check.divisor,
                     check.reason),
         std::move(fix));
  return false;
}

void validate_arguments(ParsedArguments& parsed, int64_t world_size, const ValidateOptions& options) {
  Validation v{parsed.args, parsed.sources, parsed.notices};
  derive_mock_defaults(v);
  derive_program_defaults(v, parsed.program);
  if (options.needs_model) require_model(v, parsed.program);
  if (options.needs_data) require_training(v);
  check_model(v);
  check_parallel(v, world_size);
  check_context_parallel(v);
  check_batch(v);
  check_pipeline(v);
  check_schedule(v);
  check_param_groups(v);
  check_data(v);
  check_fp8(v);
  check_experts(v);
  check_rules(v);
  warn_ignored(v);
  std::vector<Problem> problems = std::exchange(parsed.problems, {});
  for (Problem& problem : v.problems) {
    if (!follows_from_unresolved(problem, parsed)) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

int64_t query_groups(const Arguments& args) {
  return args.group_query_attention ? args.num_query_groups : args.num_attention_heads.value_or(0);
}

int64_t padded_vocab_size(const Arguments& args, int64_t vocab_size) {
  if (!args.padded_vocab_size) {
    return padded_vocab_size(vocab_size, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size);
  }
  if (*args.padded_vocab_size >= vocab_size) return *args.padded_vocab_size;
  throw config_error(
      {.what = fmt::format("padded_vocab_size = {} is smaller than the vocabulary of {} tokens",
                           *args.padded_vocab_size, vocab_size),
       .where = "--padded-vocab-size",
       .fix = "Leave it out, or use the vocabulary that the size was computed for"});
}

}  // namespace teratron
