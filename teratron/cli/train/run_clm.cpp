#include "teratron/cli/train/run_clm.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "teratron/base/config/command_line.h"
#include "teratron/base/error.h"
#include "teratron/base/file.h"
#include "teratron/base/file_lock.h"
#include "teratron/base/hash.h"
#include "teratron/base/log.h"
#include "teratron/base/strings.h"
#include "teratron/cli/train/dataset_texts.h"
#include "teratron/cli/training_arguments.h"
#include "teratron/comm/launch_env.h"
#include "teratron/data/text/line_reader.h"
#include "teratron/data/text/preprocess.h"
#include "teratron/hf/architecture.h"
#include "teratron/hf/tokenizer_files.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace teratron {

namespace {

namespace fs = std::filesystem;

struct Flags {
  std::optional<std::string> learning_rate, block_size, train_batch, eval_batch, max_steps, warmup_steps,
      scheduler;
  std::optional<std::string> output, resume, checkpoint, checkpointing_steps;
  std::optional<std::string> config, tokenizer, model, model_type;
  std::optional<std::string> dataset, dataset_config, train_file, validation_file;
  std::optional<std::string> report_to, hub_model, hub_token;
  std::optional<int64_t> workers;
  int64_t accumulation = 1;
  double validation_percent = 5;
  bool tracking = false, overwrite_cache = false, no_line_breaks = false;
  bool slow_tokenizer = false, low_memory = false, trust = false;
  bool train = false, evaluate = false, overwrite_output = false, push_to_hub = false;
};

std::vector<Field> fields_of(Flags& f) {
  return {bound_field("learning_rate", &f.learning_rate, ""),
          bound_field("block_size", &f.block_size, ""),
          bound_field("per_device_train_batch_size", &f.train_batch, ""),
          bound_field("per_device_eval_batch_size", &f.eval_batch, ""),
          bound_field("gradient_accumulation_steps", &f.accumulation, "", {.min = 1, .max = 1 << 20}),
          bound_field("max_train_steps", &f.max_steps, ""),
          bound_field("num_warmup_steps", &f.warmup_steps, ""),
          bound_field("lr_scheduler_type", &f.scheduler, "",
                      {.choices = "linear|cosine|constant|constant_with_warmup"}),
          bound_field("output_dir", &f.output, ""),
          bound_field("resume_from_checkpoint", &f.resume, ""),
          bound_field("initial_megatron_lm_checkpoint", &f.checkpoint, "",
                      {.aliases = "--megatron_lm_checkpoint"}),
          bound_field("checkpointing_steps", &f.checkpointing_steps, ""),
          bound_field("config_name", &f.config, ""),
          bound_field("tokenizer_name", &f.tokenizer, ""),
          bound_field("model_name_or_path", &f.model, ""),
          bound_field("model_type", &f.model_type, ""),
          bound_field("dataset_name", &f.dataset, ""),
          bound_field("dataset_config_name", &f.dataset_config, ""),
          bound_field("train_file", &f.train_file, ""),
          bound_field("validation_file", &f.validation_file, ""),
          bound_field("validation_split_percentage", &f.validation_percent, "", {.min = 0, .max = 100}),
          bound_field("report_to", &f.report_to, "", {.choices = "all|tensorboard|wandb"}),
          bound_field("with_tracking", &f.tracking, ""),
          bound_field("preprocessing_num_workers", &f.workers, "", {.min = 1, .max = 1024}),
          bound_field("overwrite_cache", &f.overwrite_cache, ""),
          bound_field("no_keep_linebreaks", &f.no_line_breaks, ""),
          bound_field("use_slow_tokenizer", &f.slow_tokenizer, ""),
          bound_field("low_cpu_mem_usage", &f.low_memory, ""),
          bound_field("trust_remote_code", &f.trust, ""),
          bound_field("do_train", &f.train, ""),
          bound_field("do_eval", &f.evaluate, ""),
          bound_field("overwrite_output_dir", &f.overwrite_output, ""),
          bound_field("push_to_hub", &f.push_to_hub, ""),
          bound_field("hub_model_id", &f.hub_model, ""),
          bound_field("hub_token", &f.hub_token, "")};
}

bool has_run_clm_flags(std::span<const std::string> args) {
  Flags flags;
  const std::vector<Field> fields = fields_of(flags);
  return std::ranges::any_of(args, [&fields](const std::string& arg) {
    if (!arg.starts_with("--")) return false;
    const std::string_view name = std::string_view(arg).substr(2, arg.find('=') - 2);
    return std::ranges::find(fields, name, &Field::name) != fields.end() || name == "megatron_lm_checkpoint";
  });
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

UserError not_found(const std::string& flag, const std::string& name, const std::string& also) {
  return data_error(
      {.what = fmt::format("'{}' is neither a folder{} nor a name in Hugging Face's cache, and nothing is "
                           "downloaded",
                           printable(name, 200), also),
       .where = flag,
       .fix = fmt::format(
           "`hf download {0}` fills the cache; or give a folder, as `hf download {0} --local-dir DIR` "
           "makes",
           printable(name, 200))});
}

/// The folder of a name: itself, or in the cache.
std::optional<fs::path> hf_folder(const std::string& name) {
  if (is_folder(name)) return name;
  return cached_hf_folder(name);
}

/// A preset by its name, or by that of the published model.
std::optional<std::string> preset_of(std::string_view name) {
  constexpr std::string_view publisher = "openai-community/";  // of gpt2 to gpt2-xl
  if (name.starts_with(publisher)) name.remove_prefix(publisher.size());
  return is_model_preset(name) ? std::optional<std::string>(name) : std::nullopt;
}

DatasetTexts texts_of(const Flags& flags) {
  if (!flags.dataset) return {flags.train_file.value_or(""), flags.validation_file.value_or("")};
  if (flags.train_file) return {*flags.train_file, flags.validation_file.value_or(""), true};
  return texts_of_dataset(*flags.dataset, flags.dataset_config);
}

int64_t rows_of(const std::string& file) {
  int64_t rows = 0;
  LineReader reader({file}, size_t{1} << 28);
  while (const auto block = reader.next()) rows += std::ranges::count(block->text, '\n');
  return rows;
}

class RunClm {
 public:
  RunClm(Flags flags, std::vector<std::string> others, const JobModel& model)
      : flags_(std::move(flags)), words_(std::move(others)), model_(model), others_(words_.size()) {}

  std::vector<std::string> run() {
    translate();
    choose_model();
    choose_tokenizer();
    track();
    const DatasetTexts texts = texts_of(flags_);
    if (!texts.train.empty() || !texts.validation.empty()) use(texts);
    if (read_launch_env(process_environment).rank == 0) {
      print("Building gpt model in the pre-training mode.");
      notice("run_clm's flags are{}: {}",
             ignored_.empty() ? "" : fmt::format(" (without effect: {})", fmt::join(ignored_, ", ")),
             fmt::join(std::span(words_).subspan(others_), " "));
    }
    return words_;
  }

 private:
  void add(std::initializer_list<std::string> words) { words_.insert(words_.end(), words); }
  void add(const char* flag, const std::optional<std::string>& value) {
    if (value) add({flag, *value});
  }
  void ignore(const char* flag, bool given) {
    if (given) ignored_.emplace_back(flag);
  }

  void translate() {
    const Flags& f = flags_;
    add("--lr", f.learning_rate);
    add("--seq-length", f.block_size);
    add("--micro-batch-size", f.train_batch);
    if (f.accumulation > 1) add("--num-micro-batches", std::to_string(f.accumulation));
    add("--train-iters", f.max_steps);
    add("--lr-warmup-iters", f.warmup_steps);
    if (f.scheduler) add({"--lr-decay-style", f.scheduler->substr(0, f.scheduler->find('_'))});
    add("--save", f.output);
    if (f.resume) add({"--load", *f.resume, "--exit-on-missing-checkpoint"});
    if (f.overwrite_output) add({"--fresh"});
    if (f.checkpoint) add({"--load", *f.checkpoint, "--finetune"});
    const bool per_epoch = f.checkpointing_steps == "epoch";
    if (per_epoch) add({"--save-each-epoch"});
    if (!per_epoch) add("--save-interval", f.checkpointing_steps);
    ignore("--per_device_eval_batch_size", f.eval_batch.has_value());
    ignore("--use_slow_tokenizer", f.slow_tokenizer);
    ignore("--low_cpu_mem_usage", f.low_memory);
    ignore("--trust_remote_code", f.trust);
    ignore("--do_train", f.train);
    ignore("--do_eval", f.evaluate);
    ignore("--push_to_hub (nothing is uploaded: `hf upload` does it)", f.push_to_hub);
    ignore("--hub_model_id", f.hub_model.has_value());
    ignore("--hub_token", f.hub_token.has_value());
  }

  // Without --config_name that of the model, whose weights are taken where they are.
  void choose_model() {
    if (flags_.model) {
      const std::optional<fs::path> folder = hf_folder(*flags_.model);
      if (folder) return add({"--hf", folder->string()});
    }
    const auto& name = flags_.config ? flags_.config : flags_.model ? flags_.model : flags_.model_type;
    if (!name) return;
    const std::string flag = flags_.config  ? "--config_name"
                             : flags_.model ? "--model_name_or_path"
                                            : "--model_type";
    if (is_folder(*name)) return add({"--hf-config", *name});
    std::error_code error;
    if (fs::is_regular_file(*name, error)) return add({"--hf-config", *name});
    if (const auto preset = preset_of(*name)) {
      add({"--model-preset", *preset});
      if (!flags_.config && flags_.model)
        notice(
            "--model_name_or_path {}: its weights are not in Hugging Face's cache: they start at random, as "
            "Accelerate's do under Megatron-LM",
            printable(*name, 200));
      return;
    }
    const std::optional<fs::path> cached = cached_hf_folder(*name);
    if (!cached) throw not_found(flag, *name, ", a preset (--model-preset)");
    add({"--hf-config", cached->string()});
  }

  bool names_tokenizer() const {
    return std::ranges::any_of(words_, [](const std::string& word) {
      const std::string name = canonical_name(word.substr(0, word.find('=')));
      return word.starts_with("--") &&
             (name == "vocab_file" || name == "tokenizer_model" || name == "tokenizer_type");
    });
  }

  void choose_tokenizer() {
    const std::optional<std::string>& name = flags_.tokenizer ? flags_.tokenizer : flags_.model;
    if (!name) return;
    if (names_tokenizer()) {
      ignore("--tokenizer_name beside a tokenizer", flags_.tokenizer.has_value());
      return;
    }
    const std::optional<fs::path> folder = hf_folder(*name);
    const nlohmann::json settings = folder ? hf_tokenizer_settings(*folder) : nlohmann::json::object();
    if (settings.empty()) {
      UserError error = not_found(flags_.tokenizer ? "--tokenizer_name" : "--model_name_or_path", *name,
                                  " with a tokenizer");
      Problem problem = error.problems().front();
      problem.fix += "; or name the files: --vocab-file vocab.json --merge-file merges.txt";
      throw data_error(problem);
    }
    for (const auto& [key, value] : settings.items()) add({flag_of(key), value.get<std::string>()});
  }

  void track() {
    const std::string project = "clm_no_trainer";  // run_clm's
    if (!flags_.tracking) return ignore("--report_to without --with_tracking", flags_.report_to.has_value());
    const fs::path run = flags_.output.value_or("runs/" + project);
    if (!flags_.output) add({"--run-dir", run.string()});
    if (flags_.report_to == "wandb") {
      add({"--wandb-project", project});
      if (read_launch_env(process_environment).rank == 0)
        notice("for Weights & Biases run `tools/wandb_follow.py {} --to wandb`, now or later",
               (run / "metrics.jsonl").string());
      return;
    }
    add({"--tensorboard-dir", (run / project).string()});
  }

  void use(const DatasetTexts& texts) {
    if (texts.train.empty()) {
      throw data_error({.what = "there is no text to train on",
                        .where = "--validation_file",
                        .fix = "Add --train_file FILE"});
    }
    ParsedArguments parsed = flag_arguments(words_, model_);
    if (!parsed.problems.empty()) throw UserError(ExitCode::config, std::move(parsed.problems));
    if (!parsed.args.seq_length) {
      parsed.args.seq_length = 1024;  // run_clm's
      add("--seq-length", "1024");
    }
    if (!parsed.args.tokenizer_type) parsed.args.tokenizer_type = "GPT2BPETokenizer";
    BlockOptions blocks{.size = *parsed.args.seq_length,
                        .drop_blank_rows = texts.drop_blank_rows,
                        .drop_line_breaks = flags_.no_line_breaks};
    TokenizerOptions tokenizer = tokenizer_options(parsed.args);
    tokenizer.include_special_tokens = false;
    BlockOptions validation = blocks;
    const bool is_split = texts.validation.empty();
    if (is_split) {
      const auto rows = static_cast<double>(rows_of(texts.train));
      validation.end_row = blocks.first_row = std::llround(rows * flags_.validation_percent / 100.0);
    }
    add("--train-data-path", made(texts.train, blocks, tokenizer));
    if (!is_split || validation.end_row > 0)
      add("--valid-data-path", made(is_split ? texts.train : texts.validation, validation, tokenizer));
  }

  int workers() const {
    const auto all = std::max<int64_t>(1, std::thread::hardware_concurrency());
    return static_cast<int>(flags_.workers.value_or(all));
  }

  /// The prefix of the blocks of a text, which ranks of one machine make once.
  std::string made(const std::string& text, const BlockOptions& blocks, const TokenizerOptions& options) {
    if (text.ends_with(".csv")) {
      throw data_error({.what = "is a table, not a text",
                        .where = printable(text, 1000),
                        .fix = "Use .txt, .json or .jsonl"});
    }
    std::error_code error;
    const auto size = fs::file_size(text, error);
    if (error) {
      throw data_error({.what = "cannot be read: " + error.message(),
                        .where = printable(text, 1000),
                        .fix = "Name a text: .txt, .raw, .json or .jsonl"});
    }
    const std::string key = fmt::format("{} {} {} {} {} {} {} {} {}", fs::absolute(text).string(), size,
                                        fs::last_write_time(text).time_since_epoch().count(), blocks.size,
                                        blocks.first_row, blocks.end_row, blocks.drop_blank_rows,
                                        blocks.drop_line_breaks, tokenizer_fingerprint(options));
    Hasher hasher;
    hasher.update(key.data(), key.size());
    const fs::path folder = fs::path(flags_.output.value_or(".")) / "blocks";
    const std::string prefix =
        (folder / fmt::format("{}-{:.12}", fs::path(text).stem().string(), hash_to_hex(hasher.digest())))
            .string();
    make_directories(folder, ExitCode::config);
    const FileLock lock = FileLock::acquire(prefix + ".lock");
    const std::string written = prefix + "_text_document";
    const bool first = read_launch_env(process_environment).local_rank == 0;
    if (fs::exists(written + ".idx") && !(flags_.overwrite_cache && first)) return written;
    const auto tokenizer = build_tokenizer(options);
    const PreprocessResult result = preprocess(
        {.inputs = {text}, .output_prefix = prefix, .blocks = blocks, .workers = workers()}, *tokenizer);
    notice("{}: {} blocks of {} tokens", printable(text, 1000), result.sequences.at(0), blocks.size);
    return written;
  }

  Flags flags_;
  std::vector<std::string> words_;
  const JobModel& model_;
  size_t others_;  // words that are not run_clm's
  std::vector<std::string> ignored_;
};

}  // namespace

std::vector<std::string> run_clm_as_ours(std::span<const std::string> args, const JobModel& model) {
  const bool help = std::ranges::any_of(args, is_help);
  if (help || model.family.name != "gpt" || !has_run_clm_flags(args)) return {args.begin(), args.end()};
  Flags flags;
  const std::optional<std::vector<std::string>> others = read_command({.name = "run_clm",
                                                                       .usage = "",
                                                                       .summary = "",
                                                                       .fields = fields_of(flags),
                                                                       .others = OtherArguments::collected},
                                                                      args);
  return RunClm(std::move(flags), others.value(), model).run();
}

}  // namespace teratron
