#include "teratron/nn/attention/context_parallel/ring_attention.h"

#include <utility>

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/merge_attention.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/attention/context_parallel/merged_attention.h"

namespace teratron {

namespace {

enum class Chunks : uint8_t { all, first, second };  // chunks of each document

// What a rank does in a step.
struct RingStep {
  int64_t source = 0;       // whose keys and values it attends to
  int64_t destination = 0;  // the rank that attends to this rank's
  Chunks queries = Chunks::all;
  Chunks keys = Chunks::all;  // of the source
  Chunks sent = Chunks::all;  // to the destination
};

// Tensors of tokens are [S, B, ...] where every sample is one document, else [T, 1, ...], sample by sample.
class RingLayout {
 public:
  // `segments`: of whole samples without a causal mask; else the cut has them.
  RingLayout(const ContextParallel& context, int64_t rows, Mask mask, const Segments& segments)
      : context_(context), rows_(rows), mask_(mask) {
    if (mask == Mask::causal || !segments.defined() || !whole_samples()) return;
    for (int64_t rank = 0; rank < group().size; ++rank)
      bounds_.push_back(bounds_on_rank(segments.cu_seqlens_q, rows * group().size, group(), rank));
  }

  int64_t rows() const { return rows_; }
  int64_t steps() const { return context_.group.size; }
  const Group& group() const { return context_.group; }

  RingStep step(int64_t i) const {
    const int64_t rank = group().rank, ranks = group().size;
    RingStep step{.source = (rank + ranks - i) % ranks, .destination = (rank + i) % ranks};
    if (mask_ == Mask::full) return step;
    if (step.source > rank) step.queries = Chunks::second;
    if (step.source < rank) step.keys = Chunks::first;
    if (step.destination > rank) step.sent = Chunks::first;
    return step;
  }

  int64_t count(Chunks chunks, int64_t rank) const {
    if (chunks == Chunks::all) return rows_;
    if (whole_samples()) return rows_ / 2;
    return chunks == Chunks::first ? part(rank).first_count : part(rank).second_count;
  }

  // The part of this rank's tokens.
  at::Tensor take(const at::Tensor& x, Chunks chunks) const {
    if (chunks == Chunks::all) return x;
    if (!whole_samples()) return x.index_select(0, index(chunks));
    return x.narrow(0, chunks == Chunks::first ? 0 : rows_ / 2, rows_ / 2);
  }

  // sum[chunks] += x.
  void add(const at::Tensor& sum, const at::Tensor& x, Chunks chunks) const {
    if (chunks == Chunks::all || whole_samples()) {
      take(sum, chunks).add_(x);
    } else {
      sum.index_add_(0, index(chunks), x.to(sum.scalar_type()));
    }
  }

  AttentionPart merged_part(const PartialAttention& part, Chunks chunks) const {
    if (chunks == Chunks::all) return {part.y_SBND, part.logsumexp_BNS, 0};
    if (whole_samples()) return {part.y_SBND, part.logsumexp_BNS, chunks == Chunks::first ? 0 : rows_ / 2};
    std::vector<int64_t> sizes = part.y_SBND.sizes().vec();
    sizes[0] = rows_;
    const at::Tensor y = at::zeros(sizes, part.y_SBND.options());
    const at::Tensor logsumexp =
        at::full({sizes[1], sizes[2], sizes[0]}, -INFINITY, part.logsumexp_BNS.options());
    return {y.index_copy_(0, index(chunks), part.y_SBND),
            logsumexp.index_copy_(2, index(chunks), part.logsumexp_BNS), 0};
  }

  Mask mask(const RingStep& step) const { return step.source == group().rank ? mask_ : Mask::full; }
  Segments segments(const RingStep& step) const {
    if (!bounds_.empty())
      return {bounds_[static_cast<size_t>(group().rank)], bounds_[static_cast<size_t>(step.source)]};
    if (whole_samples()) return {};
    return {bounds(step.queries, group().rank), bounds(step.keys, step.source)};
  }
  // Whether take() returns views.
  bool takes_views() const { return whole_samples(); }
  int64_t longest() const { return whole_samples() ? 0 : context_.cut->longest; }

 private:
  bool whole_samples() const { return context_.cut->whole_samples; }
  const ContextCut::Part& part(int64_t rank) const { return context_.cut->parts[static_cast<size_t>(rank)]; }
  const at::Tensor& index(Chunks chunks) const {
    return chunks == Chunks::first ? part(group().rank).first : part(group().rank).second;
  }
  const at::Tensor& bounds(Chunks chunks, int64_t rank) const {
    const ContextCut::Part& part = this->part(rank);
    return chunks == Chunks::all ? part.cu_seqlens : chunks == Chunks::first ? part.cu_first : part.cu_second;
  }

