#include "teratron/train/guards/nonfinite.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

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

// A rank's finding, to be compared: outputs come before gradients, of a stage in their order.
struct Finding {
  bool gradient = false;
  int64_t stage = 0, position = 0, rank = 0;
  std::string text;
  auto operator<=>(const Finding&) const = default;
};

std::optional<Finding> parse_finding(const std::string& bytes) {
  const nlohmann::json other = nlohmann::json::parse(bytes);
  if (other.is_null()) return std::nullopt;
  return Finding{other[0], other[1], other[2], other[3], other[4]};
}

// The finding computed first: an output of the first stage that has one, else a gradient of the last. Ranks
// of a stage have as many outputs, of which only those that hold an expert see the expert's.
std::string first_finding(TrainEngine& engine, const PendingStep& step) {
  const Mesh& mesh = engine.mesh();
  const std::optional<TrainEngine::NonFinite> found = engine.find_nonfinite(step);
  nlohmann::json mine;  // null: nothing
  if (found) {
    const int64_t stage = mesh.group(Axis::pp).rank;
    mine = {found->gradient, found->gradient ? -stage : stage, found->position, mesh.rank(),
            describe(*found, mesh.rank())};
  }
  const auto first = [](const std::string& lower, const std::string& higher) {
    const std::optional<Finding> a = parse_finding(lower), b = parse_finding(higher);
    return !b || (a && *a < *b) ? lower : higher;
  };
  const std::optional<Finding> of_all =
      parse_finding(merge_bytes(*mesh.world().communicator, mine.dump(), first));
  return of_all ? of_all->text : "";
}

// The names of files that ranks wrote ("": none), of which only some are named.
std::string written_files(const std::string& mine, HostGroup& world) {
  constexpr size_t most = 8;
  using nlohmann::json;
  const auto add = [](const std::string& lower, const std::string& higher) {
    json all = json::parse(lower), more = json::parse(higher);
    all["count"] = all["count"].get<int64_t>() + more["count"].get<int64_t>();
    for (json& name : more["names"])
      if (all["names"].size() < most) all["names"].push_back(std::move(name));
    return all.dump();
  };
  json own = {{"count", mine.empty() ? 0 : 1}, {"names", json::array()}};
  if (!mine.empty()) own["names"].push_back(mine);
  const json all = json::parse(merge_bytes(world, own.dump(), add));
  const auto names = all["names"].get<std::vector<std::string>>();
  const auto others = all["count"].get<int64_t>() - std::ssize(names);
  return fmt::format("{}{}", fmt::join(names, ", "), others > 0 ? fmt::format(" and {} more", others) : "");
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
  const std::string files = written_files(mine, *engine.mesh().world().communicator);
  if (files.empty()) return text;
  return text + fmt::format(
                    " The step's token ids are in {}, for `teratron logits` and `teratron tokenizer decode`.",
                    files);
}

}  // namespace teratron
