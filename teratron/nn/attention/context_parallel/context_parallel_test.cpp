// Context-parallel attention over thread ranks against one rank, and the cut of documents.
#include "teratron/nn/attention/context_parallel/context_parallel.h"

#include <mutex>
#include <random>

#include <fmt/ranges.h>

#include "teratron/comm/host/thread_world.h"
#include "teratron/kernels/attention/merge_attention.h"
#include "teratron/nn/attention/alibi.h"
#include "teratron/nn/attention/context_parallel/partial_attention.h"
#include "teratron/nn/tokens/zigzag.h"
#include "teratron/testing/attention_reference.h"
#include "teratron/testing/fixtures.h"
#include "teratron/testing/worlds.h"

namespace teratron {
namespace {

using nlohmann::json;

Group place(int64_t rank, int64_t size) {
  return {.rank = rank, .size = size};
}

std::vector<int64_t> rows_of(const ContextCut& cut) {
  const at::Tensor rows = cut.rows_SB.select(1, 0).contiguous();
  return {rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel()};
}

TEST(Zigzag, CutsAsMegatron) {
  const json fixture = testing::read_json(testing::fixture("layout/context_parallel.json"));
  int checked = 0;
  for (const json& each : fixture["dense"]) {
    const int64_t ranks = each["cp"];
    for (int64_t rank = 0; rank < ranks; ++rank, ++checked)
      EXPECT_EQ(json(rows_of(*make_context_cut(1, each["length"], place(rank, ranks), at::kCPU))),
                each["positions_of_rank"][static_cast<size_t>(rank)]);
  }
  for (const json& each : fixture["packed"]) {
    const int64_t ranks = each["cp"];
    std::vector<int32_t> bounds;
    int32_t length = 0;
    for (const int32_t document : each["padded_lengths"]) {
      bounds.push_back(length);
      length += document;
    }
    for (int64_t rank = 0; rank < ranks; ++rank, ++checked)
      EXPECT_EQ(json(rows_of(*make_context_cut(bounds, 1, length, place(rank, ranks), at::kCPU))),
                each["indices_of_rank"][static_cast<size_t>(rank)]);
  }
  EXPECT_EQ(checked, 1 + 2 + 2 + 4 + 4 + 8 + 2 + 2 + 4);
}

std::vector<int64_t> random_lengths(std::mt19937& random, int64_t tokens) {
  std::vector<int64_t> lengths;
  for (int64_t left = tokens; left > 0; left -= lengths.back())
    lengths.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(left)));
  return lengths;
}

TEST(Zigzag, RanksShareDocumentsOfAnyLength) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 8), tokens = 2 * ranks * (1 + random() % 9);
    const std::vector<int64_t> lengths = random_lengths(random, tokens);
    SCOPED_TRACE(fmt::format("{} ranks, documents {}", ranks, fmt::join(lengths, " ")));
    std::vector<int> owners(static_cast<size_t>(tokens), 0);
    for (const auto& chunks : zigzag_chunks(lengths, ranks)) {
      int64_t held = 0, begin = 0;
      ASSERT_EQ(chunks.size(), lengths.size());
      for (size_t d = 0; d < chunks.size(); begin += lengths[d++]) {
        const auto& [a, b] = chunks[d];
        EXPECT_TRUE(begin <= a.begin && a.end <= b.begin && b.end <= begin + lengths[d]);
        const int64_t share = lengths[d] / (2 * ranks);
        for (const TokenRange& chunk : {a, b}) {
          EXPECT_TRUE(chunk.size() == share || chunk.size() == share + 1);
          for (int64_t token = chunk.begin; token < chunk.end; ++token) ++owners[static_cast<size_t>(token)];
          held += chunk.size();
        }
      }
      EXPECT_EQ(held, tokens / ranks);
    }
    EXPECT_EQ(owners, std::vector<int>(owners.size(), 1));
  }
}

