// Flat buffers of parameters and gradients, as in Megatron-LM's DDP and distributed optimizer.
//
// Parameters are stored in reverse order of registration (about the order in which backward finishes their
// gradients), each aligned to 64 elements, and divided into buckets. Buckets are reduced over the ranks on
// which the parameters are replicated, in fixed order, each as soon as its last gradient in the step's final
// micro-batch is ready, while backward continues. With `sharded` (ZeRO-1, Rajbhandari et al. 2020) each
// rank gets an equal slice of every bucket and optimizes only that slice; afterwards the parameters are
// all-gathered, optionally overlapping the next forward. Otherwise every rank owns everything. One rank is a
// group of one.
//
// A buffer has one optimizer rule. If the rule's unit is the matrix, slices contain whole parameters
// (bucket_layout.h), and the order within a bucket follows from their sizes.
//
// Parameters tied over pipeline stages have separate buckets, so that the ranks of these stages own the same
// slices of them. A parameter without a gradient in some step has a gradient of zero. Collectives are
// recorded with the bucket's number and parameters: ranks whose models differ fail instead of summing
// different buckets.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "teratron/comm/mesh/mesh.h"
#include "teratron/nn/parameter.h"
#include "teratron/optim/bucket_layout.h"
#include "teratron/optim/optimizer_rule.h"
#include "teratron/optim/rules/adam.h"

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
    bool sharded = false;
    int64_t bucket_size = 40'000'000;    // elements after which a bucket is closed
    bool average_in_collective = false;  // over Mesh::replicas(); else the loss is divided by their number
    bool reduce_in_bf16 = false;         // gradients are rounded for communication
    bool overlap_param_gather = false;   // a forward waits only for the parameters it uses
  };
  /// The ranks that train the same values.
  struct Replicas {
    AxisSet axes = replica_axes;
    Group group;
    double share = 1.0;  // of Mesh::replicas(), in size
  };
  struct Entry {
    Parameter* parameter = nullptr;
    int64_t position = 0;  // in the order of registration
    int64_t chunk = 0;     // of the pipeline stage
    Group tied = {};       // stages that share the parameter
    Group sharers = {};    // tensor-parallel ranks that hold the same shared rows (Shard::sharers)
    bool counts = true;    // in sums over the model: this rank is the first of those that hold this part
    FlatRange range = {};  // set by the buffer

    /// The shared rows in the buffer.
    FlatRange shared() const { return {range.end - parameter->shard().shared_numel(), range.end}; }
    /// What sums over the model count of `range`: shared rows on one of their ranks.
    FlatRange counted() const;
  };

  /// Moves parameters of one dtype, in order of registration, into the buffer and sets their main_grad. They
  /// must outlive it. `storage` has their dtype and device.
  ParamAndGradBuffer(std::vector<Entry> entries, const Replicas& replicas, const at::TensorOptions& storage,
                     const Options& options, std::shared_ptr<const OptimizerRule> rule = adam_rule());
  ParamAndGradBuffer(const ParamAndGradBuffer&) = delete;
  ParamAndGradBuffer& operator=(const ParamAndGradBuffer&) = delete;

  /// The texts of teratron::describe_buckets() for such a buffer, which all replicas must have in common.
  static std::vector<std::string> describe_buckets(const std::vector<Entry>& entries, int64_t replicas,
                                                   const Options& options, const OptimizerRule& rule);

  /// Before the first backward of a step. Gradients are only marked stale; the buffer's contents are
  /// undefined until finish_grad_sync().
  void zero_grad();
  /// From now on gradients of this chunk are the last of the step: complete buckets start their reduction.
  void set_last_microbatch(int64_t chunk = 0);
  /// After the last backward: the current stream waits until every owned gradient is reduced.
  void finish_grad_sync();
  /// Starts the reduction of the next bucket if there is one and it is complete, or `incomplete` ones may
  /// start.
  bool start_next_reduction(bool incomplete = false);
  /// Called when a bucket is complete, to start reductions; default: start_next_reduction().
  void set_on_complete(std::function<void()> on_complete) { on_complete_ = std::move(on_complete); }
  /// By bucket: position of the parameter whose gradient completes it if backward visits them in reverse.
  std::vector<int64_t> last_positions() const;
  /// After the optimizer step: all-gathers the parameters if sharded. With overlap_param_gather the values
  /// may still be in flight: layers wait for those they use, other readers call finish_param_gather() first.
  void gather_params();
  void finish_param_gather();

  const at::Tensor& gradients() const { return gradients_; }      // fp32 (fp64), 1-D
  const at::Tensor& parameters() const { return parameters_; }    // the parameters' dtype, 1-D
  const std::vector<Entry>& entries() const { return entries_; }  // in order of `range`
  /// The entries that lie in the range, or partly.
  std::span<const Entry> entries_in(const FlatRange& range) const;
  /// Elements that this rank's optimizer updates, ascending.
  const std::vector<FlatRange>& owned() const { return owned_; }
  const Replicas& replicas() const { return replicas_; }
  const Options& options() const { return options_; }
  const OptimizerRule& rule() const { return *rule_; }

 private:
  struct Bucket {
    FlatRange range;
    Group group;  // of the replicas; ledgers of collectives name the bucket
    size_t parameters = 0;
    size_t ready = 0;
    at::Tensor result;  // of the reduction, in bf16 if reduce_in_bf16
    Work reduction;
    Work gather;
  };
  void assign_ranges();
  void allocate(const at::TensorOptions& storage);
  void on_grad_ready(size_t entry);
  void start_reduction(Bucket& bucket);
  void finish_grad_sync(Bucket& bucket);
  FlatRange slice(const FlatRange& bucket) const;

  Options options_;
  Replicas replicas_;
  std::shared_ptr<const OptimizerRule> rule_;
  std::vector<Entry> entries_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_entry_;
  std::vector<FlatRange> owned_;
  at::Tensor gradients_;
  at::Tensor parameters_;
  std::vector<bool> last_microbatch_;  // by chunk
  std::vector<bool> ready_;            // by entry
  size_t started_ = 0;                 // buckets whose reduction has started
  std::function<void()> on_complete_;
};

