#include "teratron/kernels/attention/paged_decode.h"

#include <bit>

#include "teratron/kernels/attention/launchers.h"
#include "teratron/kernels/common/dispatch.h"
#include "teratron/kernels/common/stream.h"

namespace teratron {

namespace {

// Blocks that fill a GPU twice, but not more than one per 128 keys.
int64_t choose_splits(int64_t blocks, int64_t longest) {
  constexpr int64_t wanted = 264, keys_per_split = 128, most = 32;
  const int64_t by_keys = (longest + keys_per_split - 1) / keys_per_split;
  return std::clamp<int64_t>(std::min(wanted / std::max<int64_t>(blocks, 1), by_keys), 1, most);
}

void require_inputs(const PagedDecodeInputs& inputs, const PagedDecodeOptions& options) {
  const int64_t rows = inputs.q_RND.size(0), channels = inputs.q_RND.size(2), groups = inputs.k_RGD.size(1);
  TERATRON_ASSERT(inputs.q_RND.size(1) % groups == 0 && channels % 8 == 0 && channels <= 256);
  TERATRON_ASSERT(std::has_single_bit(static_cast<uint64_t>(options.page_size)));
  for (const at::Tensor* t : {&inputs.q_RND, &inputs.k_RGD, &inputs.v_RGD})
    TERATRON_ASSERT(t->stride(2) == 1 && t->stride(1) % 8 == 0 && t->stride(0) % 8 == 0 && is_aligned(*t));
  for (const at::Tensor* t : {&inputs.k_pages, &inputs.v_pages}) {
    TERATRON_ASSERT(t->is_contiguous() && t->size(1) == groups && t->size(2) == channels &&
                    t->scalar_type() == inputs.q_RND.scalar_type());
  }
  TERATRON_ASSERT(inputs.table_RP.scalar_type() == at::kInt && inputs.table_RP.is_contiguous() &&
                  inputs.table_RP.size(0) >= rows);
  TERATRON_ASSERT(inputs.positions_R.scalar_type() == at::kLong && inputs.positions_R.size(0) == rows);
}

}  // namespace

bool paged_decode_supports(at::Device device, at::ScalarType dtype, int64_t channels) {
  return device.is_cuda() && dtype != at::kDouble && channels % 8 == 0 && channels <= 256;
}

at::Tensor paged_decode(const PagedDecodeInputs& inputs, const PagedDecodeOptions& options) {
  require_inputs(inputs, options);
  const at::Tensor& q = inputs.q_RND;
  const int64_t rows = q.size(0), heads = q.size(1), channels = q.size(2), groups = inputs.k_RGD.size(1);
  const int64_t longest = inputs.table_RP.size(1) * options.page_size;
  const int64_t keys = options.window > 0 ? std::min(options.window, longest) : longest;
  const int64_t splits = choose_splits(rows * groups, keys);
  const at::Tensor out = at::empty({rows, heads * channels}, q.options());
  const at::Tensor partial =
      splits > 1 ? at::empty({rows, heads, splits, channels + 2}, q.options().dtype(at::kFloat))
                 : at::Tensor();
  cuda::paged_decode({.q = q.const_data_ptr(),
                      .k = inputs.k_RGD.const_data_ptr(),
                      .v = inputs.v_RGD.const_data_ptr(),
                      .q_stride_row = q.stride(0),
                      .q_stride_head = q.stride(1),
                      .k_stride_row = inputs.k_RGD.stride(0),
                      .k_stride_group = inputs.k_RGD.stride(1),
                      .v_stride_row = inputs.v_RGD.stride(0),
                      .v_stride_group = inputs.v_RGD.stride(1),
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
                      .window = options.window,
                      .slopes = static_cast<const float*>(address(options.alibi_slopes)),
                      .splits = static_cast<int>(splits),
                      .partial = static_cast<float*>(address(partial)),
                      .out = out.data_ptr()},
                     current_stream(q));
  return out;
}

}  // namespace teratron
