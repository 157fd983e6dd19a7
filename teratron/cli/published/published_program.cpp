#include "teratron/cli/published/published_program.h"

#include <algorithm>
#include <string_view>

#include <fmt/ranges.h>

#include "teratron/base/config/config.h"
#include "teratron/base/environment.h"
#include "teratron/base/error.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"

namespace teratron {

namespace {

// A flag that a program spells in its own way. `values`: "*" any one, "a|b" one of these, "" none.
// `ours`: words in its place, "$1" is the value; empty: there is nothing to tell.
struct Spelling {
  std::string_view flag, values, ours;
};

constexpr Spelling conversion[] = {
    {"--load-dir", "*", "--load-path $1"},
    {"--save-dir", "*", "--save-path $1"},
    {"--loader", "megatron|mcore|llama2|llama2_hf|llama_mistral|mistral|mixtral_hf", ""},
    {"--saver", "megatron", "--megatron-names core"},
    {"--saver", "mcore", "--megatron-names mcore-te"},
    {"--saver-transformer-impl", "local", "--megatron-names mcore"},
    {"--saver-transformer-impl", "transformer_engine", "--megatron-names mcore-te"},
    {"--loader-transformer-impl", "local|transformer_engine", ""},
    {"--model-size", "*", ""},
    {"--checkpoint-type", "hf", ""},
    {"--max-queue-size", "*", ""},
    {"--no-checking", "", ""},
    {"--megatron-path", "*", ""},
    {"--bf16", "", "--target-params-dtype bf16"},
    {"--fp16", "", "--target-params-dtype fp16"},
};

// Accelerate's program takes all flags of the training, and generates from the checkpoint that it resumes.
constexpr Spelling generation[] = {
    {"--resume_from_checkpoint", "*", "--load $1"},
    {"--config_name", "*", ""},
    {"--tokenizer_name", "*", ""},
    {"--model_name_or_path", "*", ""},
    {"--config_overrides", "*", ""},
    {"--dataset_name", "*", ""},
    {"--dataset_config_name", "*", ""},
    {"--train_file", "*", ""},
    {"--validation_file", "*", ""},
    {"--block_size", "*", ""},
    {"--learning_rate", "*", ""},
    {"--weight_decay", "*", ""},
    {"--per_device_train_batch_size", "*", ""},
    {"--per_device_eval_batch_size", "*", ""},
    {"--gradient_accumulation_steps", "*", ""},
    {"--num_train_epochs", "*", ""},
    {"--max_train_steps", "*", ""},
    {"--output_dir", "*", ""},
    {"--with_tracking", "", ""},
    {"--report_to", "*", ""},
    {"--n_train", "*", ""},
    {"--n_val", "*", ""},
};

struct PublishedProgram {
  std::string_view file;     // "*" stands for any words
  std::string_view command;  // and flags that are its defaults; "*" is what the file has there
  std::span<const Spelling> spellings = {};
};

// The defaults of run_clm_no_trainer.py; its own flags are those of `pretrain gpt` (cli/train/run_clm.h).
constexpr std::string_view run_clm =
    "pretrain gpt --lr 5e-5 --weight-decay 0 --micro-batch-size 8 --num-train-epochs 3 --eval-iters 1";

constexpr PublishedProgram programs[] = {
    {"pretrain_hybrid.py", "pretrain mamba"},
    {"pretrain_*.py", "pretrain *"},
    {"finetune_*.py", "finetune *"},
    {"preprocess_data.py", "preprocess"},
    {"merge_datasets.py", "merge"},
    {"main.py", "tasks"},
    {"run_text_generation_server.py", "serve"},
    {"run_dynamic_text_generation_server.py", "serve"},
    {"generate_samples_gpt.py", "generate"},
    {"util.py", "ckpt convert", conversion},
    {"convert.py", "ckpt convert", conversion},
    {"checkpoint_util.py", "ckpt convert", conversion},
    {"checkpoint_reshaping_and_interoperability.py", "ckpt convert"},
    {"megatron_gpt2_generation.py", "generate", generation},
    {"megatron_lm_gpt_pretraining.py", run_clm},
    {"run_clm_no_trainer.py", run_clm},
    {"run_clm.py", run_clm},
};

struct AbsentProgram {
  std::string_view file, why;
};

constexpr AbsentProgram absent[] = {
    {"pretrain_ict.py", "there are no retrieval models (ICT, REALM, ORQA), whose encoders start from a BERT"},
    {"pretrain_retro.py", "there are no Retro models, which read neighbours of each chunk of a text"},
    {"preprocess_retro.py", "there are no Retro models, whose neighbours it looks up"},
};

void refuse_absent(const std::string& path, std::string_view name) {
  const auto* const found = std::ranges::find(absent, name, &AbsentProgram::file);
  if (found == std::end(absent)) return;
  throw config_error({.what = fmt::format("is not supported: {}", found->why),
                      .where = printable(path, 1000),
                      .fix = "`teratron pretrain` lists the models that are trained"});
}

// What "*" of the pattern is in the name; nullopt if they differ.
std::optional<std::string> matched(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == pattern.npos) return pattern == name ? std::optional<std::string>("") : std::nullopt;
  const std::string_view begin = pattern.substr(0, star), end = pattern.substr(star + 1);
  if (name.size() <= begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end))
    return std::nullopt;
  return std::string(name.substr(begin.size(), name.size() - begin.size() - end.size()));
}

