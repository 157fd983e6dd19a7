#include "teratron/train/guards/nonfinite.h"

#include <optional>

#include <fmt/ranges.h>

#include "teratron/base/file.h"
#include "teratron/base/log.h"

namespace teratron {

namespace {

std::string describe(const Trainer::NonFinite& found, int64_t rank, const BadStep& step) {
  const std::string what = found.gradient
                               ? fmt::format("the gradient of {} is not finite, all outputs are", found.part)
                               : fmt::format("the output of {} is the first that is not finite", found.part);
  if (!found.first_sample) return fmt::format("{} (rank {})", what, rank);
  const int64_t last = *found.first_sample + step.batches.at(0).positions_SB.size(1) - 1;
  return fmt::format("{} (rank {}, samples {} to {})", what, rank, *found.first_sample, last);
}

constexpr char kOutput = 'o';
constexpr char kGradient = 'g';

// Of all ranks' findings the one that was computed first: an output of the first stage that has one, a gradient of the
// last.
std::string earliest(const std::vector<std::string>& findings) {
  std::string gradient;
  for (const std::string& finding : findings) {
    if (finding.starts_with(kOutput)) return finding.substr(1);
    if (finding.starts_with(kGradient)) gradient = finding.substr(1);
  }
  return gradient;
}

bool has_tokens(const Trainer& trainer) {
  return trainer.mesh().group(Axis::tp).rank == 0 && trainer.mesh().group(Axis::pp).rank == 0;
}

std::string lines_of(const MicroBatch& batch) {
  const at::Tensor tokens_BS = batch.tokens_SB.t().to(at::kCPU, at::kLong).contiguous();
  std::string lines;
  for (int64_t sample = 0; sample < tokens_BS.size(0); ++sample) {
    const auto* ids = tokens_BS[sample].const_data_ptr<int64_t>();
    lines += fmt::format("{}\n", fmt::join(ids, ids + tokens_BS.size(1), " "));
  }
  return lines;
}

std::string first_finding(Trainer& trainer, const BadStep& step) {
  const auto again = [&step](int64_t index) { return step.batches.at(static_cast<size_t>(index)); };
  const std::optional<Trainer::NonFinite> found = trainer.find_nonfinite(again, step.plan);
  std::string mine;
  if (found) {
    mine = (found->gradient ? kGradient : kOutput) + describe(*found, trainer.mesh().rank(), step);
  }
  return earliest(trainer.mesh().world().communicator->all_gather_bytes(mine));
}

// The file's name, or nothing on ranks that have none.
std::string keep_token_ids(const Trainer& trainer, const BadStep& step, const std::filesystem::path& folder) {
  if (folder.empty() || !has_tokens(trainer)) return "";
  const int64_t rank = trainer.mesh().group(Axis::dp).rank;
  const auto file = folder / fmt::format("nan-iteration-{:07}-rank-{}.txt", step.iteration, rank);
  std::string text;
  for (const MicroBatch& batch : step.batches) text += lines_of(batch);
  try {
    make_directories(folder, ExitCode::config);
    write_text(file, text, ExitCode::config);
    return file.string();
  } catch (const std::exception& error) {
    warn("the token ids of the step could not be kept: {}", error.what());
    return "";
  }
}

}  // namespace

std::string examine(Trainer& trainer, const BadStep& step, const std::filesystem::path& folder) {
  const std::string first = first_finding(trainer, step);
  std::string text =
      "Computed once more, " +
      (first.empty() ? "everything was finite: suspect the hardware that computed it" : first) + ".";
  const std::string mine = keep_token_ids(trainer, step, folder);
  std::vector<std::string> files = trainer.mesh().world().communicator->all_gather_bytes(mine);
  std::erase(files, "");
  if (files.empty()) return text;
  return text + fmt::format(
                    " The step's token ids are in {}, for `teratron logits` and `teratron tokenizer decode`.",
                    fmt::join(files, ", "));
}

}  // namespace teratron
