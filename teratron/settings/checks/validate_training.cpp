// Checks of batch arithmetic, schedules, precision, data, tokenizer and generation.
#include <algorithm>
#include <cmath>
#include <set>

#include "teratron/settings/checks/validate.h"

namespace teratron {

namespace {

void reject_too_large(Validation& v, std::string_view name) {
  v.reject(name, fmt::format("{} is too large: the batch does not fit 64 bits", name), "Use a smaller one");
}

void check_batch_ramp(Validation& v, int64_t samples_at_once) {
  const Arguments& a = v.args;
  if (a.rampup_batch_size.size() != 3) return;
  const int64_t start = a.rampup_batch_size[0];
  const int64_t increment = a.rampup_batch_size[1];
  const int64_t samples = a.rampup_batch_size[2];
  const int64_t target = *a.global_batch_size;
  if (start < 1 || increment < 1 || samples < 1 || start >= target || (target - start) % increment != 0) {
    v.reject("rampup_batch_size",
             fmt::format("rampup_batch_size = {} {} {} does not lead to global_batch_size = {}", start,
                         increment, samples, target),
             "Use start < global_batch_size, an increment that divides the difference, and samples > 0");
    return;
  }
  for (const int64_t value : std::set{start, increment}) {
    v.divisible({.name = "rampup_batch_size",
                 .value = value,
                 .by = "micro_batch_size * data_parallel_size",
                 .divisor = samples_at_once,
                 .reason = "Every batch on the way must be made of whole micro-batches"});
  }
}

// The counter in which the run is measured: steps or samples.
struct Counter {
  std::string_view decay, warmup, wsd;  // names of the fields
  std::optional<int64_t> decay_length;
  int64_t warmup_length;
  std::optional<int64_t> wsd_length;
};

void check_counters(Validation& v) {
  const Arguments& a = v.args;
  if (a.train_iters && a.train_samples) {
    v.reject("train_samples", "train_iters and train_samples are both set", "Give one of them");
  }
  if (a.num_train_epochs && (a.train_iters || a.train_samples)) {
    v.reject(
        "num_train_epochs",
        fmt::format("num_train_epochs and {} are both set", a.train_iters ? "train_iters" : "train_samples"),
        "Give one of them");
  }
  if (a.num_train_epochs && !a.rampup_batch_size.empty()) {
    v.reject("num_train_epochs", "num_train_epochs counts steps of one size, but rampup_batch_size is set",
             "Give --train-samples instead");
  }
  const bool by_samples = a.train_samples.has_value();
  const auto reject = [&](std::string_view name) {
    v.reject(
        name,
        fmt::format("{} belongs to training by {}, but {} is set", name, by_samples ? "steps" : "samples",
                    by_samples      ? "train_samples"
                    : a.train_iters ? "train_iters"
                                    : "num_train_epochs"),
        by_samples ? "Use its twin that counts samples" : "Use its twin that counts steps");
  };
  if (by_samples) {
    if (a.lr_decay_iters) reject("lr_decay_iters");
    if (a.lr_warmup_iters) reject("lr_warmup_iters");
    if (a.lr_wsd_decay_iters) reject("lr_wsd_decay_iters");
  } else if (a.train_iters || a.num_train_epochs) {
    if (a.lr_decay_samples) reject("lr_decay_samples");
    if (a.lr_warmup_samples) reject("lr_warmup_samples");
    if (a.lr_wsd_decay_samples) reject("lr_wsd_decay_samples");
  }
}

// The decay lasts as long as the training unless it is given. A training of no steps has none.
struct Decay {
  std::string_view name;
  std::optional<int64_t>& length;
  int64_t training;
};

void derive_decay(Validation& v, const Decay& decay) {
  if (decay.length || decay.training == 0) return;
  decay.length = decay.training;
  v.derived(decay.name);
}

void check_warmup(Validation& v, const Counter& c) {
  const Arguments& a = v.args;
  if (!c.decay_length) return;
  if (a.lr_warmup_fraction && c.warmup_length > 0) {
    v.reject("lr_warmup_fraction", fmt::format("lr_warmup_fraction and {} are both set", c.warmup),
             "Give one of them");
  }
  const double decay = static_cast<double>(*c.decay_length);
  const double warmup =
      a.lr_warmup_fraction ? *a.lr_warmup_fraction * decay : static_cast<double>(c.warmup_length);
  if (warmup >= decay && decay > 0) {
    v.reject(a.lr_warmup_fraction ? "lr_warmup_fraction" : c.warmup,
             fmt::format("the warm-up of {} is not shorter than the decay of {} = {}", warmup, c.decay,
                         *c.decay_length),
             fmt::format("Use a warm-up below {} or a longer decay", *c.decay_length));
  }
  if (a.lr_decay_style != "WSD") return;
  if (!c.wsd_length) {
    v.reject(c.wsd, fmt::format("lr_decay_style = WSD needs {}", c.wsd), "Give the length of its last part");
  } else if (*c.wsd_length > *c.decay_length) {
    v.reject(c.wsd,
             fmt::format("{} = {} is longer than {} = {}", c.wsd, *c.wsd_length, c.decay, *c.decay_length),
             fmt::format("Use at most {}", *c.decay_length));
  }
}

void check_weight_decay(Validation& v) {
  Arguments& a = v.args;
  const bool ramp = v.chosen("start_weight_decay") || v.chosen("end_weight_decay");
  if (a.weight_decay_incr_style == "constant") {
    if (ramp) {
      v.reject("weight_decay_incr_style",
               "start_weight_decay or end_weight_decay is set, but the style is constant",
               "Use --weight-decay, or --weight-decay-incr-style linear or cosine");
      return;
    }
    a.start_weight_decay = a.end_weight_decay = a.weight_decay;
    v.derived("start_weight_decay");
    v.derived("end_weight_decay");
    return;
  }
  if (!a.start_weight_decay || !a.end_weight_decay) {
    v.reject("weight_decay_incr_style",
             fmt::format("weight_decay_incr_style = {} needs both ends", a.weight_decay_incr_style),
             "Give --start-weight-decay and --end-weight-decay");
  } else if (*a.end_weight_decay < *a.start_weight_decay) {
    v.reject("end_weight_decay",
             fmt::format("end_weight_decay = {} is below start_weight_decay = {}", *a.end_weight_decay,
                         *a.start_weight_decay),
             "Weight decay can only grow");
  }
}

void check_split(Validation& v) {
  const std::string& split = *v.args.split;
  double sum = 0;
  int parts = 0;
  bool good = true;
  const char separator = split.find(',') != std::string::npos ? ',' : '/';
  for (size_t begin = 0; begin <= split.size();) {
    const size_t end = std::min(split.find(separator, begin), split.size());
    const Field& real = arguments_schema().field("min_lr");  // any field of this type and range: at least 0
    Problem ignored;
    const Value value = parse_value(real, std::vector{split.substr(begin, end - begin)}, ignored);
    good = good && std::holds_alternative<double>(value) && ++parts <= 3;
    if (good) sum += std::get<double>(value);
    begin = end + 1;
  }
  if (good && sum > 0) return;
  v.reject("split",
           fmt::format("split = '{}' is not up to three shares that add up to more than 0", printable(split)),
           "Use for example 969,30,1");
}

void check_tokenizer_files(Validation& v, std::string_view type) {
  const Arguments& a = v.args;
  const auto need = [&](std::string_view name, bool present) {
    if (present) return;
    v.reject(name, fmt::format("tokenizer_type = {} needs {}", type, name),
             fmt::format("Give {}", flag_of(name)));
  };
  if (type == "NullTokenizer") return need("vocab_size", a.vocab_size.has_value());
  if (type == "GPT2BPETokenizer") {
    need("vocab_file", a.vocab_file.has_value());
    return need("merge_file", a.merge_file.has_value());
  }
  if (type.starts_with("BertWordPiece")) return need("vocab_file", a.vocab_file.has_value());
  need("tokenizer_model", a.tokenizer_model.has_value());
}

}  // namespace

void check_batch(Validation& v) {
  Arguments& a = v.args;
  if (!a.micro_batch_size || !a.data_parallel_size) return;
  const std::optional<int64_t> at_once = product(*a.micro_batch_size, *a.data_parallel_size);
  if (!at_once) return reject_too_large(v, "micro_batch_size");
  if (!a.global_batch_size) {
    a.global_batch_size = product(*at_once, a.num_micro_batches.value_or(1));
    if (!a.global_batch_size) return reject_too_large(v, "num_micro_batches");
    v.derived("global_batch_size");
  }
  const bool whole = v.divisible({.name = "global_batch_size",
                                  .value = *a.global_batch_size,
                                  .by = fmt::format("micro_batch_size {} * data_parallel_size {}",
                                                    *a.micro_batch_size, *a.data_parallel_size),
                                  .divisor = *at_once,
                                  .reason = "Every rank runs whole micro-batches"});
  if (!whole) return;
  const int64_t micro_batches = *a.global_batch_size / *at_once;
  if (a.num_micro_batches && *a.num_micro_batches != micro_batches) {
    v.reject("num_micro_batches",
             fmt::format(
                 "num_micro_batches = {} contradicts global_batch_size = {}, which is {} micro-batches of {} "
                 "samples on {} data-parallel ranks",
                 *a.num_micro_batches, *a.global_batch_size, micro_batches, *a.micro_batch_size,
                 *a.data_parallel_size),
             "Leave one of them out");
  } else if (!a.num_micro_batches) {
    a.num_micro_batches = micro_batches;
    v.derived("num_micro_batches");
  }
  check_batch_ramp(v, *at_once);
}

void check_schedule(Validation& v) {
  Arguments& a = v.args;
  check_counters(v);
  check_weight_decay(v);
  if (a.lr && a.min_lr > *a.lr) {
    v.reject("min_lr", fmt::format("min_lr = {} is above lr = {}", a.min_lr, *a.lr),
             "Use a min_lr of at most lr");
  }
  if (a.lr && a.lr_warmup_init > *a.lr) {
    v.reject("lr_warmup_init", fmt::format("lr_warmup_init = {} is above lr = {}", a.lr_warmup_init, *a.lr),
             "Use a value of at most lr");
  }
  if (a.override_opt_param_scheduler && a.use_checkpoint_opt_param_scheduler) {
    v.reject("override_opt_param_scheduler",
             "override_opt_param_scheduler and use_checkpoint_opt_param_scheduler are both set",
             "Give one of them");
  }
  if (a.train_samples) {
    derive_decay(v, {"lr_decay_samples", a.lr_decay_samples, *a.train_samples});
    check_warmup(v, {"lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples", a.lr_decay_samples,
                     a.lr_warmup_samples, a.lr_wsd_decay_samples});
  } else if (a.train_iters) {
    derive_decay(v, {"lr_decay_iters", a.lr_decay_iters, *a.train_iters});
    check_warmup(v, {"lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters", a.lr_decay_iters,
                     a.lr_warmup_iters, a.lr_wsd_decay_iters});
  }
}

void check_optimizer(Validation& v) {
  const Arguments& a = v.args;
  const bool sgd = a.optimizer == "sgd";
  for (const std::string_view name : {"adam_beta1", "adam_beta2", "adam_eps"}) {
    if (sgd && v.chosen(name)) v.note(fmt::format("{} has no effect with --optimizer sgd", flag_of(name)));
  }
  if (!sgd && v.chosen("sgd_momentum")) v.note("--sgd-momentum has no effect without --optimizer sgd");
  for (const std::string_view name : {"adam_beta1", "adam_beta2"}) {
    if ((name == "adam_beta1" ? a.adam_beta1 : a.adam_beta2) < 1.0) continue;
    v.reject(name, fmt::format("{} = 1 never lets a gradient in", name), "Use a value below 1");
  }
  if (a.decoupled_min_lr && !a.decoupled_lr)
    v.note("--decoupled-min-lr has no effect without --decoupled-lr");
  const double min_lr = a.decoupled_min_lr.value_or(a.min_lr);
  if (a.decoupled_lr && min_lr > *a.decoupled_lr) {
    v.reject("decoupled_lr",
             fmt::format("{} = {} is above decoupled_lr = {}",
                         a.decoupled_min_lr ? "decoupled_min_lr" : "min_lr", min_lr, *a.decoupled_lr),
             "Raise decoupled_lr, or give a smaller --decoupled-min-lr");
  }
}

void check_run(Validation& v) {
  const Arguments& a = v.args;
  if (a.adlr_autoresume && !a.save) {
    v.reject("adlr_autoresume", "adlr_autoresume stops the run to be resumed, but there is no --save",
             "Give --save, or leave it out");
  }
  for (const std::string_view name : {"adlr_autoresume_interval", "autoresume_file"}) {
    if (!a.adlr_autoresume && v.chosen(name)) {
      v.note(fmt::format("{} has no effect without --adlr-autoresume", flag_of(name)));
    }
  }
  for (const std::string_view name : {"profile_step_start", "profile_step_end", "profile_ranks"}) {
    if (!a.profile && v.chosen(name))
      v.note(fmt::format("{} has no effect without --profile", flag_of(name)));
  }
  if (a.profile && a.profile_step_end <= a.profile_step_start) {
    v.reject("profile_step_end",
             fmt::format("profile_step_end = {} is not after profile_step_start = {}", a.profile_step_end,
                         a.profile_step_start),
             "Profile at least one step");
  }
  const bool has_directory = a.save || a.run_dir;
  for (const std::string_view name : {"profile", "wandb_project"}) {
    if (v.chosen(name) && !has_directory) {
      v.reject(name, fmt::format("{} writes into the run directory, but there is none", name),
               "Give --save or --run-dir");
    }
  }
  for (const std::string_view name : {"wandb_exp_name", "wandb_save_dir"}) {
    if (!a.wandb_project && v.chosen(name)) {
      v.note(fmt::format("{} has no effect without --wandb-project", flag_of(name)));
    }
  }
  if (a.tensorboard_dir) return;
  for (const Field& field : arguments_schema().fields()) {
    const bool only_there =
        field.name.ends_with("_to_tensorboard") || field.name == "tensorboard_log_interval";
    if (only_there && v.chosen(field.name)) {
      v.note(fmt::format("{} has no effect without --tensorboard-dir", flag_of(field.name)));
    }
  }
}

void check_precision(Validation& v) {
  const Arguments& a = v.args;
  if (a.fp16 && a.bf16) v.reject("fp16", "fp16 and bf16 are both set", "Give one of them");
  if (a.fp16) return;
  for (const std::string_view name : {"loss_scale", "initial_loss_scale", "min_loss_scale",
                                      "loss_scale_window", "hysteresis", "fp16_lm_cross_entropy"}) {
    if (v.chosen(name)) v.note(fmt::format("{} has no effect without --fp16", flag_of(name)));
  }
}

void check_steps(Validation& v) {
  const Arguments& a = v.args;
  if (a.calculate_per_token_loss && a.ddp_average_in_collective) {
    v.reject("calculate_per_token_loss",
             "calculate_per_token_loss divides by the tokens of all ranks, but ddp_average_in_collective "
             "averages over "
             "the ranks",
             "Give one of them");
  }
  if (a.max_nan_iterations == 0) return;
  if (a.fp16) v.note("--max-nan-iterations has no effect with --fp16, which skips every such step");
  if (!a.check_for_nan_in_loss_and_grad) {
    v.reject("max_nan_iterations",
             "max_nan_iterations needs the check that --no-check-for-nan-in-loss-and-grad turns off",
             "Give one of them");
  }
}

void check_data(Validation& v) {
  Arguments& a = v.args;
  const bool split_paths =
      !a.train_data_path.empty() || !a.valid_data_path.empty() || !a.test_data_path.empty();
  const bool per_split = split_paths || a.per_split_data_args_path;
  const bool one_path = !a.data_path.empty() || a.data_args_path;
  if (a.mock_data && (per_split || one_path)) {
    v.reject("mock_data", "mock_data and a dataset are both given", "Give one of them");
  }
  if (per_split && one_path) {
    v.reject("data_path", "data_path and a path per split are both given", "Give one kind of them");
  }
  if (!a.data_path.empty() && a.data_args_path) {
    v.reject("data_args_path", "data_path and data_args_path are both given", "Give one of them");
  }
  if (split_paths && a.per_split_data_args_path) {
    v.reject("per_split_data_args_path", "per_split_data_args_path and a path per split are both given",
             "Give one of them");
  }
  if (per_split && a.split && v.chosen("split")) {
    v.reject("split", "split is given although every split has its own path", "Leave split out");
  }
  if (!a.split && !per_split) {
    a.split = "969, 30, 1";
    v.derived("split");
  }
  if (a.split) check_split(v);
  if (!a.save) {
    for (const std::string_view name :
         {"save_interval", "save_retain_interval", "no_save_optim", "async_save", "log_progress"}) {
      if (v.chosen(name)) v.note(fmt::format("{} has no effect without --save", flag_of(name)));
    }
  }
  if (!a.load) {
    for (const std::string_view name :
         {"finetune", "no_load_optim", "ckpt_step", "exit_on_missing_checkpoint", "use_checkpoint_args",
          "override_opt_param_scheduler", "use_checkpoint_opt_param_scheduler"}) {
      if (v.chosen(name) && !(a.pretrained_checkpoint && name != "ckpt_step"))
        v.note(fmt::format("{} has no effect without --load", flag_of(name)));
    }
  }
}

void check_tokenizer(Validation& v) {
  check_tokenizer_files(v, *v.args.tokenizer_type);
}

void check_generation(Validation& v) {
  const Arguments& a = v.args;
  if (a.top_k > 0 && a.top_p > 0) v.reject("top_p", "top_k and top_p are both set", "Give one of them");
  if (a.greedy && (a.top_k > 1 || a.top_p > 0)) {
    v.reject("greedy", "greedy contradicts top_k or top_p", "Give one of them");
  }
}

}  // namespace teratron
