#include "teratron/settings/checks/validate.h"

#include <algorithm>
#include <utility>

#include "teratron/tokenizer/tokenizer.h"

namespace teratron {

namespace {

void require(Validation& v, std::string_view name, std::string_view why) {
  if (!std::holds_alternative<std::monostate>(get_value(arguments_schema().field(name), &v.args))) return;
  v.reject(name, fmt::format("{} is not set", name), fmt::format("Give {}: {}", flag_of(name), why));
}

void require_model(Validation& v, const std::string& program) {
  if (program != "t5" || !v.args.encoder_num_layers)
    require(v, "num_layers", "the number of transformer layers");
  require(v, "hidden_size", "the width of the model");
  require(v, "num_attention_heads", "the number of attention heads");
  if (!v.args.encoder_seq_length) require(v, "seq_length", "the length of a training sequence in tokens");
}

void require_training(Validation& v) {
  const Arguments& a = v.args;
  require(v, "micro_batch_size", "the samples of a rank in one forward pass");
  if (!a.skip_train && !a.train_iters && !a.train_samples && !a.num_train_epochs) {
    v.reject("train_iters", "none of train_iters, train_samples and num_train_epochs is set",
             "Give --train-iters: the number of steps");
  }
  if (!a.skip_train && a.train_iters == 0 && !a.lr_decay_iters) {
    v.reject("train_iters",
             "train_iters = 0 leaves nothing to train, and no length for the learning rate to decay over",
             "Give 1 or more, or --skip-train to evaluate alone");
  }
  if (!a.skip_train) require(v, "lr", "the highest learning rate");
  if (!a.mock_data && a.data_path.empty() && a.train_data_path.empty() && a.valid_data_path.empty() &&
      a.test_data_path.empty() && !a.data_args_path && !a.per_split_data_args_path) {
    v.reject("data_path", "no dataset is given",
             "Give --data-path with the prefix of a dataset, or --mock-data");
  }
}

void fill_program_defaults(Validation& v, const std::string& program) {
  Arguments& a = v.args;
  if (!a.tokenizer_type) {
    a.tokenizer_type = program == "bert" || program == "t5" ? "BertWordPieceLowerCase" : "GPT2BPETokenizer";
    v.derived("tokenizer_type");
  }
  if (!a.dataloader_type) {
    a.dataloader_type = "single";
    v.derived("dataloader_type");
  }
}

// A field that a bad value or a typing error left at its default, or that is refused, makes others look wrong.
bool follows_from(const Problem& problem, const ParsedArguments& parsed) {
  const std::vector<std::string>& names = parsed.unsettled;
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const auto source = parsed.sources.find(name);
    const bool there = source != parsed.sources.end() && source->second == problem.where;
    return there || problem.what.find(name) != std::string::npos;
  });
}

}  // namespace

bool Validation::chosen(std::string_view name) const {
  const auto it = sources.find(name);
  return it != sources.end() && it->second != "derived";
}

std::string Validation::where(std::string_view name) const {
  return chosen(name) ? sources.find(name)->second : flag_of(name);
}

void Validation::note(std::string line) {
  notices.push_back(std::move(line));
}

void Validation::reject(std::string_view name, std::string what, std::string fix) {
  problems.push_back({.what = std::move(what), .where = where(name), .fix = std::move(fix)});
}

bool Validation::divisible(const Divisible& check) {
  if (check.value % check.divisor == 0) return true;
  reject(check.name,
         fmt::format("{} = {} is not divisible by {} = {}. {}", check.name, check.value, check.by,
                     check.divisor, check.reason),
         fmt::format("Use {} = {}, or {} = one of {}", check.name, multiples_text(check.value, check.divisor),
                     check.by, divisors_text(check.value)));
  return false;
}

std::string divisors_text(int64_t value) {
  std::vector<int64_t> small;
  std::vector<int64_t> large;
  for (int64_t d = 1; d <= value / d && d <= 1'000'000; ++d) {
    if (value % d != 0) continue;
    small.push_back(d);
    if (d != value / d) large.push_back(value / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  std::string out;
  for (size_t i = 0; i < small.size() && i < 12; ++i) out += fmt::format("{}{}", i ? ", " : "", small[i]);
  return small.size() > 12 ? out + ", ..." : out;
}

std::string multiples_text(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  const std::optional<int64_t> above = product(value / step + 1, step);
  if (!above) return fmt::format("{}", below);
  return below == 0 ? fmt::format("{}", *above) : fmt::format("{} or {}", below, *above);
}

std::optional<int64_t> product(int64_t a, int64_t b) {
  int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

void finish(ParsedArguments& parsed, int64_t world_size, const FinishOptions& options) {
  Validation v{parsed.args, parsed.sources, parsed.notices};
  fill_program_defaults(v, parsed.program);
  if (options.needs_model) require_model(v, parsed.program);
  if (options.needs_data) require_training(v);
  check_model(v);
  check_parallel(v, world_size);
  check_batch(v);
  check_pipeline(v);
  check_schedule(v);
  check_optimizer(v);
  check_run(v);
  check_steps(v);
  check_precision(v);
  check_fp8(v);
  check_graphs(v);
  check_data(v);
  check_tokenizer(v);
  check_generation(v);
  note_inert(v);
  std::vector<Problem> problems = std::exchange(parsed.problems, {});
  for (Problem& problem : v.problems) {
    if (!follows_from(problem, parsed)) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) throw UserError(ExitCode::config, std::move(problems));
}

int64_t query_groups(const Arguments& args) {
  return args.group_query_attention ? args.num_query_groups : args.num_attention_heads.value();
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
       .fix = "Leave it out, or take the vocabulary that the size belongs to"});
}

}  // namespace teratron
