#include "teratron/kernels/attention/cudnn_attention.h"

#include <array>
#include <bit>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/empty.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

namespace fe = cudnn_frontend;

enum Place : int64_t { q, k, v, y, dy, log_sum, dq, dk, dv, places };
using Tensors = std::array<at::Tensor, places>;

std::string shape_of(const Tensors& tensors) {
  return fmt::format("queries [{}], keys [{}]", fmt::join(tensors[q].sizes(), ", "),
                     fmt::join(tensors[k].sizes(), ", "));
}

void check(const fe::error_t& error, const Tensors& tensors) {
  if (error.is_good()) return;
  throw Fault(fmt::format("backward of attention, {}: cuDNN {} says {}", shape_of(tensors), cudnnGetVersion(),
                          error.err_msg));
}

fe::DataType_t type_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return fe::DataType_t::FLOAT;
  return x.scalar_type() == at::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

using Node = std::shared_ptr<fe::graph::Tensor_attributes>;

void describe(fe::graph::Tensor_attributes& node, const Tensors& tensors, int64_t place) {
  const at::Tensor& x = tensors[place];
  node.set_uid(place).set_dim(x.sizes().vec()).set_stride(x.strides().vec()).set_data_type(type_of(x));
}

struct Plan {
  fe::graph::Graph graph;
  int64_t workspace = 0;  // bytes
};

void add_backward(fe::graph::Graph& graph, const Tensors& tensors, const AttentionOptions& options) {
  const auto input = [&](Place place) {
    fe::graph::Tensor_attributes node;
    describe(node, tensors, place);
    return graph.tensor(node);
  };
  const auto how = fe::graph::SDPA_backward_attributes()
                       .set_name("attention backward")
                       .set_causal_mask(options.causal)
                       .set_attn_scale(static_cast<float>(options.scale));
  const std::array<Node, 3> outputs =
      graph.sdpa_backward(input(q), input(k), input(v), input(y), input(dy), input(log_sum), how);
  for (int64_t i = 0; i < 3; ++i) {
    describe(*outputs[i], tensors, dq + i);
    outputs[i]->set_output(true);
  }
}

Plan make_plan(const Tensors& tensors, const AttentionOptions& options, cudnnHandle_t handle) {
  Plan plan;
  fe::graph::Graph& graph = plan.graph;
  graph.set_io_data_type(type_of(tensors[q]))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  add_backward(graph, tensors, options);
  check(graph.validate(), tensors);
  check(graph.build_operation_graph(handle), tensors);
  check(graph.create_execution_plans({fe::HeurMode_t::A}), tensors);
  check(graph.check_support(), tensors);
  check(graph.build_plans(), tensors);
  check(graph.get_workspace_size(plan.workspace), tensors);
  return plan;
}

/// What a plan depends on.
using Key = std::vector<int64_t>;
Key key_of(const Tensors& tensors, const AttentionOptions& options) {
  Key key{tensors[q].get_device(), static_cast<int64_t>(tensors[q].scalar_type()), options.causal,
          std::bit_cast<int64_t>(options.scale)};
  for (const at::Tensor& x : tensors) {
    key.insert(key.end(), x.sizes().begin(), x.sizes().end());
    key.insert(key.end(), x.strides().begin(), x.strides().end());
  }
  return key;
}

Plan& plan_for(const Tensors& tensors, const AttentionOptions& options, cudnnHandle_t handle) {
  // Of a thread, as cuDNN's handles are. lint: allow(global-state): a plan depends on the key alone
  thread_local std::map<Key, Plan> plans;
  Key key = key_of(tensors, options);
  const auto known = plans.find(key);
  if (known != plans.end()) return known->second;
  return plans.emplace(std::move(key), make_plan(tensors, options, handle)).first->second;
}

}  // namespace

void cudnn_attention_backward(const AttentionForward& forward, const at::Tensor& dy_BNSD,
                              const AttentionOptions& options, const AttentionGradients& gradients) {
  const Tensors tensors{forward.q_BNSD,       forward.k_BGSD,   forward.v_BGSD,   forward.y_BNSD,  dy_BNSD,
                        forward.log_sum_BNS1, gradients.q_BNSD, gradients.k_BGSD, gradients.v_BGSD};
  for (const at::Tensor& x : tensors) TERATRON_ASSERT(x.is_cuda() && x.dim() == 4 && x.stride(3) == 1);
  if (tensors[q].numel() == 0 || tensors[k].numel() == 0) {
    for (int64_t place = dq; place <= dv; ++place) tensors[place].zero_();
    return;
  }
  cudnnHandle_t handle = at::native::getCudnnHandle();
  Plan& plan = plan_for(tensors, options, handle);
  std::unordered_map<int64_t, void*> addresses;
  for (int64_t place = 0; place < places; ++place) addresses[place] = tensors[place].mutable_data_ptr();
  const at::Tensor workspace = at::empty({plan.workspace}, tensors[q].options().dtype(at::kByte));
  check(plan.graph.execute(handle, addresses, workspace.mutable_data_ptr()), tensors);
}

}  // namespace teratron