struct Scene {
  int64_t ranks = 2, samples = 2, length = 32, heads = 4, groups = 4, width = 8, v_width = 0;
  at::ScalarType type = at::kDouble;
  int64_t window = 0;
  double dropout = 0.0;
  bool alibi = false;
  std::vector<std::vector<int64_t>> documents = {};  // lengths in each sample; empty: one document each

  std::vector<int32_t> bounds() const {
    std::vector<int32_t> all;
    for (int64_t b = 0, token = 0; b < samples; ++b) {
      if (documents.empty()) {
        all.push_back(static_cast<int32_t>(b * length));
        continue;
      }
      for (const int64_t document : documents[static_cast<size_t>(b)]) {
        all.push_back(static_cast<int32_t>(token));
        token += document;
      }
    }
    return all;
  }
  AttentionCase whole() const {
    AttentionCase c{.queries = length,
                    .keys = length,
                    .batch = samples,
                    .heads = heads,
                    .groups = groups,
                    .width = width,
                    .window = window,
                    .v_width = v_width};
    if (documents.empty()) return c;
    c.cu_seqlens_q = bounds();
    c.cu_seqlens_q.push_back(static_cast<int32_t>(samples * length));
    return c;
  }
  AttentionRequest request(const AttentionSample& sample) const {
    AttentionRequest request = request_of(whole(), sample, 0.4);
    request.total_heads = heads;
    if (alibi) {
      const auto options = at::TensorOptions().dtype(type == at::kDouble ? at::kDouble : at::kFloat);
      request.alibi_slopes = alibi_slopes(heads, 0, heads, options);
    }
    request.dropout = dropout;
    if (dropout > 0.0) request.dropout_key = {5, 6, at::arange(11, 11 + samples)};
    request.sequence_length = length;
    return request;
  }
};

const char* name_of(ContextParallelComm comm) {
  return comm == ContextParallelComm::p2p ? "p2p" : comm == ContextParallelComm::a2a ? "a2a" : "all_gather";
}

// Outputs and gradients of all ranks, put together.
AttentionResult run_ranks_of(const Scene& scene, const AttentionSample& sample, ContextParallelComm comm) {
  std::vector<AttentionResult> of_rank(static_cast<size_t>(scene.ranks));
  std::vector<at::Tensor> order(of_rank.size());
  run_ranks(MeshOptions{.cp = scene.ranks}, [&](const Mesh& mesh) {
    const Group& group = mesh.group(Axis::cp);
    const ContextParallel context{
        group, make_context_cut(scene.bounds(), scene.samples, scene.length, group, at::kCPU)};
    const auto own = [&](const at::Tensor& x) { return cut_tokens(x, context).detach().clone(); };
    AttentionRequest request = scene.request(sample);
    request.q_SBND = own(sample.q_SBND).requires_grad_();
    request.k_SBGD = own(sample.k_SBGD).requires_grad_();
    request.v_SBGD = own(sample.v_SBGD).requires_grad_();
    request.query_rows_S = context.cut->rows_SB;
    const at::Tensor y = context_parallel_attention(request, context, comm);
    y.backward(own(sample.dy_SBF));
    of_rank[static_cast<size_t>(group.rank)] = {y.detach(), request.q_SBND.grad(), request.k_SBGD.grad(),
                                                request.v_SBGD.grad()};
    order[static_cast<size_t>(group.rank)] = context.cut->order;
  });
  const auto joined = [&](at::Tensor AttentionResult::* part) {
    std::vector<at::Tensor> parts;
    for (const AttentionResult& each : of_rank) parts.push_back((each.*part).flatten(0, 1));
    return at::cat(parts).index_select(0, order[0]).unflatten(0, {scene.length, scene.samples});
  };
  return {joined(&AttentionResult::y_SBF), joined(&AttentionResult::dq), joined(&AttentionResult::dk),
          joined(&AttentionResult::dv)};
}

