#include "teratron/train/guards/nonfinite.h"

#include <optional>

#include <fmt/ranges.h>

#include "teratron/base/file.h"
#include "teratron/base/log.h"
#include "teratron/comm/consensus.h"

namespace teratron {

namespace {

std::string describe(const TrainEngine::NonFinite& found, int64_t rank) {
  const std::string what = found.gradient
                               ? fmt::format("the gradient of {} is not finite, all outputs are", found.part)
                               : fmt::format("the output of {} is the first that is not finite", found.part);
  const at::Tensor& ids_B = found.sample_ids_B;
  if (!ids_B.defined()) return fmt::format("{} (rank {})", what, rank);
  return fmt::format("{} (rank {}, samples {} to {})", what, rank, ids_B[0].item<int64_t>(),
                     ids_B[-1].item<int64_t>());
}

bool has_tokens(const TrainEngine& engine) {
  return engine.mesh().group(Axis::tp).rank == 0 && engine.mesh().group(Axis::pp).rank == 0;
}

std::string lines_of(const MicroBatch& batch) {
  const at::Tensor tokens_BS = batch["tokens"].t().to(at::kCPU, at::kLong).contiguous();
  std::string lines;
  for (int64_t sample = 0; sample < tokens_BS.size(0); ++sample) {
    const auto* ids = tokens_BS[sample].const_data_ptr<int64_t>();
    lines += fmt::format("{}\n", fmt::join(ids, ids + tokens_BS.size(1), " "));
  }
  return lines;
}

// The finding computed first: an output of the first stage that has one, else a gradient of the last.
std::string first_finding(TrainEngine& engine, const PendingStep& step) {
  const std::optional<TrainEngine::NonFinite> found = engine.find_nonfinite(step);
  const std::string mine = found ? describe(*found, engine.mesh().rank()) : "";
  HostGroup& world = *engine.mesh().world().communicator;
  const std::string output = first_nonempty(world, found && !found->gradient ? mine : "");
  if (!output.empty()) return output;
  std::string last_gradient;
  for (const std::string& gradient : world.all_gather_bytes(mine)) {
    if (!gradient.empty()) last_gradient = gradient;
  }
  return last_gradient;
}

// Returns the file's name, or nothing on ranks without tokens.
std::string save_token_ids(const TrainEngine& engine, const std::vector<MicroBatch>& batches,
                           const std::filesystem::path& file) {
  if (file.empty() || !has_tokens(engine)) return "";
  try {
    std::string text;
    for (const MicroBatch& batch : batches) {
      if (batch["tokens"].defined()) text += lines_of(batch);
    }
    if (text.empty()) return "";
    make_directories(file.parent_path(), ExitCode::config);
    write_text(file, text, ExitCode::config);
    return file.string();
  } catch (const std::exception& error) {
    warn("the token ids of the step could not be saved: {}", error.what());
    return "";
  }
}

}  // namespace

std::string diagnose_nonfinite(TrainEngine& engine, const PendingStep& step, int64_t iteration,
                               const std::filesystem::path& folder) {
  const std::string first = first_finding(engine, step);
  std::string text =
      "Computed once more, " +
      (first.empty() ? "everything was finite: suspect the hardware that computed it" : first) + ".";
  const auto name = fmt::format("nan-iteration-{:07}-rank-{}.txt", iteration, engine.mesh().replicas().rank);
  const std::string mine = save_token_ids(engine, step.batches, folder.empty() ? folder : folder / name);
  std::vector<std::string> files = engine.mesh().world().communicator->all_gather_bytes(mine);
  std::erase(files, "");
  if (files.empty()) return text;
  return text + fmt::format(
                    " The step's token ids are in {}, for `teratron logits` and `teratron tokenizer decode`.",
                    fmt::join(files, ", "));
}

}  // namespace teratron
