#include "teratron/nn/parallel_matmul.h"

#include <ATen/ATen.h>

#include "teratron/base/error.h"

namespace teratron {

namespace {

std::vector<int64_t> shard_sizes(at::IntArrayRef shape, const Group& group) {
  std::vector<int64_t> sizes = shape.vec();
  TERATRON_ASSERT(sizes[0] % group.size == 0, "a sequence of {} is not divisible by {} ranks", sizes[0],
                  group.size);
  sizes[0] /= group.size;
  return sizes;
}

}  // namespace

at::Tensor TensorParallel::sequence_shard(const at::Tensor& x) const {
  if (!sequence_parallel || !x.defined()) return x;
  const int64_t rows = x.size(0) / group.size;
  return x.narrow(0, group.rank * rows, rows);
}

at::Tensor as_rows(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

at::Tensor shaped_like(const at::Tensor& rows, at::IntArrayRef shape) {
  std::vector<int64_t> sizes = shape.vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

at::Tensor slice_rows(const at::Tensor& x, int64_t begin, int64_t end) {
  return !x.defined() || x.size(0) == end - begin ? x : x.slice(0, begin, end);
}

at::Tensor AsyncTensor::local() const {
  if (!gathered_over) return tensor;
  const int64_t rows = tensor.size(0) / gathered_over->size;
  return tensor.narrow(0, gathered_over->rank * rows, rows);
}

AsyncTensor start_all_gather(const at::Tensor& shard, const Group& group) {
  std::vector<int64_t> sizes = shard.sizes().vec();
  sizes[0] *= group.size;
  const at::Tensor whole = group.communicator->alloc_symmetric(sizes, shard.options().requires_grad(false));
  const at::Tensor local = whole.narrow(0, group.rank * shard.size(0), shard.size(0));
  local.copy_(shard.detach());
  return {whole, group.communicator->all_gather(whole, local), &group};
}

void AsyncTensor::overlap_local_first(c10::function_ref<void(int64_t begin, int64_t end)> compute) {
  const int64_t rows = tensor.numel() / tensor.size(-1);
  if (!gathered_over) return compute(0, rows);
  const int64_t count = rows / gathered_over->size, begin = gathered_over->rank * count, end = begin + count;
  compute(begin, end);
  work.wait();
  if (begin > 0) compute(0, begin);
  if (end < rows) compute(end, rows);
}

ParallelMatmul::ParallelMatmul(Parameter& weight, Fp8Scaling* fp8, TpComm comm, const Group& group)
    : product_(make_matmul(weight, fp8)), comm_(group.size > 1 ? comm : TpComm::none), group_(group) {}

ParallelMatmul ParallelMatmul::column(Parameter& weight, Fp8Scaling* fp8, const TensorParallel& parallel) {
  return {weight, fp8, parallel.sequence_parallel ? TpComm::all_gather : TpComm::copy, parallel.group};
}

ParallelMatmul ParallelMatmul::row(Parameter& weight, Fp8Scaling* fp8, const TensorParallel& parallel) {
  return {weight, fp8, parallel.sequence_parallel ? TpComm::reduce_scatter : TpComm::all_reduce,
          parallel.group};
}

ParallelMatmul::Output ParallelMatmul::forward(const at::Tensor& x_SBI, const Matmul::Epilogue& epilogue,
                                               bool training) const {
  if (comm_ != TpComm::all_gather) return forward(as_rows(x_SBI), x_SBI.sizes(), epilogue, training);
  AsyncTensor whole = gather_input(x_SBI);
  const at::Tensor x = as_rows(whole.tensor);
  at::Tensor y;
  if (product_->quantized()) {
    whole.work.wait();
    y = product_->forward(product_->input(x, {.columns = false, .record_amax = training}), epilogue);
  } else {
    TERATRON_ASSERT(!epilogue.residual_TO.defined());
    y = at::empty({x.size(0), weight().tensor.size(0)}, x.options());
    whole.overlap_local_first([&](int64_t begin, int64_t end) {
      linear_forward(x.slice(0, begin, end), weight().tensor, epilogue.bias_O, y.slice(0, begin, end));
    });
    add_product_(y, epilogue.added);
    if (epilogue.rope != nullptr) apply_rope_(y, *epilogue.rope);
  }
  return {shaped_like(y, whole.tensor.sizes()), is_frozen() ? SavedInput{} : SavedInput{x_SBI}};
}

ParallelMatmul::Output ParallelMatmul::forward(const LazyTensor& x_TI, at::IntArrayRef shape,
                                               const Matmul::Epilogue& epilogue, bool training) const {
  const bool saves = training && !is_frozen();
  const Matmul::Operand x = product_->input(x_TI, {.columns = saves, .record_amax = training});
  const SavedInput saved = saves ? SavedInput{x.columns, x.scale_inv} : SavedInput{};
  if (comm_ != TpComm::reduce_scatter && comm_ != TpComm::all_reduce)
    return {shaped_like(product_->forward(x, epilogue), shape), saved};
  TERATRON_ASSERT(!epilogue.bias_O.defined() && !epilogue.residual_TO.defined());
  const at::Tensor y = summed_over_ranks(x, shape);
  add_product_(as_rows(y), epilogue.added);
  return {y, saved};
}

at::Tensor ParallelMatmul::summed_over_ranks(const Matmul::Operand& x_TI, at::IntArrayRef shape) const {
  if (comm_ == TpComm::reduce_scatter) return reduce_scatter(x_TI, shape);
  const at::Tensor y = shaped_like(product_->forward(x_TI, {}), shape);
  group_.communicator->all_reduce(y, ReduceOp::sum).wait();
  return y;
}

at::Tensor ParallelMatmul::reduce_scatter(const Matmul::Operand& x_TI, at::IntArrayRef shape) const {
  const at::Tensor& w = weight().tensor;
  std::vector<int64_t> sizes = shard_sizes(shape, group_);
  sizes.back() = w.size(0);
  const at::Tensor y = at::empty(sizes, w.options().requires_grad(false));
  if (product_->quantized()) {
    group_.communicator->reduce_scatter(y, product_->forward(x_TI, {}), ReduceOp::sum).wait();
    return y;
  }
  const int64_t rows = x_TI.rows.size(0), shard = rows / group_.size;
  const at::Tensor partial = at::empty({rows, sizes.back()}, y.options());
  const auto produce = [&](int64_t first, int64_t last) {
    linear_forward(x_TI.rows.slice(0, first * shard, last * shard), w, {},
                   partial.slice(0, first * shard, last * shard));
  };
  group_.communicator->reduce_scatter_pipelined(y, partial, ReduceOp::sum, produce).wait();
  return y;
}

AsyncTensor ParallelMatmul::gather_input(const at::Tensor& x_SBI) const {
  return comm_ == TpComm::all_gather ? start_all_gather(x_SBI, group_) : AsyncTensor{x_SBI};
}

AsyncTensor ParallelMatmul::gather_output_grad(const at::Tensor& dy_SBO) const {
  return comm_ == TpComm::reduce_scatter ? start_all_gather(dy_SBO, group_) : AsyncTensor{dy_SBO};
}

ParallelMatmul::SavedInput ParallelMatmul::gather_again(SavedInput saved) const {
  if (!saved.x.defined()) return saved;
  AsyncTensor x = gather_input(saved.x);
  return {x.tensor, saved.scale_inv, std::move(x.work)};
}

AsyncTensor ParallelMatmul::start_reduction(const at::Tensor& dx) const {
  if (comm_ == TpComm::copy) return {dx, group_.communicator->all_reduce(dx, ReduceOp::sum)};
  if (comm_ != TpComm::all_gather) return {dx};
  const at::Tensor shard = at::empty(shard_sizes(dx.sizes(), group_), dx.options());
  return {shard, group_.communicator->reduce_scatter(shard, dx, ReduceOp::sum)};
}

void ParallelMatmul::accumulate_weight_grad(SavedInput x, const Matmul::Operand& dy_TO) const {
  if (is_frozen()) return accumulate_grad(weight(), at::Tensor());
  x.gather.wait();
  const Matmul::Operand input = comm_ == TpComm::all_gather
                                    ? product_->input(as_rows(x.x), {.rows = false, .record_amax = false})
                                    : Matmul::Operand{.columns = x.x, .scale_inv = x.scale_inv};
  product_->accumulate_weight_grad(dy_TO, input);
}

at::Tensor ParallelMatmul::backward(SavedInput x, AsyncTensor dy_SBO, bool needs_dx) const {
  const at::Tensor rows = as_rows(dy_SBO.tensor);
  if (!dy_SBO.gathered_over || !needs_dx || product_->quantized()) {
    dy_SBO.work.wait();
    return backward(std::move(x), product_->output_grad(rows), dy_SBO.tensor.sizes(), needs_dx);
  }
  const at::Tensor dx = at::empty({rows.size(0), weight().tensor.size(1)}, rows.options());
  dy_SBO.overlap_local_first([&](int64_t begin, int64_t end) {
    linear_input_gradient(rows.slice(0, begin, end), weight().tensor, dx.slice(0, begin, end));
  });
  accumulate_weight_grad(std::move(x), product_->output_grad(rows));
  return shaped_like(dx, dy_SBO.tensor.sizes());
}

at::Tensor ParallelMatmul::backward(SavedInput x, const Matmul::Operand& dy_TO, at::IntArrayRef shape,
                                    bool needs_dx) const {
  AsyncTensor dx;
  if (needs_dx) dx = start_reduction(shaped_like(product_->input_grad(dy_TO), shape));
  accumulate_weight_grad(std::move(x), dy_TO);
  dx.work.wait();
  return dx.tensor;
}

}  // namespace teratron
