#include "teratron/train/engine/eval_logits.h"

#include <numeric>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"

namespace teratron {

namespace {

constexpr std::string_view columns[] = {"labels", "loss_mask"};

Dtype dtype_of(const at::Tensor& values) {
  return values.scalar_type() == at::kLong ? Dtype::i64 : Dtype::f32;
}

// [S, B] with padding and all tokens, as [B, S] of a type that files have.
at::Tensor column_of(const at::Tensor& values, const MicroBatch& batch) {
  const PackedRows packed = packed_rows(batch);
  const at::Tensor padded = packed.defined() ? with_padding(values, packed) : values;
  const at::Tensor typed = padded.is_floating_point() ? padded.to(at::kFloat) : padded.to(at::kLong);
  return gather_tokens(typed, batch.context_parallel).transpose(0, 1).contiguous();
}

}  // namespace

EvalLogits::EvalLogits(Options options, const Mesh& mesh) : options_(std::move(options)), mesh_(mesh) {
  make_directories(options_.folder, ExitCode::config);
}

std::filesystem::path EvalLogits::path() const {
  const std::string rank = options_.gathers ? "" : fmt::format("-rank-{}", mesh_.data_parallel().rank);
  return options_.folder / (options_.name + rank + ".safetensors");
}

// Tensor-parallel ranks hold the same logits: the first writes them. A rank that repeats its last micro-batch
// takes part in the communication.
std::optional<EvalLogits::Rows> EvalLogits::rows_here(const at::Tensor& logits_SBV, const MicroBatch& batch,
                                                      bool counts) const {
  if (mesh_.group(Axis::tp).rank != 0) return std::nullopt;
  const at::Tensor whole_SBV = gather_tokens(logits_SBV, batch.context_parallel);
  Rows rows{.logits_BSV = whole_SBV.transpose(0, 1).contiguous()};
  for (const std::string_view name : columns) {
    if (batch[name].defined()) rows.columns_BS[std::string(name)] = column_of(batch[name], batch);
  }
  if (mesh_.group(Axis::cp).rank != 0) return std::nullopt;
  if (!options_.gathers) return counts ? std::optional(rows) : std::nullopt;
  std::vector<int64_t> written;
  const int64_t each = rows.logits_BSV.size(0);
  for (size_t rank = 0; rank < options_.micro_batches.size(); ++rank) {
    for (int64_t i = 0; next_ < options_.micro_batches[rank] && i < each; ++i)
      written.push_back(static_cast<int64_t>(rank) * each + i);
  }
  const auto take = [&](const at::Tensor& values) {
    const at::Tensor all = all_gather(values, 0, mesh_.data_parallel());
    return all.index_select(0, at::tensor(written, at::kLong).to(all.device()));
  };
  rows.logits_BSV = take(rows.logits_BSV);
  for (auto& [_, values] : rows.columns_BS) values = take(values);
  return mesh_.data_parallel().rank == 0 ? std::optional(rows) : std::nullopt;
}

void EvalLogits::declare(const Rows& rows) {
  const std::vector<int64_t>& all = options_.micro_batches;
  const int64_t count = options_.gathers ? std::accumulate(all.begin(), all.end(), int64_t{0})
                                         : all.at(static_cast<size_t>(mesh_.data_parallel().rank));
  const int64_t ranks = options_.gathers ? std::ssize(all) : 1;
  const int64_t samples = count * (rows.logits_BSV.size(0) / ranks);
  std::vector<SafetensorsWriter::Tensor> entries;
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    entries.push_back({.name = name, .dtype = dtype_of(values), .shape = values.sizes().vec()});
    entries.back().shape[0] = samples;
  };
  add("logits", rows.logits_BSV);
  for (const auto& [name, values] : rows.columns_BS) add(name, values);
  target_ = std::make_unique<TemporaryPath>(path(), ExitCode::config);
  writer_.emplace(target_->path(), entries, std::map<std::string, std::string>());
}

void EvalLogits::write(const at::Tensor& values) {
  const at::Tensor typed = values.is_floating_point() ? values.to(at::kFloat) : values;
  const at::Tensor host = typed.to(at::kCPU).contiguous();
  writer_->write(host.const_data_ptr(), static_cast<int64_t>(host.nbytes()));
}

void EvalLogits::add(const at::Tensor& logits_SBV, const MicroBatch& batch, bool counts) {
  const std::optional<Rows> rows = rows_here(logits_SBV, batch, counts);
  next_ += 1;
  if (!rows) return;
  if (!writer_) declare(*rows);
  write(rows->logits_BSV);
  for (const auto& [name, values] : rows->columns_BS) kept_[name].push_back(values.to(at::kCPU));
}

void EvalLogits::finish() {
  if (!writer_) return;
  for (const auto& [_, parts] : kept_) {
    for (const at::Tensor& part : parts) write(part);
  }
  writer_->finish();
  target_->commit();
}

}  // namespace teratron
