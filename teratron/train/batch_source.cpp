#include "teratron/train/batch_source.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/comm/broadcast_coalesced.h"

namespace teratron {

namespace {

// [B, S] of the loader as [S, B] on the device.
template <typename T>
at::Tensor transposed(const std::vector<T>& values, const Batch& batch, const at::TensorOptions& target) {
  const auto host = at::TensorOptions().dtype(target.dtype());
  const at::Tensor rows =
      at::from_blob(const_cast<T*>(values.data()), {batch.micro_batch, batch.seq_length}, host);
  // Not contiguous(), which for a single row would be a view of the batch's memory.
  at::Tensor columns = rows.t().clone(at::MemoryFormat::Contiguous);
  if (target.device().is_cpu()) return columns;
  return columns.pin_memory().to(target.device(), /*non_blocking=*/true);
}

// Allocated for the ranks that receive a batch.
Batch empty_batch(int64_t micro_batch, int64_t seq_length) {
  const auto count = static_cast<size_t>(micro_batch * seq_length);
  Batch batch{.micro_batch = micro_batch, .seq_length = seq_length};
  batch.tokens.resize(count);
  batch.labels.resize(count);
  batch.position_ids.resize(count);
  batch.loss_mask.resize(count);
  batch.segment_start.resize(count);
  return batch;
}

// Whether every sample's positions are 0, 1, 2, ...
bool counts_positions(const Batch& batch) {
  for (int64_t sample = 0; sample < batch.micro_batch; ++sample) {
    const int64_t* const positions = batch.position_ids.data() + sample * batch.seq_length;
    for (int64_t s = 0; s < batch.seq_length; ++s) {
      if (positions[s] != s) return false;
    }
  }
  return true;
}

}  // namespace

bool uses_data(const Mesh& mesh, bool resets) {
  const Group& stages = mesh.group(Axis::pp);
  return resets || stages.rank == 0 || stages.rank == stages.size - 1;
}

BatchSource::BatchSource(std::shared_ptr<const Dataset> dataset, const Options& options, const Mesh& mesh)
    : options_(options),
      tensor_parallel_(mesh.group(Axis::tp)),
      uses_data_(uses_data(mesh, options.resets_attention || options.resets_positions)) {
  if (uses_data_ && tensor_parallel_.rank == 0)
    loader_ = std::make_unique<DataLoader>(std::move(dataset), options.loader);
  const BatchSamplerOptions& sampler = options.loader.sampler;
  next_sample_ = sampler.consumed_samples + sampler.dp_rank * sampler.micro_batch_size;
}

Batch BatchSource::read() {
  if (!loader_) return empty_batch(options_.loader.sampler.micro_batch_size, options_.sequence_length);
  std::optional<Batch> batch = loader_->next();
  if (!batch) {
    throw data_error(
        {.what = fmt::format("the data ends after sample {}", next_sample_),
         .where = "--data-path",
         .fix = "Train for fewer samples, or choose --dataloader-type cyclic to repeat the data"});
  }
  return *std::move(batch);
}

MicroBatch BatchSource::next() {
  MicroBatch micro = uses_data_ ? read_and_broadcast() : MicroBatch{.positions_SB = counted_positions()};
  const BatchSamplerOptions& sampler = options_.loader.sampler;
  micro.sample_ids_B = at::arange(next_sample_, next_sample_ + micro.positions_SB.size(1),
                                  micro.positions_SB.options().dtype(at::kLong));
  next_sample_ += sampler.micro_batch_size * sampler.dp_size;
  return micro;
}

at::Tensor BatchSource::counted_positions() const {
  const int64_t length = options_.sequence_length;
  const at::Tensor positions_S =
      at::arange(length, at::TensorOptions().dtype(at::kLong).device(options_.device));
  return positions_S.unsqueeze(1).expand({length, options_.loader.sampler.micro_batch_size});
}

MicroBatch BatchSource::read_and_broadcast() {
  Batch batch = read();
  const at::TensorOptions device = at::TensorOptions().device(options_.device);
  // Other tensor-parallel ranks, which have not read them, expect positions in the broadcast.
  const bool counts = tensor_parallel_.size == 1 && batch.seq_length == options_.sequence_length &&
                      batch.micro_batch == options_.loader.sampler.micro_batch_size &&
                      counts_positions(batch);
  std::vector<at::Tensor> tensors = {
      transposed(batch.tokens, batch, device.dtype(at::kLong)),
      counts ? counted_positions() : transposed(batch.position_ids, batch, device.dtype(at::kLong)),
      transposed(batch.labels, batch, device.dtype(at::kLong)),
      transposed(batch.loss_mask, batch, device.dtype(at::kFloat))};
  if (options_.resets_attention) {
    // Empty: nothing was reset in this batch.
    batch.segment_start.resize(batch.tokens.size());
    tensors.push_back(transposed(batch.segment_start, batch, device.dtype(at::kInt)));
  }
  tensors = broadcast_coalesced(tensors, tensor_parallel_);
  MicroBatch micro{.tokens_SB = tensors[0],
                   .positions_SB = tensors[1],
                   .labels_SB = tensors[2],
                   .loss_mask_SB = tensors[3]};
  if (options_.resets_attention) micro.segment_start_BS = tensors[4].t().contiguous();
  return micro;
}

}  // namespace teratron
