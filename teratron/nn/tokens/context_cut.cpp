#include "teratron/nn/tokens/context_cut.h"

#include <algorithm>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "teratron/base/error.h"
#include "teratron/comm/collectives.h"
#include "teratron/nn/tokens/zigzag.h"

namespace teratron {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of a permutation, whose backward is another gather instead of a sum.
struct PermuteRows : torch::autograd::Function<PermuteRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& order,
                            const at::Tensor& inverse) {
    context->save_for_backward({inverse});
    return x.index_select(0, order);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor inverse = context->get_saved_variables()[0];
    return {gradients[0].index_select(0, inverse), at::Tensor(), at::Tensor()};
  }
};

template <typename T>
at::Tensor on_device(const std::vector<T>& values, at::Device device) {
  const at::ScalarType type = sizeof(T) == sizeof(int64_t) ? at::kLong : at::kInt;
  const at::Tensor host = at::tensor(values, at::TensorOptions().dtype(type));
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

// Documents of one sample after the other, with their chunks by rank.
struct Documents {
  std::vector<std::vector<ZigzagChunks>> of_rank;
  std::vector<int64_t> lengths;
};

std::vector<Documents> documents_of(std::span<const int32_t> bounds, int64_t samples, int64_t length,
                                    int64_t ranks) {
  std::vector<Documents> all(static_cast<size_t>(samples));
  for (size_t i = 0; i < bounds.size(); ++i) {
    const int64_t sample = bounds[i] / length, end = i + 1 < bounds.size() ? bounds[i + 1] : samples * length;
    TERATRON_ASSERT(end <= (sample + 1) * length && sample < samples, "a document spans two samples");
    all[static_cast<size_t>(sample)].lengths.push_back(end - bounds[i]);
  }
  for (Documents& sample : all) sample.of_rank = zigzag_chunks(sample.lengths, ranks);
  return all;
}

// Indices and bounds on the host.
struct PartTables {
  std::vector<int64_t> first, second;
  std::vector<int32_t> cu_first = {0}, cu_second = {0}, cu_seqlens = {0};
  int64_t longest = 0;

  void add(const ZigzagChunks& chunks) {
    const auto append = [](std::vector<int64_t>& indices, int64_t begin, int64_t count) {
      for (int64_t i = 0; i < count; ++i) indices.push_back(begin + i);
    };
    const int64_t begin = cu_seqlens.back(), a = chunks.first.size(), b = chunks.second.size();
    append(first, begin, a);
    append(second, begin + a, b);
    cu_first.push_back(static_cast<int32_t>(first.size()));
    cu_second.push_back(static_cast<int32_t>(second.size()));
    cu_seqlens.push_back(static_cast<int32_t>(begin + a + b));
    longest = std::max(longest, a + b);
  }
};

// Segments of a rank's queries over all keys. A document has three: its first chunk, its second, and the keys
// that neither needs.
Segments segments_over_all(const std::vector<Documents>& samples, int64_t rank, bool first,
                           at::Device device) {
  std::vector<int32_t> queries = {0}, keys = {0};
  int64_t document = 0;  // its first key
  for (const Documents& sample : samples) {
    const std::vector<ZigzagChunks>& chunks = sample.of_rank[static_cast<size_t>(rank)];
    const int64_t sample_begin = document;
    for (size_t d = 0; d < chunks.size(); ++d) {
      const auto& [a, b] = chunks[d];
      const int64_t begin = queries.back(), end = document + sample.lengths[d];
      const int64_t after_a = first ? sample_begin + a.end : document;
      const int64_t after_b = first ? after_a : sample_begin + b.end;
      for (const int64_t q : {begin + a.size(), begin + a.size() + b.size(), begin + a.size() + b.size()})
        queries.push_back(static_cast<int32_t>(q));
      for (const int64_t k : {after_a, after_b, end}) keys.push_back(static_cast<int32_t>(k));
      document = end;
    }
  }
  return {on_device(queries, device), on_device(keys, device)};
}

std::vector<int64_t> inverse_of(const std::vector<int64_t>& permutation) {
  std::vector<int64_t> inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i)
    inverse[static_cast<size_t>(permutation[i])] = static_cast<int64_t>(i);
  return inverse;
}

// `order`: see ContextCut; parts have equal numbers of its tokens.
void add_moves(const std::vector<int64_t>& order, const Group& group, at::Device device, ContextCut& cut) {
  const auto ranks = static_cast<size_t>(group.size), own = order.size() / ranks;
  const auto me = static_cast<size_t>(group.rank);
  TokenMove move{.sent = std::vector<int64_t>(ranks, 0), .received = std::vector<int64_t>(ranks, 0)};
  std::vector<int64_t> sent_rows, received_rows;
  for (size_t token = 0; token < order.size(); ++token) {
    const size_t place = static_cast<size_t>(order[token]), holder = place / own, part = token / own;
    if (holder == me) sent_rows.push_back(static_cast<int64_t>(place % own)), ++move.sent[part];
    if (part == me) ++move.received[holder];
  }
  std::vector<int64_t> next(ranks, 0);
  std::exclusive_scan(move.received.begin(), move.received.end(), next.begin(), int64_t{0});
  for (size_t token = me * own; token < (me + 1) * own; ++token)
    received_rows.push_back(next[static_cast<size_t>(order[token]) / own]++);
  TokenMove back{.sent = move.received, .received = move.sent};
  back.sent_rows = on_device(inverse_of(received_rows), device);
  back.received_rows = on_device(inverse_of(sent_rows), device);
  move.sent_rows = on_device(sent_rows, device);
  move.received_rows = on_device(received_rows, device);
  cut.to_contiguous = std::move(move);
  cut.from_contiguous = std::move(back);
}

}  // namespace

