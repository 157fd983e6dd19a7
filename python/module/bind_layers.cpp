#include "python/module/door.h"
#include "python/module/nn.h"
#include "python/module/tensor_caster.h"
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "teratron/base/error.h"
#include "teratron/nn/attention/attention_layer.h"
#include "teratron/nn/dropout.h"
#include "teratron/nn/embedding.h"
#include "teratron/nn/mlp.h"
#include "teratron/nn/norm.h"
#include "teratron/nn/vocab_parallel_cross_entropy.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

at::ScalarType scalar_type_named(const std::string& name) {
  for (const auto& [known, type] :
       {std::pair{"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float64", at::kDouble}}) {
    if (name == known) return type;
  }
  throw config_error({.what = fmt::format("'{}' is not a dtype of parameters", printable(name, 40)),
                      .where = "dtype",
                      .fix = "Use torch.float32, bfloat16 or float64"});
}

// The parallel layer's sizes must divide.
void require_divisible(const char* what, int64_t size, const TensorParallel& parallel) {
  if (size > 0 && size % parallel.group.size == 0) return;
  throw config_error({.what = fmt::format("{} = {} is not divisible by the {} tensor-parallel ranks", what,
                                          size, parallel.group.size),
                      .where = what,
                      .fix = "Choose a multiple"});
}

void bind_parameters(nb::module_& m) {
  nb::class_<ParameterSet>(m, "ParameterSet")
      .def("__init__",
           [](ParameterSet* self, const std::string& dtype, const std::string& device, uint64_t seed) {
             const Entry entry;
             new (self) ParameterSet(
                 {.dtype = scalar_type_named(dtype), .device = at::Device(device), .seed = seed});
           })
      // (name, tensor) in order; each tensor is the same object at every call.
      .def("parameters",
           [](ParameterSet& self) {
             nb::list pairs;
             for (const Parameter& parameter : self.all())
               pairs.append(nb::make_tuple(parameter.name, parameter.tensor));
             return pairs;
           })
      .def("main_grad", [](ParameterSet& self, const std::string& name) {
        Parameter* const parameter = self.find(name);
        if (!parameter) throw nb::key_error(name.c_str());
        finalize_grad(*parameter);
        return parameter->main_grad;
      });
  nb::class_<ScopeHandle>(m, "Scope")
      .def("__init__",
           [](ScopeHandle* self, const std::shared_ptr<ParameterSet>& set) {
             new (self) ScopeHandle{set, Scope(*set)};
           })
      .def("__truediv__", [](const ScopeHandle& self,
                             const std::string& name) { return ScopeHandle{self.set, self.scope / name}; })
      .def_ro("set", &ScopeHandle::set)
      .def_prop_ro("prefix", [](const ScopeHandle& self) { return self.scope.prefix(); });
  nb::class_<TensorParallel>(m, "TensorParallel")
      .def("__init__",
           [](TensorParallel* self, const Mesh& mesh, bool sequence_parallel) {
             new (self) TensorParallel{mesh.group(Axis::tp), sequence_parallel};
           })
      .def("sequence_shard", &TensorParallel::sequence_shard)
      .def_ro("sequence_parallel", &TensorParallel::sequence_parallel)
      .def_prop_ro("group", [](const TensorParallel& self) { return self.group; });
  nb::class_<Hidden>(m, "Hidden").def_ro("x", &Hidden::x_SBH).def("tensor", [](const Hidden& self) {
    const Entry entry;
    return apply_bias_grad(self);
  });
}

void bind_embeddings(nb::module_& m) {
  nb::class_<VocabParallelEmbedding>(m, "VocabParallelEmbedding")
      .def("__init__",
           [](VocabParallelEmbedding* self, const ScopeHandle& scope, int64_t size, int64_t padded,
              int64_t hidden, double std, const TensorParallel& parallel) {
             require_divisible("the padded vocabulary", padded, parallel);
             const Entry entry;
             new (self) VocabParallelEmbedding(
                 scope.scope, VocabularyOptions{size, padded, hidden, Init::normal(std)}, parallel);
           })
      .def("forward", [](VocabParallelEmbedding& self, const at::Tensor& ids) {
        const Entry entry;
        return self.forward(ids);
      });
  nb::class_<Embedding>(m, "Embedding")
      .def("__init__",
           [](Embedding* self, const ScopeHandle& scope, int64_t count, int64_t hidden, double std,
              const TensorParallel& parallel) {
             const Entry entry;
             new (self)
                 Embedding(scope.scope, Embedding::Options{count, hidden, Init::normal(std)}, parallel);
           })
      .def("add_to", [](Embedding& self, const at::Tensor& x, const at::Tensor& ids) {
        const Entry entry;
        return self.add_to_(x, ids);
      });
}

void bind_norm(nb::module_& m) {
  nb::class_<Norm>(m, "Norm")
      .def("__init__",
           [](Norm* self, const ScopeHandle& scope, int64_t width, bool rms, double eps,
              const TensorParallel& parallel) {
             const NormOptions options{.kind = rms ? NormKind::rms : NormKind::layer, .eps = eps};
             const Entry entry;
             new (self) Norm(scope.scope, width, options, parallel);
           })
      .def("forward_with_residual", [](Norm& self, nb::handle x) {
        const Hidden hidden = hidden_of(x);
        const auto run = [&] {
          const Entry entry;
          return self.forward_with_residual(hidden);
        };
        const Norm::Output output = run();
        return std::pair(output.normed, output.residual);
      });
}

