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

enum Id : int64_t { q, k, v, y, dy, logsumexp, dq, dk, dv, id_count };
using Tensors = std::array<at::Tensor, id_count>;

std::string shape_of(const Tensors& tensors) {
  return fmt::format("queries [{}], keys [{}]", fmt::join(tensors[q].sizes(), ", "),
                     fmt::join(tensors[k].sizes(), ", "));
}

void check(const fe::error_t& error, const Tensors& tensors) {
  if (error.is_good()) return;
  throw Fault(fmt::format("attention backward, {}: cuDNN {} returned {}", shape_of(tensors),
                          cudnnGetVersion(), error.err_msg));
}

fe::DataType_t type_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return fe::DataType_t::FLOAT;
  return x.scalar_type() == at::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

using Node = std::shared_ptr<fe::graph::Tensor_attributes>;

void describe(fe::graph::Tensor_attributes& node, const Tensors& tensors, int64_t id) {
  const at::Tensor& x = tensors[id];
  node.set_uid(id).set_dim(x.sizes().vec()).set_stride(x.strides().vec()).set_data_type(type_of(x));
}

struct CachedGraph {
  fe::graph::Graph graph;
  int64_t workspace = 0;  // bytes
};

void add_backward(fe::graph::Graph& graph, const Tensors& tensors, const AttentionOptions& options) {
  const auto input = [&](Id id) {
    fe::graph::Tensor_attributes node;
    describe(node, tensors, id);
    return graph.tensor(node);
  };
  const auto attributes = fe::graph::SDPA_backward_attributes()
                              .set_name("attention backward")
                              .set_causal_mask(options.causal)
                              .set_attn_scale(static_cast<float>(options.scale));
  const std::array<Node, 3> outputs =
      graph.sdpa_backward(input(q), input(k), input(v), input(y), input(dy), input(logsumexp), attributes);
  for (int64_t i = 0; i < 3; ++i) {
    describe(*outputs[i], tensors, dq + i);
    outputs[i]->set_output(true);
  }
}

CachedGraph build_graph(const Tensors& tensors, const AttentionOptions& options, cudnnHandle_t handle) {
  CachedGraph cached;
  fe::graph::Graph& graph = cached.graph;
  graph.set_io_data_type(type_of(tensors[q]))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  add_backward(graph, tensors, options);
  check(graph.validate(), tensors);
  check(graph.build_operation_graph(handle), tensors);
  check(graph.create_execution_plans({fe::HeurMode_t::A}), tensors);
  check(graph.check_support(), tensors);
  check(graph.build_plans(), tensors);
  check(graph.get_workspace_size(cached.workspace), tensors);
  return cached;
}

/// Everything that a graph depends on.
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

CachedGraph& cached_graph(const Tensors& tensors, const AttentionOptions& options, cudnnHandle_t handle) {
  // Per thread, like cuDNN's handles. lint: allow(global-state): a graph depends on the key alone
  thread_local std::map<Key, CachedGraph> graphs;
  Key key = key_of(tensors, options);
  const auto known = graphs.find(key);
  if (known != graphs.end()) return known->second;
  return graphs.emplace(std::move(key), build_graph(tensors, options, handle)).first->second;
}

}  // namespace

void cudnn_attention_backward(const AttentionForward& forward, const at::Tensor& dy_BNSD,
                              const AttentionOptions& options, const AttentionGradients& gradients) {
  const Tensors tensors{forward.q_BNSD,         forward.k_BGSD,   forward.v_BGSD,   forward.y_BNSD,  dy_BNSD,
                        forward.logsumexp_BNS1, gradients.q_BNSD, gradients.k_BGSD, gradients.v_BGSD};
  for (const at::Tensor& x : tensors) TERATRON_ASSERT(x.is_cuda() && x.dim() == 4 && x.stride(3) == 1);
  if (tensors[q].numel() == 0 || tensors[k].numel() == 0) {
    for (int64_t id = dq; id <= dv; ++id) tensors[id].zero_();
    return;
  }
  cudnnHandle_t handle = at::native::getCudnnHandle();
  CachedGraph& cached = cached_graph(tensors, options, handle);
  std::unordered_map<int64_t, void*> addresses;
  for (int64_t id = 0; id < id_count; ++id) addresses[id] = tensors[id].mutable_data_ptr();
  const at::Tensor workspace = at::empty({cached.workspace}, tensors[q].options().dtype(at::kByte));
  check(cached.graph.execute(handle, addresses, workspace.mutable_data_ptr()), tensors);
}

}  // namespace teratron
