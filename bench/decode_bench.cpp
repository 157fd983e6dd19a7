// decode_bench: time, GB/s and fraction of the copy bandwidth of the kernels of a decoding step. The L2 cache
// is flushed before each run; median of 50. Launches from the host are part of the shortest times.
#include "bench/gpu_bench.h"

#include "teratron/kernels/attention/paged_decode.h"
#include "teratron/kernels/gemm/gemm.h"
#include "teratron/kernels/sampling/choose_tokens.h"

namespace teratron {
namespace {

// The kernels of a decoding step of Llama-3-8B and GPT2-124M: GEMMs of few rows, beside cuBLASLt's, and
// attention over pages.
void bench_decode_gemms(Bench& bench) {
  for (const auto& [out, in] : {std::array<int64_t, 2>{6144, 4096},
                                {4096, 4096},
                                {28672, 4096},
                                {4096, 14336},
                                {128256, 4096},
                                {2304, 768},
                                {768, 768},
                                {3072, 768},
                                {768, 3072},
                                {50304, 768}}) {
    const at::Tensor w = device_randn({out, in}), wt = w.t();
    for (const int64_t rows : {1, 4, 8, 16, 32}) {
      const at::Tensor x = device_randn({rows, in}), y = device_randn({rows, out});
      const double bytes = 2.0 * static_cast<double>(w.numel() + x.numel() + y.numel());
      const std::string name = fmt::format("{} rows, {} to {}", rows, in, out);
      bench.report(name, bytes, [&] { linear_forward(x, w, {}, y); });
      bench.report(name + ", cuBLAS", bytes, [&] { at::mm_out(const_cast<at::Tensor&>(y), x, wt); });
    }
  }
}

void bench_paged_decode(Bench& bench) {
  constexpr int64_t page_size = 16, pages_per_row = 64;
  for (const auto& [rows, groups, queries, channels] :
       {std::array<int64_t, 4>{1, 8, 4, 128}, {32, 8, 4, 128}, {1, 12, 1, 64}, {32, 12, 1, 64}}) {
    for (const int64_t length : {640, 1000}) {
      const auto options = at::device(at::kCUDA);
      const at::Tensor qkv = device_randn({rows, groups, queries + 2, channels});
      const at::Tensor pages = device_randn({(rows * pages_per_row + 1) * page_size, groups, channels});
      const at::Tensor table = at::arange(1, rows * pages_per_row + 1, options.dtype(at::kInt));
      const PagedDecodeInputs inputs{.q_RGQD = qkv.narrow(2, 0, queries),
                                     .k_RGD = qkv.select(2, queries),
                                     .v_RGD = qkv.select(2, queries + 1),
                                     .k_pages = pages,
                                     .v_pages = at::empty_like(pages).copy_(pages),
                                     .table_RP = table.view({rows, pages_per_row}),
                                     .positions_R = at::full({rows}, length - 1, options.dtype(at::kLong))};
      bench.report(fmt::format("paged decode, {} x {}, {} x {} heads", rows, length, groups, queries),
                   4.0 * static_cast<double>(rows * length * groups * channels),
                   [&] { paged_decode(inputs, {.scale = 0.1}); });
    }
  }
}

void bench_decode(Bench& bench) {
  bench_decode_gemms(bench);
  bench_paged_decode(bench);
  for (const int64_t vocabulary : {50257, 128256}) {
    for (const int64_t rows : {1, 32}) {
      const at::Tensor logits = device_randn({rows, vocabulary});
      const auto report = [&](const char* name, double top_k, double top_p,
                              const ChooseTokensOptions& options) {
        const at::Tensor parameters =
            at::tensor({1.0, top_k, top_p, 0.5, -1.0}, at::kDouble).repeat({rows, 1}).to(at::kCUDA);
        bench.report(fmt::format("{} tokens, {} x {}", name, rows, vocabulary),
                     2.0 * static_cast<double>(logits.numel()),
                     [&] { choose_tokens(logits, parameters, options); });
      };
      report("greedy", 1, 0.0, {.samples = false});
      report("sampled", 0, 0.0, {.filters = false});
      report("top-k 50", 50, 0.0, {});
      report("top-p 0.9", 0, 0.9, {});
    }
  }
}

}  // namespace
}  // namespace teratron

int main() {
  if (!at::hasCUDA()) {
    teratron::notice("decode_bench needs a GPU; this machine has none");
    return 0;
  }
  teratron::Bench bench;
  teratron::bench_decode(bench);
}
