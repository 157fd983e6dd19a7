// Micro-batches on the device, column by column of the model's schema: read by tensor-parallel rank 0 and
// broadcast to the others in one message. A pipeline stage reads only if it has a column that is read.
// Context-parallel ranks read the same samples and keep their tokens.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/data/data_loader.h"
#include "teratron/models/model.h"

namespace teratron {

/// The columns that the ranks of this pipeline stage have.
BatchSchema columns_of_stage(const BatchSchema& schema, const Mesh& mesh);
/// Whether the ranks of this pipeline stage read data.
bool uses_data(const BatchSchema& schema, const Mesh& mesh);
/// Whether this rank does: the first tensor-parallel one of such a stage.
bool reads_data(const BatchSchema& schema, const Mesh& mesh);

/// Whether a micro-batch keeps the padding of its rows, or is packed (row_packing.h).
enum class Padding : uint8_t { kept, removed };

/// Returns the next samples of this data-parallel rank; nothing at their end.
using BatchReader = std::function<std::optional<Batch>()>;

class BatchSource {
 public:
  struct Options {
    DataLoaderOptions loader;     // sampler: this data-parallel rank's
    std::string split = "train";  // for messages
    BatchSchema schema;
    at::Device device = at::kCPU;
  };
  /// `dataset` may be null on ranks that do not read.
  BatchSource(std::shared_ptr<const Dataset> dataset, const Options& options, const Mesh& mesh);
  /// From samples that the program reads: of micro_batch_size each. `reader` is called on ranks that read.
  BatchSource(BatchReader reader, const Options& options, const Mesh& mesh);

  /// The next micro-batch of this data-parallel rank. UserError(data) at the end of the data.
  /// Padding::removed requires rows of a sample and its padding (ModelPlan::packs_rows) that context-parallel
  /// ranks do not share. `padding` is the same on all tensor-parallel ranks.
  MicroBatch next(Padding padding = Padding::kept);

 private:
  Batch read();
  /// Makes the cuts of the batch's sequences.
  void cut(const Batch* batch, int64_t samples);
  /// That of sequences of so many tokens.
  const ContextParallel& cut_of(int64_t length) const;
  /// The stacked column on the device; allocated alone on ranks that receive it (null batch).
  at::Tensor stacked(const Column& column, const Batch* batch, int64_t samples) const;
  /// The stacked items of a column, on every tensor-parallel rank; undefined without any.
  at::Tensor stacked_items(const Column& column, const Batch* batch) const;
  /// Undefined if every sample is one segment: then attention needs none, and other kernels run.
  at::Tensor cu_seqlens(const Column& column, const Batch* batch, int64_t samples);
  /// Tokens of each row before its padding.
  std::vector<int64_t> row_lengths(const Batch* batch) const;
  /// Rows of the sequence index; made once.
  at::Tensor index_SB(const Column& column, int64_t samples);

  Options options_;
  Group tensor_parallel_;
  Group context_parallel_;
  // The last batch's cuts; `source_`: of a source's sequences, where there are two kinds.
  ContextParallel context_, source_;
  BatchReader reader_;  // null: this rank does not read
  NamedTensors index_;
  int64_t segments_ = 0;  // capacity of cu_seqlens; only grows, so that shapes settle
  int64_t next_sample_;
};

}  // namespace teratron
