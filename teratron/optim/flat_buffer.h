// Gradients and parameters side by side in flat memory.
//
// Parameters lie in reverse order of registration (about the order in which backward finishes their
// gradients), each starting at a multiple of 64 elements, cut into buckets. A bucket whose last gradient has
// arrived in the step's final micro-batch starts its reduction over the data-parallel ranks while backward
// goes on. With `sharded` (ZeRO-1, Rajbhandari et al. 2020) every rank ends up with an equal slice of each
// bucket, owns that slice in the optimizer, and the parameters are gathered afterwards, if wanted under the next
// forward; otherwise every rank owns everything. With one rank both are the same code over a group of one.
//
// A word embedding that is tied over pipeline stages has a bucket of its own, so that the ranks of the first and of
// the last stage own the same slices of it.
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
};

/// Nothing when they do not meet.
FlatRange intersection(const FlatRange& a, const FlatRange& b);

class FlatBuffer {
 public:
  struct Options {
    Group data_parallel;
    bool sharded = false;
    int64_t bucket_size = 40'000'000;    // elements after which a bucket is closed
    bool average_in_collective = false;  // else the caller scales every gradient by gradient_scale()
    bool reduce_in_bf16 = false;         // gradients are rounded for the way between the ranks
    bool overlap_gather = false;         // a forward waits for the parameters it uses, not for all of them
    std::vector<int64_t> chunks = {};    // parameters of each pipeline chunk, in order; empty: one chunk
  };
  /// A parameter and where it lies.
  struct Entry {
    Parameter* parameter = nullptr;
    FlatRange range;
    int64_t chunk = 0;
  };

  /// Moves the parameters' memory into the buffer and gives them their main_grad. They must outlive it and
  /// share dtype and device.
  FlatBuffer(const std::vector<Parameter*>& parameters, const Options& options);
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;

  /// What losses are multiplied by, so that summed gradients are the average over the ranks.
  double gradient_scale() const;
  /// Before the first backward of a step: gradients count as zero, whatever the buffer holds until finish_reduction().
  void start_step();
  /// From now on gradients that arrive in this chunk are the last of the step: buckets start to be reduced.
  void expect_last_microbatch(int64_t chunk = 0) { last_microbatch_.at(chunk) = true; }
  /// After the last backward: the current stream waits until every owned gradient is reduced over the ranks.
  void finish_reduction();
  /// After the optimizer: every rank gets every parameter. Nothing to do when not sharded. With overlap_gather the
  /// values may still be on their way: layers wait for what they use, all others call finish_gather() first.
  void gather_parameters();
  void finish_gather();

  const at::Tensor& gradients() const { return gradients_; }    // fp32 (fp64), 1-D
  const at::Tensor& parameters() const { return parameters_; }  // the model's dtype, 1-D
  const std::vector<Entry>& entries() const { return entries_; }
  /// What this rank's optimizer works on, ascending.
  const std::vector<FlatRange>& owned() const { return owned_; }
  const Options& options() const { return options_; }

 private:
  struct Bucket {
    FlatRange range;
    int64_t parameters = 0;
    int64_t arrived = 0;
    bool started = false;
    at::Tensor rounded;  // what travels when reducing in bf16: this rank's result
    Work reduction;
    Work gather;
  };
  void lay_out(const std::vector<Parameter*>& parameters);
  void close_bucket();
  void attach();
  void gradient_arrived(size_t entry);
  void start_reduction(Bucket& bucket);
  void finish_reduction(Bucket& bucket);
  FlatRange slice(const FlatRange& bucket) const;
  at::Tensor gradients(const FlatRange& range) const {
    return gradients_.narrow(0, range.begin, range.size());
  }

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