bool takes(const Spelling& spelling, const std::string& value) {
  const std::vector<std::string> values = split(spelling.values, '|');
  return spelling.values == "*" || std::ranges::find(values, value) != values.end();
}

// The flags in our spelling.
class Respelling {
 public:
  Respelling(std::span<const Spelling> spellings, std::vector<std::string>& words)
      : spellings_(spellings), words_(words) {}

  /// Flags without a counterpart, as they were given.
  const std::vector<std::string>& ignored() const { return ignored_; }

  void read(std::span<const std::string> args) {
    for (size_t i = 0; i < args.size();) i = read_at(args, i);
  }

 private:
  size_t read_at(std::span<const std::string> args, size_t i) {
    const size_t equals = args[i].find('=');
    const std::string flag = args[i].substr(0, equals);
    const auto is_spelling = [&flag](const Spelling& each) {
      return flag.starts_with("--") && canonical_name(each.flag) == canonical_name(flag);
    };
    const auto known = std::ranges::find_if(spellings_, is_spelling);
    if (known == spellings_.end()) {
      words_.push_back(args[i]);
      return i + 1;
    }
    const bool has_value = !known->values.empty();
    if (has_value && equals == flag.npos && i + 1 == args.size()) {
      words_.push_back(flag);  // the command says what is missing
      return i + 1;
    }
    const bool next = has_value && equals == std::string::npos;
    const std::string value = !has_value ? "" : next ? args[i + 1] : args[i].substr(equals + 1);
    const auto fitting = std::ranges::find_if(spellings_, [&](const Spelling& each) {
      return is_spelling(each) && (!has_value || takes(each, value));
    });
    if (fitting == spellings_.end()) throw unknown_value(flag, value);
    add(*fitting, flag, value);
    return i + (next ? 2 : 1);
  }

  void add(const Spelling& spelling, const std::string& flag, const std::string& value) {
    if (spelling.ours.empty()) ignored_.push_back(value.empty() ? flag : flag + " " + printable(value, 100));
    for (const std::string& word : split(spelling.ours)) words_.push_back(word == "$1" ? value : word);
  }

  UserError unknown_value(const std::string& flag, const std::string& value) const {
    std::vector<std::string> values;
    for (const Spelling& each : spellings_) {
      if (canonical_name(each.flag) != canonical_name(flag)) continue;
      for (std::string& choice : split(each.values, '|')) values.push_back(std::move(choice));
    }
    return config_error({.what = fmt::format("'{}' is not one of its values", printable(value, 100)),
                         .where = flag,
                         .fix = fmt::format("Use one of {}", fmt::join(values, ", "))});
  }

  std::span<const Spelling> spellings_;
  std::vector<std::string>& words_;
  std::vector<std::string> ignored_;
};

// Once for a job, under any launcher.
bool is_first_rank() {
  for (const char* const variable : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const std::string rank = process_environment(variable).value_or("");
    if (!rank.empty()) return rank == "0";
  }
  return true;
}

}  // namespace

std::optional<std::vector<std::string>> command_of_program(std::span<const std::string> args) {
  if (args.empty()) return std::nullopt;
  const std::string& path = args[0];
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  refuse_absent(path, name);
  for (const PublishedProgram& program : programs) {
    const std::optional<std::string> star = matched(program.file, name);
    if (!star) continue;
    std::vector<std::string> words = split(program.command);
    std::ranges::replace(words, "*", *star);
    const std::string command = fmt::format("{}", fmt::join(words, " "));
    Respelling flags(program.spellings, words);
    flags.read(args.subspan(1));
    if (is_first_rank())
      notice("{} is `teratron {}` here{}{}", printable(path, 1000), command,
             flags.ignored().empty() ? "" : "; no effect: ", fmt::join(flags.ignored(), ", "));
    return words;
  }
  return std::nullopt;
}

}  // namespace teratron