std::shared_ptr<const ContextCut> make_context_cut(std::span<const int32_t> bounds, int64_t samples,
                                                   int64_t length, const Group& group, at::Device device) {
  const std::vector<Documents> all = documents_of(bounds, samples, length, group.size);
  const int64_t own = length / group.size;
  auto cut = std::make_shared<ContextCut>();
  cut->whole_samples = std::ssize(bounds) == samples;
  std::vector<int64_t> rows(static_cast<size_t>(own * samples)), order(static_cast<size_t>(length * samples)),
      inverse(order.size());
  for (int64_t rank = 0; rank < group.size; ++rank) {
    PartTables tables;
    for (int64_t b = 0; b < samples; ++b) {
      int64_t s = 0;
      const auto add = [&](const TokenRange& chunk) {
        for (int64_t token = chunk.begin; token < chunk.end; ++token, ++s) {
          const int64_t place = (rank * own + s) * samples + b, global = token * samples + b;
          order[static_cast<size_t>(global)] = place;
          inverse[static_cast<size_t>(place)] = global;
          if (rank == group.rank) rows[static_cast<size_t>(s * samples + b)] = token;
        }
      };
      for (const ZigzagChunks& chunks : all[static_cast<size_t>(b)].of_rank[static_cast<size_t>(rank)]) {
        tables.add(chunks);
        add(chunks.first);
        add(chunks.second);
      }
    }
    cut->longest = std::max(cut->longest, tables.longest);
    cut->parts.push_back({.first = on_device(tables.first, device),
                          .second = on_device(tables.second, device),
                          .cu_first = on_device(tables.cu_first, device),
                          .cu_second = on_device(tables.cu_second, device),
                          .cu_seqlens = on_device(tables.cu_seqlens, device),
                          .first_count = std::ssize(tables.first),
                          .second_count = std::ssize(tables.second)});
  }
  add_moves(order, group, device, *cut);
  cut->rows_SB = on_device(rows, device).view({own, samples});
  cut->order = on_device(order, device);
  cut->inverse_order = on_device(inverse, device);
  std::vector<int32_t> documents(bounds.begin(), bounds.end());
  documents.push_back(static_cast<int32_t>(samples * length));
  cut->cu_documents = on_device(documents, device);
  cut->first_over_all = segments_over_all(all, group.rank, /*first=*/true, device);
  cut->second_over_all = segments_over_all(all, group.rank, /*first=*/false, device);
  return cut;
}

std::shared_ptr<const ContextCut> make_context_cut(int64_t samples, int64_t length, const Group& group,
                                                   at::Device device) {
  std::vector<int32_t> bounds;
  for (int64_t b = 0; b < samples; ++b) bounds.push_back(static_cast<int32_t>(b * length));
  return make_context_cut(bounds, samples, length, group, device);
}

// A rank has chunks `rank` and 2 R - 1 - rank of a sample's 2 R.
at::Tensor bounds_on_rank(const at::Tensor& cu_seqlens, int64_t length, const Group& group, int64_t rank) {
  const int64_t chunk = length / (2 * group.size);
  const at::Tensor sample = at::floor_divide(cu_seqlens, length), token = cu_seqlens - sample * length;
  const auto before = [&](int64_t number) { return (token - number * chunk).clamp(0, chunk); };
  return (sample * (2 * chunk) + before(rank) + before(2 * group.size - 1 - rank)).to(at::kInt).contiguous();
}

at::Tensor cut_tokens(const at::Tensor& x_SB, const ContextParallel& context) {
  if (context.size() == 1) return x_SB;
  const at::Tensor& rows_SB = context.cut->rows_SB;
  if (context.cut->whole_samples) return x_SB.index_select(0, rows_SB.select(1, 0));
  const at::Tensor sample_B = at::arange(rows_SB.size(1), rows_SB.options());
  return x_SB.flatten(0, 1)
      .index_select(0, (rows_SB * rows_SB.size(1) + sample_B).flatten())
      .unflatten(0, rows_SB.sizes());
}

at::Tensor permute_tokens(const at::Tensor& x_SB, const at::Tensor& order, const at::Tensor& inverse) {
  return PermuteRows::apply(x_SB.flatten(0, 1), order, inverse).unflatten(0, {-1, x_SB.size(1)});
}

at::Tensor gather_tokens(const at::Tensor& x_SB, const ContextParallel& context) {
  return context.size() == 1 ? x_SB
                             : permute_tokens(all_gather(x_SB, 0, context.group), context.cut->order,
                                              context.cut->inverse_order);
}

}  // namespace teratron