void expect_twins(const Scene& scene, ContextParallelComm comm) {
  SCOPED_TRACE(fmt::format("{}, {} ranks, window {}, dropout {}{}, bounds {}: {}", name_of(comm), scene.ranks,
                           scene.window, scene.dropout, scene.alibi ? ", alibi" : "",
                           fmt::join(scene.bounds(), " "), scene.whole().name()));
  const AttentionSample sample = random_sample(scene.whole(), scene.type);
  const AttentionResult expected = run_attention(scene.request(sample), sample.dy_SBF);
  const double bound = scene.type == at::kDouble ? 1e-12 : scene.type == at::kFloat ? 1e-5 : 2e-2;
  expect_result(run_ranks_of(scene, sample, comm), expected, bound);
}

constexpr ContextParallelComm comms[] = {ContextParallelComm::p2p, ContextParallelComm::all_gather,
                                         ContextParallelComm::a2a};

TEST(ContextParallel, EqualsOneRank) {
  for (const ContextParallelComm comm : comms) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const int64_t ranks : {2, 4}) {
        for (const int64_t groups : {4, 8})
          expect_twins({.ranks = ranks, .heads = 8, .groups = groups, .type = type}, comm);
      }
    }
  }
  expect_twins({.ranks = 3, .length = 18, .heads = 6, .groups = 3}, ContextParallelComm::a2a);
  expect_twins({.ranks = 3, .length = 18, .heads = 6, .groups = 1}, ContextParallelComm::p2p);
  expect_twins({.ranks = 5, .length = 10, .groups = 1}, ContextParallelComm::all_gather);
}

TEST(ContextParallel, TakesValuesOfAnotherWidth) {
  for (const ContextParallelComm comm : comms) {
    expect_twins({.ranks = 2, .groups = 2, .v_width = 5}, comm);
    expect_twins({.ranks = 2, .groups = 2, .v_width = 12, .documents = {{20, 12}, {3, 29}}}, comm);
  }
}

TEST(ContextParallel, KeepsDocumentsApart) {
  std::mt19937 random(5);
  for (int i = 0; i < 12; ++i) {
    Scene scene{.ranks = 2 + 2 * (i % 2), .samples = 1 + i % 3, .groups = 4};
    for (int64_t b = 0; b < scene.samples; ++b)
      scene.documents.push_back(random_lengths(random, scene.length));
    for (const ContextParallelComm comm : comms) expect_twins(scene, comm);
    scene.window = 5;
    expect_twins(scene, ContextParallelComm::all_gather);
    expect_twins(scene, ContextParallelComm::a2a);
  }
  // Documents of fewer tokens than there are chunks: some ranks have no second chunks.
  Scene tokens{.ranks = 4, .samples = 1, .length = 16, .documents = {std::vector<int64_t>(16, 1)}};
  for (const ContextParallelComm comm : comms) expect_twins(tokens, comm);
}

AttentionSample to_f64(const AttentionSample& x) {
  return {f64(x.q_SBND), f64(x.k_SBGD), f64(x.v_SBGD), f64(x.dy_SBF)};
}

// This rank's tokens, on the device under test, against those of one rank on the CPU in fp64.
void expect_own_tokens(const Scene& scene, const AttentionSample& sample, const AttentionResult& whole,
                       const Group& group) {
  const auto cut_on = [&](at::Device device) {
    return make_context_cut(scene.bounds(), scene.samples, scene.length, group, device);
  };
  const ContextParallel context{group, cut_on(to_test_device(at::empty({0})).device())},
      on_cpu{group, cut_on(at::kCPU)};
  const auto own = [&](const at::Tensor& x) { return cut_tokens(x, on_cpu).detach(); };
  const auto own_leaf = [&](const at::Tensor& x) { return to_test_device(own(x).clone()).requires_grad_(); };
  AttentionRequest request = scene.request(sample);
  request.q_SBND = own_leaf(sample.q_SBND);
  request.k_SBGD = own_leaf(sample.k_SBGD);
  request.v_SBGD = own_leaf(sample.v_SBGD);
  request.query_rows_S = context.cut->rows_SB;
  const at::Tensor y = context_parallel_attention(request, context, ContextParallelComm::p2p);
  y.backward(to_test_device(own(sample.dy_SBF)));
  expect_result({y, request.q_SBND.grad(), request.k_SBGD.grad(), request.v_SBGD.grad()},
                {own(whole.y_SBF), own(whole.dq), own(whole.dk), own(whole.dv)},
                scene.type == at::kFloat ? 1e-5 : 2e-2);
}

