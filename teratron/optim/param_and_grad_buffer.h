// Flat buffers of parameters and gradients, as in Megatron-LM's DDP and distributed optimizer.
//
// Parameters are stored in reverse order of registration (about the order in which backward finishes their
// gradients), each aligned to 64 elements, and divided into buckets. A bucket is reduced over the
// data-parallel ranks as soon as its last gradient in the step's final micro-batch is ready, while backward
// continues. With `sharded` (ZeRO-1, Rajbhandari et al. 2020) each rank gets an equal slice of every bucket
// and optimizes only that slice; afterwards the parameters are all-gathered, optionally overlapping the next
// forward. Otherwise every rank owns everything. One rank is a group of one.
//
// Word embeddings tied over pipeline stages have a separate bucket, so that the ranks of the first and of the
// last stage own the same slices of it.
#pragma once

#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// Elements [begin, end) of a flat buffer.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size()); }
};

/// Empty if they are disjoint.
FlatRange intersection(const FlatRange& a, const FlatRange& b);

class ParamAndGradBuffer {
 public:
  struct Options {
    Group data_parallel;
    bool sharded = false;
    int64_t bucket_size = 40'000'000;    // elements after which a bucket is closed
    bool average_in_collective = false;  // else the caller scales the loss by gradient_scale()
    bool reduce_in_bf16 = false;         // gradients are rounded for communication
    bool overlap_param_gather = false;   // a forward waits only for the parameters it uses
    std::vector<int64_t> chunks = {};  // number of parameters per pipeline chunk, in order; empty: one chunk
  };
  struct Entry {
    Parameter* parameter = nullptr;
    FlatRange range;
    int64_t chunk = 0;
  };

  /// Moves the parameters into the buffer and sets their main_grad. They must outlive it and share dtype and
  /// device.
  ParamAndGradBuffer(const std::vector<Parameter*>& parameters, const Options& options);
  ParamAndGradBuffer(const ParamAndGradBuffer&) = delete;
  ParamAndGradBuffer& operator=(const ParamAndGradBuffer&) = delete;

  /// Factor of the loss for which summed gradients are the average over the ranks.
  double gradient_scale() const;
  /// Before the first backward of a step. Gradients are only marked stale; the buffer's contents are
  /// undefined until finish_grad_sync().
  void zero_grad();
  /// From now on gradients of this chunk are the last of the step: complete buckets start their reduction.
  void set_last_microbatch(int64_t chunk = 0) { last_microbatch_.at(chunk) = true; }
  /// After the last backward: the current stream waits until every owned gradient is reduced.
  void finish_grad_sync();
  /// After the optimizer step: all-gathers the parameters if sharded. With overlap_param_gather the values
  /// may still be in flight: layers wait for those they use, other readers call finish_param_gather() first.
  void gather_params();
  void finish_param_gather();

  const at::Tensor& gradients() const { return gradients_; }    // fp32 (fp64), 1-D
  const at::Tensor& parameters() const { return parameters_; }  // the model's dtype, 1-D
  const std::vector<Entry>& entries() const { return entries_; }
  /// Elements that this rank's optimizer updates, ascending.
  const std::vector<FlatRange>& owned() const { return owned_; }
  const Options& options() const { return options_; }

 private:
  struct Bucket {
    FlatRange range;
    int64_t parameters = 0;
    int64_t ready = 0;
    bool started = false;
    at::Tensor result;  // of the reduction, in bf16 if reduce_in_bf16
    Work reduction;
    Work gather;
  };
  void assign_ranges(const std::vector<Parameter*>& parameters);
  void close_bucket();
  void allocate();
  void on_grad_ready(size_t entry);
  void start_reduction(Bucket& bucket);
  void finish_grad_sync(Bucket& bucket);
  FlatRange slice(const FlatRange& bucket) const;

  Options options_;
  std::vector<Entry> entries_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_entry_;
  std::vector<FlatRange> owned_;
  at::Tensor gradients_;
  at::Tensor parameters_;
  std::vector<bool> last_microbatch_;  // by chunk
};

}  // namespace teratron