/// Buffers of all parameters of a rank that are trained, one per dtype, set of replicas and optimizer rule.
/// Their buckets are reduced in one order, the same on all ranks, even if some ranks use other parameters.
///
/// Ranks find out who holds what in log2(n) rounds, without any rank that knows all (replica_agreement.h).
class ParamAndGradBuffers {
 public:
  /// `chunks`: number of parameters per pipeline chunk, in order; empty: one chunk. Collective over the mesh.
  /// UserError(config) on all ranks if none trains anything, if tied tensors differ in shape or dtype, or if
  /// ranks that sum gradients have different buckets, naming two of them.
  ParamAndGradBuffers(ParameterSet& parameters, const Mesh& mesh, const ParamAndGradBuffer::Options& options,
                      const std::vector<int64_t>& chunks = {}, const OptimizerRules& rules = {{adam_rule()}});

  // For all buffers:
  void zero_grad();
  void set_last_microbatch(int64_t chunk = 0);
  void finish_grad_sync();
  void gather_params();
  void finish_param_gather();

  auto begin() { return buffers_.begin(); }
  auto end() { return buffers_.end(); }
  /// At least one. All ranks have the same dtypes, replicas and rules in the same order.
  ParamAndGradBuffer& operator[](size_t i) { return buffers_.at(i); }
  size_t size() const { return buffers_.size(); }

 private:
  void set_reduction_order();
  void start_reductions(bool incomplete);

  std::deque<ParamAndGradBuffer> buffers_;
  std::vector<ParamAndGradBuffer*> order_;  // whose bucket is next
  size_t early_ = 0;                        // of them may start during backward
  size_t started_ = 0;
};

}  // namespace teratron
