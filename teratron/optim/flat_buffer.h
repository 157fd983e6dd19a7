// Gradients and parameters side by side in flat memory.
//
// Parameters lie in reverse order of registration (about the order in which backward finishes their
// gradients), each starting at a multiple of 64 elements, cut into buckets. A bucket whose last gradient has
// arrived in the step's final micro-batch starts its reduction over the data-parallel ranks while backward
// goes on. With `sharded` (ZeRO-1, Rajbhandari et al. 2020) every rank ends up with an equal slice of each
// bucket, owns that slice in the optimizer, and gathers the parameters afterwards; otherwise every rank owns
// everything. With one rank both are the same code over a group of one.
#pragma once

#include <vector>

#include "teratron/comm/mesh.h"
#include "teratron/nn/parameter.h"

namespace teratron {

/// Elements [begin, end) of a flat buffer.
struct FlatRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

class FlatBuffer {
 public:
  struct Options {
    Group data_parallel;
    bool sharded = false;
    int64_t bucket_size = 40'000'000;  // elements after which a bucket is closed
  };
  /// A parameter and where it lies.
  struct Entry {
    Parameter* parameter = nullptr;
    FlatRange range;
  };

  /// Moves the parameters' memory into the buffer and gives them their main_grad. They must outlive it and
  /// share dtype and device.
  FlatBuffer(std::vector<Parameter*> parameters, const Options& options);
  FlatBuffer(const FlatBuffer&) = delete;
  FlatBuffer& operator=(const FlatBuffer&) = delete;

  /// Before the first backward of a step: gradients become zero.
  void start_step();
  /// From now on arriving gradients are the last of the step: buckets start to be reduced.
  void expect_last_microbatch() { last_microbatch_ = true; }
  /// After the last backward: the current stream waits until every owned gradient is the average over the
  /// ranks.
  void finish_reduction();
  /// After the optimizer: every rank gets every parameter. Nothing to do when not sharded.
  void gather_parameters();

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
    Work work;
  };
  void lay_out(std::vector<Parameter*> parameters);
  void close_bucket(int64_t begin, int64_t end, int64_t first_entry);
  void attach();
  void gradient_arrived(Bucket& bucket);
  void start_reduction(Bucket& bucket);
  FlatRange slice(const FlatRange& bucket) const;

  Options options_;
  std::vector<Entry> entries_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_entry_;
  std::vector<FlatRange> owned_;
  at::Tensor gradients_;
  at::Tensor parameters_;
  bool last_microbatch_ = false;
};

}  // namespace teratron
