#include "python/module/bindings.h"
#include "python/module/hooks.h"
#include "python/module/tensor_caster.h"
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace teratron::python {

namespace {

PythonBatch replaced(const PythonBatch& self, const Tensors& columns) {
  PythonBatch batch = self;
  for (const auto& [name, tensor] : columns) {
    const at::Tensor& old = self.batch[name];
    if (!old.defined()) throw nb::key_error(name.c_str());
    if (!tensor.defined() || tensor.sizes() != old.sizes() || tensor.scalar_type() != old.scalar_type())
      throw nb::value_error(fmt::format("{} must keep its shape and dtype", name).c_str());
    batch.batch.tensors.set(name, tensor.to(old.device()));
  }
  return batch;
}

at::Tensor column(const PythonBatch& self, const std::string& name) {
  const at::Tensor& tensor = self.batch[name];
  if (!tensor.defined()) throw nb::key_error(name.c_str());
  return tensor;
}

}  // namespace

void bind_batches(nb::module_& m) {
  nb::class_<PythonBatch>(m, "Batch")
      .def(nb::init<const Tensors&>(), nb::arg("columns"))
      .def("__getitem__", column)
      .def("__contains__",
           [](const PythonBatch& self, const std::string& name) { return self.batch[name].defined(); })
      .def("keys",
           [](const PythonBatch& self) {
             std::vector<std::string> names;
             for (const auto& [name, tensor] : self.batch.tensors) {
               if (tensor.defined()) names.push_back(name);
             }
             return names;
           })
      .def("replaced", replaced)
      .def_prop_ro("training", [](const PythonBatch& self) { return self.batch.training; })
      .def_prop_ro("sample_ids", [](const PythonBatch& self) { return self.batch.sample_ids_B; });
  nb::class_<ModelOutput>(m, "ModelOutput")
      .def("token_losses", &ModelOutput::token_losses, nb::call_guard<nb::gil_scoped_release>())
      .def("logits", &ModelOutput::logits, nb::call_guard<nb::gil_scoped_release>())
      // Losses of the predictions [P, B], and the binary head's logits [B, 2] or None.
      .def("bert_scores",
           [](const ModelOutput& self) {
             const auto run = [&] {
               const nb::gil_scoped_release released;
               return self.bert_scores();
             };
             const BertScores scores = run();
             return nb::make_tuple(scores.lm_losses_PB, scores.binary_logits_B2);
           })
      .def("losses", [](const ModelOutput& self) {
        std::vector<LossTerm> terms;
        {
          const nb::gil_scoped_release released;
          terms = self.losses();
        }
        nb::list pairs;
        for (const LossTerm& term : terms) pairs.append(nb::make_tuple(term.sum, term.count));
        return pairs;
      });
  nb::class_<Source>(m, "Source").def("next", [](Source& self) {
    const nb::gil_scoped_release released;
    return PythonBatch(self.next());
  });
}

}  // namespace teratron::python