  ContextParallel context_;
  int64_t rows_;  // of a rank
  Mask mask_;
  std::vector<at::Tensor> bounds_;  // of segments on each rank; empty: none, or those of the cut
};

struct KeysValues {
  at::Tensor k, v;
};

// Keys and values, or their gradients, travel as one tensor [S, 2, B, G, D], in which those of some tokens
// are contiguous.
KeysValues parts_of(const at::Tensor& kv) {
  return {kv.select(1, 0), kv.select(1, 1)};
}

void copy_unless_same(const at::Tensor& to, const at::Tensor& from) {
  if (!from.is_same(to)) to.copy_(from);
}

// A block that is under way.
struct Arriving {
  at::Tensor kv;
  Work work;
};

// Sends to the rank `distance` further; `rows` arrive.
Arriving shift(const RingLayout& layout, const at::Tensor& sent_kv, int64_t rows, int64_t distance) {
  Communicator& communicator = *layout.group().communicator;
  std::vector<int64_t> sizes = sent_kv.sizes().vec();
  sizes[0] = layout.rows();  // on all ranks, whatever arrives
  const at::Tensor received = communicator.alloc_symmetric(sizes, sent_kv.options()).narrow(0, 0, rows);
  return {received, communicator.shift({{received, sent_kv, distance}})};
}

// The keys and values of each step in turn, fetched during the step before.
class ArrivingKeys {
 public:
  ArrivingKeys(const RingLayout& layout, const KeysValues& own)
      : layout_(layout), own_(own), sent_kv_(at::stack({own.k, own.v}, 1)) {
    fetch(1);
  }

  KeysValues of_step(int64_t i) {
    if (i == 0) return own_;
    Arriving arrived = std::exchange(next_, {});
    arrived.work.wait();
    if (i + 1 < layout_.steps()) fetch(i + 1);
    return parts_of(arrived.kv);
  }

 private:
  // And sends this rank's to the one that attends to them in that step.
  void fetch(int64_t i) {
    const RingStep step = layout_.step(i);
    next_ = shift(layout_, layout_.take(sent_kv_, step.sent), layout_.count(step.keys, step.source), i);
  }

  const RingLayout& layout_;
  KeysValues own_;
  at::Tensor sent_kv_;
  Arriving next_;
};

struct RingState final : MergedAttention {
  RingState(RingLayout layout_, AttentionRequest request_)
      : layout(std::move(layout_)), request(std::move(request_)) {}
  PartialAttention forward(const QueryKeyValue& qkv) const override;
  QueryKeyValue backward(const QueryKeyValue& qkv, const PartialAttention& whole,
                         const at::Tensor& dy_SBND) const override;

  RingLayout layout;
  AttentionRequest request;  // without tensors

  AttentionRequest block(const RingStep& step, const at::Tensor& q, const KeysValues& keys) const {
    AttentionRequest block = request;
    block.q_SBND = layout.take(q, step.queries);
    block.k_SBGD = keys.k;
    block.v_SBGD = keys.v;
    block.mask = layout.mask(step);
    block.segments = layout.segments(step);
    block.longest_segment = layout.longest();
    return block;
  }
};

// A query or a key is missing: there is nothing to compute.
bool has_no_pairs(const AttentionRequest& block) {
  return block.q_SBND.numel() == 0 || block.k_SBGD.numel() == 0;
}

PartialAttention ring_forward(const RingState& state, const at::Tensor& q, const KeysValues& own) {
  const RingLayout& layout = state.layout;
  AttentionMerge merge(q);
  ArrivingKeys keys(layout, own);
  for (int64_t i = 0; i < layout.steps(); ++i) {
    const RingStep step = layout.step(i);
    const AttentionRequest block = state.block(step, q, keys.of_step(i));
    if (!has_no_pairs(block)) merge.add(layout.merged_part(partial_attention(block), step.queries));
  }
  const AttentionPart whole = merge.result();
  return {whole.y_SBND, whole.logsumexp_BNS};
}

// Sum of a gradient over the blocks, rounded once. Two summands, as two ranks have, need no fp32 copy.
class GradientSum {
 public:
  GradientSum(const RingLayout& layout, at::Tensor out) : layout_(layout), out_(std::move(out)) {}

  // The first has all tokens, and may be `out`.
  void add(const at::Tensor& x, Chunks chunks) {
    if (!first_.defined()) {
      first_ = x;
    } else if (!second_.defined() && !sum_.defined() && layout_.takes_views()) {
      second_ = x;
      second_chunks_ = chunks;
    } else {
      widen();
      layout_.add(sum_, x, chunks);
    }
  }

  void write() const {
    copy_unless_same(out_, sum_.defined() ? sum_ : first_);
    if (!second_.defined()) return;
    at::Tensor rows = layout_.take(out_, second_chunks_);
    at::add_out(rows, layout_.take(first_, second_chunks_), second_);
  }

