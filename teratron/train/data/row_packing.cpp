#include "teratron/train/data/row_packing.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct PackedTokens {
  std::vector<int64_t> places;  // of each token in [S, B]
  std::vector<int64_t> starts;
  std::vector<int32_t> bounds;
};

// All samples, then padding tokens until there are `count`.
PackedTokens pack(const RowPacking& packing, int64_t count) {
  const int64_t samples = std::ssize(packing.lengths);
  PackedTokens tokens;
  tokens.bounds.push_back(0);
  for (int64_t b = 0; b < samples; ++b) {
    tokens.starts.push_back(std::ssize(tokens.places));
    for (int64_t s = 0; s < packing.lengths[b]; ++s) tokens.places.push_back(s * samples + b);
    tokens.bounds.push_back(static_cast<int32_t>(tokens.places.size()));
  }
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t s = packing.lengths[b]; s < packing.row && std::ssize(tokens.places) < count; ++s)
      tokens.places.push_back(s * samples + b);
  }
  // No segment is longer than a row.
  while (tokens.bounds.back() < count)
    tokens.bounds.push_back(static_cast<int32_t>(std::min(tokens.bounds.back() + packing.row, count)));
  // As many segments as the most padding needs, whatever the samples.
  const int64_t most = samples + 1 + packing.multiple / packing.row;
  tokens.bounds.resize(static_cast<size_t>(most + 1), static_cast<int32_t>(count));
  return tokens;
}

// Segments of the rows with padding, for attention: each padding token by itself, which costs next to
// nothing.
std::vector<int32_t> padded_bounds(const RowPacking& packing) {
  std::vector<int32_t> bounds;
  int64_t first = 0;
  for (const int64_t length : packing.lengths) {
    bounds.push_back(static_cast<int32_t>(first));
    for (int64_t s = length; s < packing.row; ++s) bounds.push_back(static_cast<int32_t>(first + s));
    first += packing.row;
  }
  bounds.push_back(static_cast<int32_t>(first));
  return bounds;
}

template <typename T>
at::Tensor on_device(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  const at::Tensor host = at::tensor(values, at::TensorOptions().dtype(type));
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

bool has_rows(const Column& column) {
  return column.kind == Column::Kind::sequence || column.kind == Column::Kind::index;
}

}  // namespace

int64_t packing_multiple(int64_t row, int64_t samples, int64_t tensor_parallel_size) {
  const int64_t step = 16 * tensor_parallel_size;
  return step * std::max<int64_t>(std::min(row, row * samples / 64) / step, 1);
}

MicroBatch without_padding(const MicroBatch& batch, const BatchSchema& schema, const RowPacking& packing) {
  const int64_t samples = std::ssize(packing.lengths), all = samples * packing.row;
  const int64_t real = std::accumulate(packing.lengths.begin(), packing.lengths.end(), int64_t{0});
  const int64_t count = std::min(rounded_up(real, packing.multiple), all);
  if (count == all) return batch;
  const PackedTokens tokens = pack(packing, count);
  TERATRON_ASSERT(batch["cu_seqlens"].defined() && batch.context_parallel.size() == 1,
                  "no padding that can be removed");
  const at::Device device = batch["cu_seqlens"].device();
  const at::Tensor places_T = on_device(tokens.places, at::kLong, device);
  MicroBatch packed = batch;
  packed.padded_length = packing.row;
  packed.tensors.set("packed_tokens", places_T);
  packed.tensors.set("row_starts", on_device(tokens.starts, at::kLong, device));
  packed.tensors.set("cu_seqlens", on_device(tokens.bounds, at::kInt, device));
  packed.tensors.set("padded_cu_seqlens", on_device(padded_bounds(packing), at::kInt, device));
  for (const Column& column : schema) {
    const at::Tensor& rows_SB = batch[column.name];
    if (!has_rows(column) || !rows_SB.defined()) continue;
    packed.tensors.set(column.name, rows_SB.flatten(0, 1).index_select(0, places_T).unsqueeze(1));
  }
  return packed;
}

}  // namespace teratron
