// The logits of an evaluation, in safetensors files: "logits" f32 [samples, S, vocabulary], and the columns
// "labels" and "loss_mask" [samples, S] that the batches have, as i64 and f32.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "teratron/base/file.h"
#include "teratron/ckpt/safetensors.h"
#include "teratron/train/engine/engine.h"

namespace teratron {

/// Each data-parallel rank has a file with its samples in order; or one has those of all, in the order of
/// micro-batches and, of each, of ranks. Context-parallel ranks share the tokens of their samples, which the
/// file has in order.
class EvalLogits {
 public:
  struct Options {
    std::filesystem::path folder;        // is made
    std::string name;                    // of the evaluation; the files are NAME.safetensors, or NAME-rank-I
    std::vector<int64_t> micro_batches;  // of each data-parallel rank
    bool gathers = false;
  };
  EvalLogits(Options options, const Mesh& mesh);
  EvalLogits(const EvalLogits&) = delete;
  EvalLogits& operator=(const EvalLogits&) = delete;

  /// A LogitsHook: collective over the last stage.
  void add(const at::Tensor& logits_SBV, const MicroBatch& batch, bool counts);
  /// After a whole evaluation; else the files are dropped. UserError(config) if a file cannot be written.
  void finish();

 private:
  /// The rows of a micro-batch that are written here, by name and in order of rows; none: another rank's.
  struct Rows {
    at::Tensor logits_BSV;
    std::map<std::string, at::Tensor> columns_BS;
  };
  std::optional<Rows> rows_here(const at::Tensor& logits_SBV, const MicroBatch& batch, bool counts) const;
  std::filesystem::path path() const;
  void declare(const Rows& rows);
  void write(const at::Tensor& values);

  Options options_;
  Mesh mesh_;
  int64_t next_ = 0;  // micro-batch
  std::unique_ptr<TemporaryPath> target_;
  std::optional<SafetensorsWriter> writer_;
  std::map<std::string, std::vector<at::Tensor>> kept_;  // columns, which follow the logits
};

}  // namespace teratron
