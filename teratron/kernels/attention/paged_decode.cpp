#include "teratron/kernels/attention/paged_decode.h"

#include <bit>

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {

namespace {

// Two blocks per SM, but not more than one per 64 keys. A cluster has at most 8.
int64_t choose_splits(int64_t blocks, int64_t longest) {
  constexpr int64_t wanted = 264, keys_per_split = 64, most = 32, most_in_cluster = 8;
  const int64_t by_keys = (longest + keys_per_split - 1) / keys_per_split;
  const int64_t splits =
      std::clamp<int64_t>(std::min(wanted / std::max<int64_t>(blocks, 1), by_keys), 1, most);
  const bool fits_cluster = longest <= most_in_cluster * 1024;
  return fits_cluster && cuda::has_paged_decode_clusters() ? std::min(splits, most_in_cluster) : splits;
}

void require_inputs(const PagedDecodeInputs& inputs, const PagedDecodeOptions& options) {
  const at::Tensor& q = inputs.q_RGQD;
  const int64_t rows = q.size(0), groups = q.size(1), channels = q.size(3);
  TERATRON_ASSERT(channels % 8 == 0 && channels <= 256);
  TERATRON_ASSERT(std::has_single_bit(static_cast<uint64_t>(options.page_size)));
  TERATRON_ASSERT(inputs.k_RGD.defined() == inputs.v_RGD.defined());
  for (const at::Tensor* t : {&q, &inputs.k_RGD, &inputs.v_RGD}) {
    if (!t->defined()) continue;
    TERATRON_ASSERT(t->size(1) == groups && t->stride(-1) == 1 && is_aligned(*t));
    for (int64_t dim = 0; dim + 1 < t->dim(); ++dim) TERATRON_ASSERT(t->stride(dim) % 8 == 0);
  }
  for (const at::Tensor* t : {&inputs.k_pages, &inputs.v_pages}) {
    TERATRON_ASSERT(t->is_contiguous() && t->size(1) == groups && t->size(2) == channels &&
                    t->scalar_type() == q.scalar_type());
  }
  TERATRON_ASSERT(inputs.table_RP.scalar_type() == at::kInt && inputs.table_RP.is_contiguous() &&
                  inputs.table_RP.size(0) >= rows);
  TERATRON_ASSERT(inputs.positions_R.scalar_type() == at::kLong && inputs.positions_R.size(0) == rows);
  if (const at::Tensor& bias = options.distance_bias; bias.defined()) {
    TERATRON_ASSERT(bias.scalar_type() == at::kFloat && bias.is_contiguous() &&
                    bias.size(0) == groups * q.size(2) && !options.alibi_slopes.defined() &&
                    (bias.size(1) + 1) / 2 >= inputs.table_RP.size(1) * options.page_size);
  }
  if (const at::Tensor& sinks = options.sinks; sinks.defined())
    TERATRON_ASSERT(sinks.scalar_type() == at::kFloat && sinks.is_contiguous() &&
                    sinks.numel() == groups * q.size(2));
  if (!options.rotation) return;
  const RopeTable& table = options.rotation->table;
  TERATRON_ASSERT(paged_decode_rotates(*options.rotation, q.scalar_type()) &&
                  table.cos.scalar_type() == at::kFloat && table.cos.is_contiguous() &&
                  table.sin.is_contiguous() && 2 * table.cos.size(1) <= channels);
}

void add_new_tokens(cuda::PagedDecodeArgs& args, const at::Tensor& k, const at::Tensor& v) {
  args.k = k.const_data_ptr();
  args.v = v.const_data_ptr();
  args.k_stride_row = k.stride(0);
  args.k_stride_group = k.stride(1);
  args.v_stride_row = v.stride(0);
  args.v_stride_group = v.stride(1);
}

void add_bias(cuda::PagedDecodeArgs& args, const at::Tensor& bias) {
  args.bias = bias.const_data_ptr<float>() + bias.size(1) / 2;
  args.bias_stride = bias.stride(0);
}

void add_rotation(cuda::PagedDecodeArgs& args, const QkvRotation& rotation) {
  args.cos = static_cast<const float*>(address(rotation.table.cos));
  args.sin = static_cast<const float*>(address(rotation.table.sin));
  args.rotated = static_cast<int>(2 * rotation.table.cos.size(1));
  args.interleaved = rotation.style == RopeStyle::interleaved;
}

}  // namespace

bool paged_decode_supports(at::Device device, at::ScalarType dtype, int64_t channels) {
  return device.is_cuda() && dtype != at::kDouble && channels % 8 == 0 && channels <= 256;
}

// Threads rotate packs of 16 bytes.
bool paged_decode_rotates(const QkvRotation& rotation, at::ScalarType dtype) {
  const int64_t pack = is_half(dtype) ? 8 : 4, half = rotation.table.cos.size(1);
  return rotation.style == RopeStyle::interleaved ? 2 * half % pack == 0 : half % pack == 0;
}

at::Tensor paged_decode(const PagedDecodeInputs& inputs, const PagedDecodeOptions& options) {
  require_inputs(inputs, options);
  const at::Tensor& q = inputs.q_RGQD;
  const int64_t rows = q.size(0), groups = q.size(1), heads = groups * q.size(2), channels = q.size(3);
  const int64_t longest = inputs.table_RP.size(1) * options.page_size;
  int64_t keys = longest;
  for (const int64_t most : {options.window, options.chunk}) {
    if (most > 0) keys = std::min(keys, most);
  }
  const int64_t splits = choose_splits(rows * groups, keys);
  const bool clustered = splits > 1 && splits <= 8 && cuda::has_paged_decode_clusters();
  const at::Tensor out = at::empty({rows, heads * channels}, q.options());
  const at::Tensor partial =
      splits > 1 && !clustered ? at::empty({rows, heads, splits, channels + 2}, q.options().dtype(at::kFloat))
                               : at::Tensor();
  cuda::PagedDecodeArgs args{.q = q.const_data_ptr(),
                             .q_stride_row = q.stride(0),
                             .q_stride_group = q.stride(1),
                             .q_stride_head = q.stride(2),
                             .k_pages = inputs.k_pages.data_ptr(),
                             .v_pages = inputs.v_pages.data_ptr(),
                             .table = inputs.table_RP.const_data_ptr<int32_t>(),
                             .pages_per_row = inputs.table_RP.size(1),
                             .positions = inputs.positions_R.const_data_ptr<int64_t>(),
                             .position_stride = inputs.positions_R.stride(0),
                             .page_shift = std::countr_zero(static_cast<uint64_t>(options.page_size)),
                             .rows = static_cast<int>(rows),
                             .heads = static_cast<int>(heads),
                             .groups = static_cast<int>(groups),
                             .channels = static_cast<int>(channels),
                             .dtype = dtype_of(q),
                             .scale = static_cast<float>(options.scale),
                             .softcap = static_cast<float>(options.softcap),
                             .window = options.window,
                             .chunk = options.chunk,
                             .slopes = static_cast<const float*>(address(options.alibi_slopes)),
                             .sinks = static_cast<const float*>(address(options.sinks)),
                             .splits = static_cast<int>(splits),
                             .clustered = clustered,
                             .partial = static_cast<float*>(address(partial)),
                             .out = out.data_ptr()};
  if (inputs.k_RGD.defined()) add_new_tokens(args, inputs.k_RGD, inputs.v_RGD);
  if (options.distance_bias.defined()) add_bias(args, options.distance_bias);
  if (options.rotation) add_rotation(args, *options.rotation);
  cuda::paged_decode(args, current_stream(q));
  return out;
}

}  // namespace teratron