TEST(WorldsContextParallel, BlocksOfOtherRanksGiveTheResultsOfOne) {
  at::manual_seed(7);  // in every process of a launched job
  const std::vector<std::vector<std::vector<int64_t>>> documents = {
      {}, {{13, 83}, {1, 2, 93}}, {std::vector<int64_t>(96, 1), {96}}};
  for (const int64_t ranks : test_sizes()) {
    if (ranks == 1) continue;
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
      for (const auto& each : documents) {
        const Scene scene{
            .ranks = ranks, .length = 96, .groups = 2, .width = 64, .type = type, .documents = each};
        SCOPED_TRACE(fmt::format("{} ranks, {}, bounds {}", ranks, at::toString(type),
                                 fmt::join(scene.bounds(), " ")));
        const AttentionSample sample = random_sample(scene.whole(), type), wide = to_f64(sample);
        const AttentionResult whole = run_attention(scene.request(wide), wide.dy_SBF);
        on_worlds({.cp = ranks},
                  [&](const Mesh& mesh) { expect_own_tokens(scene, sample, whole, mesh.group(Axis::cp)); });
      }
    }
  }
}

TEST(ContextParallel, WindowsDropoutAndAlibi) {
  for (const ContextParallelComm comm : comms) {
    for (const bool documents : {false, true}) {
      Scene scene{.ranks = 4};
      if (documents) scene.documents = {{13, 19}, {1, 2, 29}};
      Scene dropped = scene, biased = scene, windowed = scene;
      dropped.dropout = 0.3;
      expect_twins(dropped, comm);
      biased.alibi = true;
      expect_twins(biased, comm);
      if (comm == ContextParallelComm::p2p) continue;
      for (windowed.window = 2; windowed.window < 32; windowed.window += 10) expect_twins(windowed, comm);
    }
  }
}

TEST(PartialAttention, MergesParts) {
  const AttentionCase c{.queries = 12, .keys = 40, .batch = 2, .heads = 4, .groups = 2, .mask = Mask::full};
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const AttentionSample sample = random_sample(c, type);
    const AttentionRequest request = request_of(c, sample, 0.4);
    AttentionMerge merge(sample.q_SBND);
    for (int64_t first = 0; first < 40; first += 8) {  // more parts than one pass takes
      AttentionRequest part = request;
      part.k_SBGD = request.k_SBGD.narrow(0, first, 8);
      part.v_SBGD = request.v_SBGD.narrow(0, first, 8);
      const PartialAttention partial = partial_attention(part);
      merge.add({partial.y_SBND, partial.logsumexp_BNS});
    }
    const double bound = type == at::kDouble ? 1e-13 : type == at::kFloat ? 1e-5 : 1e-2;
    EXPECT_LT(relative_error(merge.result().y_SBND.flatten(2), attention(request)), bound);
  }
}

TEST(PartialAttention, QueriesWithoutKeysGiveZero) {
  const at::Tensor q = at::randn({3, 1, 2, 4});
  const at::Tensor none = at::full({1, 2, 3}, -INFINITY), nan = at::full({3, 1, 2, 4}, NAN);
  AttentionMerge merge(q);
  merge.add({nan, none});
  merge.add({nan, -none});
  const AttentionPart whole = merge.result();
  EXPECT_TRUE(at::equal(whole.y_SBND, at::zeros_like(q)));
  EXPECT_TRUE(at::equal(whole.logsumexp_BNS, none));
  merge.add({q, at::zeros({1, 2, 3})});
  EXPECT_TRUE(at::equal(merge.result().y_SBND, q));
}

}  // namespace
}  // namespace teratron