 private:
  void widen() {
    const bool is_double = first_.scalar_type() == at::kDouble;
    if (!sum_.defined())
      sum_ = first_.to(is_double ? at::kDouble : at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (second_.defined()) layout_.add(sum_, second_, second_chunks_);
    second_ = at::Tensor();
  }

  const RingLayout& layout_;
  at::Tensor out_, first_, second_, sum_;
  Chunks second_chunks_ = Chunks::all;
};

PartialAttention rows_of(const RingLayout& layout, const PartialAttention& whole, Chunks chunks) {
  if (chunks == Chunks::all) return whole;
  const at::Tensor logsumexp_SBN = layout.take(whole.logsumexp_BNS.permute({2, 0, 1}), chunks);
  return {layout.take(whole.y_SBND, chunks), logsumexp_SBN.permute({1, 2, 0}).contiguous()};
}

// The gradients of one backward.
class RingBackward {
 public:
  RingBackward(const RingState& state, const QueryKeyValue& qkv, const PartialAttention& whole,
               const at::Tensor& dy)
      : state_(state), qkv_(qkv), whole_(whole), dy_(dy) {}

  QueryKeyValue run() {
    ArrivingKeys keys(layout_, {qkv_.k_SBGD, qkv_.v_SBGD});
    add_own(keys.of_step(0));
    for (int64_t i = 1; i < layout_.steps(); ++i) {
      const at::Tensor kv = of_block(layout_.step(i), keys.of_step(i));
      if (i > 1) add_returned(i - 1);
      returned_ = shift(layout_, kv, layout_.count(layout_.step(i).sent, layout_.group().rank), -i);
    }
    q_.write();  // while the last block returns
    add_returned(layout_.steps() - 1);
    k_.write();
    v_.write();
    return gradients_;
  }

 private:
  void add_own(const KeysValues& keys) {
    const RingStep step = layout_.step(0);
    const QueryKeyValue d =
        partial_attention_backward(state_.block(step, qkv_.q_SBND, keys), whole_, dy_, gradients_);
    q_.add(d.q_SBND, Chunks::all);
    k_.add(d.k_SBGD, Chunks::all);
    v_.add(d.v_SBGD, Chunks::all);
  }

  // Adds the gradient of queries, and returns that of the source's keys and values.
  at::Tensor of_block(const RingStep& step, const KeysValues& keys) {
    const AttentionRequest block = state_.block(step, qkv_.q_SBND, keys);
    std::vector<int64_t> sizes = keys.k.sizes().vec();
    sizes.insert(sizes.begin() + 1, 2);
    if (has_no_pairs(block)) return at::zeros(sizes, keys.k.options());
    const at::Tensor kv = at::empty(sizes, keys.k.options());
    const KeysValues parts = parts_of(kv);
    const QueryKeyValue d =
        partial_attention_backward(block, rows_of(layout_, whole_, step.queries),
                                   layout_.take(dy_, step.queries), {at::Tensor(), parts.k, parts.v});
    q_.add(d.q_SBND, step.queries);
    copy_unless_same(parts.k, d.k_SBGD);
    copy_unless_same(parts.v, d.v_SBGD);
    return kv;
  }

  // What the rank that attended to this rank's keys in the step has sent.
  void add_returned(int64_t i) {
    Arriving returned = std::exchange(returned_, {});
    returned.work.wait();
    if (returned.kv.numel() == 0) return;
    const KeysValues parts = parts_of(returned.kv);
    k_.add(parts.k, layout_.step(i).sent);
    v_.add(parts.v, layout_.step(i).sent);
  }

  const RingState& state_;
  const RingLayout& layout_ = state_.layout;
  const QueryKeyValue& qkv_;
  const PartialAttention& whole_;
  const at::Tensor& dy_;
  const QueryKeyValue gradients_ = empty_gradients(qkv_);
  GradientSum q_{layout_, gradients_.q_SBND}, k_{layout_, gradients_.k_SBGD}, v_{layout_, gradients_.v_SBGD};
  Arriving returned_;
};

PartialAttention RingState::forward(const QueryKeyValue& qkv) const {
  return ring_forward(*this, qkv.q_SBND, {qkv.k_SBGD, qkv.v_SBGD});
}

QueryKeyValue RingState::backward(const QueryKeyValue& qkv, const PartialAttention& whole,
                                  const at::Tensor& dy_SBND) const {
  return RingBackward(*this, qkv, whole, dy_SBND).run();
}

// [S, B, ...] as [B S, 1, ...], sample by sample.
at::Tensor in_one_row(const at::Tensor& x_SB) {
  return x_SB.transpose(0, 1).flatten(0, 1).unsqueeze(1);
}

}  // namespace

at::Tensor ring_attention(const AttentionRequest& request, const ContextParallel& context) {
  const int64_t samples = request.q_SBND.size(1);
  const bool whole = context.cut->whole_samples;
  const auto arranged = [&](const at::Tensor& x_SB) { return whole ? x_SB : in_one_row(x_SB); };
  const at::Tensor q = arranged(request.q_SBND);
  const at::Tensor y = merged_attention(
      {q, arranged(request.k_SBGD), arranged(request.v_SBGD)},
      c10::make_intrusive<RingState>(RingLayout(context, q.size(0), request.mask, request.segments),
                                     without_tensors(request)),
      request.sinks_N);
  return whole ? y : y.squeeze(1).unflatten(0, {samples, -1}).transpose(0, 1);
}

}  // namespace teratron
