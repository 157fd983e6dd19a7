#include "teratron/nn/context_parallel/ring_attention.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"
#include "teratron/kernels/attention/merge_attention.h"
#include "teratron/nn/attention/backend.h"
#include "teratron/nn/context_parallel/merged_attention.h"

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
  RingLayout(const ContextParallel& context, int64_t rows) : context_(context), rows_(rows) {}

  int64_t steps() const { return context_.group.size; }
  const Group& group() const { return context_.group; }

  RingStep step(int64_t i) const {
    const int64_t rank = group().rank, ranks = group().size;
    RingStep step{.source = (rank + ranks - i) % ranks, .destination = (rank + i) % ranks};
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

  // Of this rank's tokens.
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

  Segments segments(const RingStep& step) const {
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
};

struct KeysValues {
  at::Tensor k, v;
};

// Messages of a step that are under way.
struct Messages {
  KeysValues received;
  Work work;
};

Messages send_and_receive(const RingLayout& layout, const KeysValues& sent, int64_t to, KeysValues received,
                          int64_t from) {
  std::vector<P2POp> ops;
  for (const at::Tensor& x : {sent.k, sent.v}) {
    if (x.numel() > 0) ops.push_back({.tensor = x.contiguous(), .peer = to, .send = true});
  }
  for (const at::Tensor& x : {received.k, received.v}) {
    if (x.numel() > 0) ops.push_back({.tensor = x, .peer = from, .send = false});
  }
  return {std::move(received), layout.group().communicator->batch_isend_irecv(std::move(ops))};
}

at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

// Sends this rank's keys and values to the one that attends to them in the step. `own` are contiguous.
Messages fetch_keys(const RingLayout& layout, const KeysValues& own, const RingStep& step) {
  const int64_t rows = layout.count(step.keys, step.source);
  return send_and_receive(layout, {layout.take(own.k, step.sent), layout.take(own.v, step.sent)},
                          step.destination, {empty_rows(own.k, rows), empty_rows(own.v, rows)}, step.source);
}

// The keys and values of each step in turn, fetched during the step before.
class ArrivingKeys {
 public:
  ArrivingKeys(const RingLayout& layout, const KeysValues& own)
      : layout_(layout),
        own_(own),
        sent_{own.k.contiguous(), own.v.contiguous()},
        next_(fetch_keys(layout, sent_, layout.step(1))) {}

  KeysValues of_step(int64_t i) {
    if (i == 0) return own_;
    next_.work.wait();
    const KeysValues keys = next_.received;
    if (i + 1 < layout_.steps()) next_ = fetch_keys(layout_, sent_, layout_.step(i + 1));
    return keys;
  }

 private:
  const RingLayout& layout_;
  KeysValues own_, sent_;
  Messages next_;
};

// Sends gradients of the source's keys and values to it.
Messages return_gradients(const RingLayout& layout, const KeysValues& gradients, const RingStep& step) {
  const int64_t rows = layout.count(step.sent, layout.group().rank);
  return send_and_receive(layout, gradients, step.source,
                          {empty_rows(gradients.k, rows), empty_rows(gradients.v, rows)}, step.destination);
}

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
    block.mask = step.source == layout.group().rank ? Mask::causal : Mask::full;
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
  explicit GradientSum(const RingLayout& layout) : layout_(layout) {}

  // The first has all tokens.
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

  void write(const at::Tensor& out) const {
    out.copy_(sum_.defined() ? sum_ : first_);
    if (!second_.defined()) return;
    at::Tensor rows = layout_.take(out, second_chunks_);
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
  at::Tensor first_, second_, sum_;
  Chunks second_chunks_ = Chunks::all;
};

struct GradientSums {
  GradientSum q, k, v;
};

void add_returned(GradientSums& sums, Messages& returned, Chunks chunks) {
  returned.work.wait();
  if (returned.received.k.numel() == 0) return;
  sums.k.add(returned.received.k, chunks);
  sums.v.add(returned.received.v, chunks);
}

PartialAttention rows_of(const RingLayout& layout, const PartialAttention& whole, Chunks chunks) {
  if (chunks == Chunks::all) return whole;
  const at::Tensor logsumexp_SBN = layout.take(whole.logsumexp_BNS.permute({2, 0, 1}), chunks);
  return {layout.take(whole.y_SBND, chunks), logsumexp_SBN.permute({1, 2, 0}).contiguous()};
}

QueryKeyValue ring_backward(const RingState& state, const QueryKeyValue& qkv, const PartialAttention& whole,
                            const at::Tensor& dy) {
  const RingLayout& layout = state.layout;
  const at::ScalarType type = qkv.k_SBGD.scalar_type();  // on CPUs parts may be wider
  GradientSums sums{GradientSum(layout), GradientSum(layout), GradientSum(layout)};
  ArrivingKeys keys(layout, {qkv.k_SBGD, qkv.v_SBGD});
  Messages returned;
  for (int64_t i = 0; i < layout.steps(); ++i) {
    const RingStep step = layout.step(i);
    const AttentionRequest block = state.block(step, qkv.q_SBND, keys.of_step(i));
    const QueryKeyValue d = has_no_pairs(block)
                                ? QueryKeyValue{at::zeros_like(block.q_SBND), at::zeros_like(block.k_SBGD),
                                                at::zeros_like(block.v_SBGD)}
                                : partial_attention_backward(block, rows_of(layout, whole, step.queries),
                                                             layout.take(dy, step.queries));
    sums.q.add(d.q_SBND, step.queries);
    if (i == 0) {
      sums.k.add(d.k_SBGD, Chunks::all);
      sums.v.add(d.v_SBGD, Chunks::all);
      continue;
    }
    if (i > 1) add_returned(sums, returned, layout.step(i - 1).sent);
    returned = return_gradients(layout, {d.k_SBGD.to(type), d.v_SBGD.to(type)}, step);
  }
  add_returned(sums, returned, layout.step(layout.steps() - 1).sent);
  const QueryKeyValue gradients = empty_gradients(qkv);
  sums.q.write(gradients.q_SBND);
  sums.k.write(gradients.k_SBGD);
  sums.v.write(gradients.v_SBGD);
  return gradients;
}

PartialAttention RingState::forward(const QueryKeyValue& qkv) const {
  return ring_forward(*this, qkv.q_SBND, {qkv.k_SBGD, qkv.v_SBGD});
}

QueryKeyValue RingState::backward(const QueryKeyValue& qkv, const PartialAttention& whole,
                                  const at::Tensor& dy_SBND) const {
  return ring_backward(*this, qkv, whole, dy_SBND);
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
      c10::make_intrusive<RingState>(RingLayout(context, q.size(0)), without_tensors(request)));
  return whole ? y : y.squeeze(1).unflatten(0, {samples, -1}).transpose(0, 1);
}

}  // namespace teratron