void bind_linear(nb::module_& m) {
  nb::class_<ColumnLinear>(m, "ColumnLinear")
      .def("__init__",
           [](ColumnLinear* self, const ScopeHandle& scope, int64_t in, int64_t out, bool bias, double std,
              const TensorParallel& parallel) {
             require_divisible("out_features", out, parallel);
             const Entry entry;
             new (self) ColumnLinear(
                 scope.scope, {.in = in, .out = out, .bias = bias, .init = Init::normal(std)}, parallel);
           })
      .def("forward", [](ColumnLinear& self, const at::Tensor& x) {
        const Entry entry;
        return self.forward(x);
      });
  nb::class_<RowLinear>(m, "RowLinear")
      .def("__init__",
           [](RowLinear* self, const ScopeHandle& scope, int64_t in, int64_t out, bool bias, double std,
              const TensorParallel& parallel) {
             require_divisible("in_features", in, parallel);
             const Entry entry;
             new (self) RowLinear(scope.scope,
                                  {.in = in, .out = out, .bias = bias, .init = Init::normal(std)}, parallel);
           })
      .def(
          "forward",
          [](RowLinear& self, const at::Tensor& x, const std::optional<at::Tensor>& residual) {
            const Entry entry;
            return self.forward_add_residual(x, {.residual_SBH = residual.value_or(at::Tensor())});
          },
          nb::arg("x"), nb::arg("residual").none());
}

void bind_blocks(nb::module_& m) {
  nb::class_<Mlp>(m, "Mlp")
      .def("__init__",
           [](Mlp* self, const ScopeHandle& scope, int64_t hidden, int64_t ffn_hidden,
              std::pair<double, double> std, const TensorParallel& parallel) {
             require_divisible("ffn_hidden_size", ffn_hidden, parallel);
             const MlpOptions options{.hidden = hidden,
                                      .ffn_hidden = ffn_hidden,
                                      .fc1_init = Init::normal(std.first),
                                      .fc2_init = Init::normal(std.second)};
             const Entry entry;
             new (self) Mlp(scope.scope, options, parallel);
           })
      .def(
          "forward",
          [](Mlp& self, const at::Tensor& x, const std::optional<at::Tensor>& residual) {
            const Entry entry;
            return self.forward_add_residual(Normed(x), {.residual_SBH = residual.value_or(at::Tensor())});
          },
          nb::arg("x"), nb::arg("residual").none());
  nb::class_<SelfAttention>(m, "SelfAttention")
      .def("__init__",
           [](SelfAttention* self, const ScopeHandle& scope, int64_t hidden, int64_t heads, bool causal,
              std::pair<double, double> std, const TensorParallel& parallel) {
             require_divisible("num_attention_heads", heads, parallel);
             if (hidden % heads != 0)
               throw config_error(
                   {.what = fmt::format("hidden_size = {} is not divisible by {} heads", hidden, heads),
                    .where = "num_attention_heads",
                    .fix = "Choose a divisor"});
             const AttentionLayerOptions options{.hidden = hidden,
                                                 .heads = heads,
                                                 .query_groups = heads,
                                                 .kv_channels = hidden / heads,
                                                 .mask = causal ? Mask::causal : Mask::full,
                                                 .qkv_init = Init::normal(std.first),
                                                 .output_init = Init::normal(std.second)};
             const Entry entry;
             new (self) SelfAttention(scope.scope, options, parallel);
           })
      .def(
          "forward",
          [](SelfAttention& self, const at::Tensor& x, const at::Tensor& positions,
             const std::optional<at::Tensor>& residual) {
            const Entry entry;
            const LayerContext context{.positions_SB = positions};
            return self.forward_add_residual(Normed(x), {.residual_SBH = residual.value_or(at::Tensor())},
                                             context, nullptr);
          },
          nb::arg("x"), nb::arg("positions"), nb::arg("residual").none());
}

// The output layer on the embedding's weight.
struct TiedHead {
  ParallelMatmul matmul;
};

void bind_head(nb::module_& m) {
  nb::class_<TiedHead>(m, "TiedHead")
      .def(
          "__init__",
          [](TiedHead* self, VocabParallelEmbedding& words, const TensorParallel& parallel) {
            new (self) TiedHead{ParallelMatmul::column(words.weight(), nullptr, parallel)};
          },
          nb::keep_alive<1, 2>())
      .def("logits",
           [](const TiedHead& self, const at::Tensor& x) {
             const Entry entry;
             return linear(x, self.matmul);
           })
      .def("losses",
           [](const TiedHead& self, const at::Tensor& x, const at::Tensor& targets, int64_t vocabulary) {
             const Entry entry;
             return linear_cross_entropy(x, self.matmul, targets, {.vocabulary = vocabulary});
           });
}

}  // namespace

Hidden hidden_of(nb::handle value) {
  Hidden* hidden = nullptr;
  if (nb::try_cast(value, hidden) && hidden) return *hidden;
  return {nb::cast<at::Tensor>(value)};
}

void bind_layers(nb::module_& m) {
  bind_parameters(m);
  bind_embeddings(m);
  bind_norm(m);
  bind_linear(m);
  bind_blocks(m);
  bind_head(m);
}

}  // namespace teratron::python
