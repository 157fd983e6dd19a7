// Trainer and TrainLoop: --hf-out.
#include <filesystem>
#include <system_error>

#include "teratron/base/log.h"
#include "teratron/ckpt/collective_errors.h"
#include "teratron/ckpt/directory.h"
#include "teratron/hf/convert.h"
#include "teratron/settings/component_options.h"
#include "teratron/train/train_loop.h"

namespace teratron {

void Trainer::check_hf_out() {
  const std::map<std::string, TensorInfo> tensors = saved_weights(*engine_);
  run_on_rank_0(*mesh_.world().communicator, [&]() -> std::string {
    check_export({.path = *args_.hf_out, .config = config_json(), .tensors = tensors}, *args_.hf_out);
    const HfTokenizer tokenizer = hf_tokenizer(tokenizer_options(args_));
    if (!tokenizer.missing.empty())
      notice("--hf-out: the folder will have no tokenizer: {}", tokenizer.missing);
    return "";
  });
}

void Trainer::export_hf() {
  finish_save();
  const std::filesystem::path folder = *args_.hf_out;
  std::filesystem::path copy = folder.has_filename() ? folder : folder.parent_path();
  copy += ".weights";
  std::filesystem::path source;
  if (is_saved()) {
    source = std::filesystem::path(*args_.save) / iteration_name(state_.iteration);
  } else {
    source = save_model(*engine_, {.directory = copy, .config = config_json()}, false).path;
  }
  run_on_rank_0(*mesh_.world().communicator, [&] {
    const HfTokenizer tokenizer = hf_tokenizer(tokenizer_options(args_));
    const ConversionReport report =
        teratron::export_hf(CheckpointReader(source), {.destination = folder, .tokenizer = tokenizer});
    for (const std::string& line : report.notices) notice_line(line);
    std::error_code ignored;
    if (!is_saved()) std::filesystem::remove_all(copy, ignored);
    return "";
  });
}

void TrainLoop::export_model() {
  const std::string folder = printable(*args().hf_out, 4096);
  const bool finished = args().skip_train || state().iteration >= trainer_.train_iters();
  if (!finished && args().save) {
    if (is_first_rank())
      print(
          "--hf-out: {} is not written, since training stopped at iteration {} of {}; it will be at the end",
          folder, state().iteration, trainer_.train_iters());
    return;
  }
  if (is_first_rank()) print("writing the model at iteration {:7d} to {}", state().iteration, folder);
  trainer_.export_hf();
}

}  // namespace teratron
