#include <algorithm>

#include "python/module/bindings.h"
#include "python/module/door.h"
#include "python/module/tensor_caster.h"
#include "python/module/trainer.h"
#include "python/module/weights.h"
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace teratron::python {

namespace {

nb::dict to_dict(const Losses& values) {
  nb::dict result;
  for (const auto& [name, value] : values) result[name.c_str()] = value;
  return result;
}

nb::dict to_python(const Result& result) {
  const StepResult& step = result.step;
  nb::dict values;
  values["loss"] = step.loss;
  values["losses"] = to_dict(result.losses);
  values["metrics"] = to_dict(result.metrics);
  values["grad_norm"] = step.metrics.grad_norm ? nb::object(nb::float_(*step.metrics.grad_norm)) : nb::none();
  values["lr"] = step.metrics.learning_rate;
  values["tokens"] = step.tokens;
  values["iteration"] = step.metrics.iteration;
  values["consumed_samples"] = result.consumed_samples;
  values["skipped"] = step.metrics.skipped;
  values["seconds"] = step.metrics.seconds;
  return values;
}

nb::dict to_python(const StepMetrics& metrics, const std::vector<std::string>& losses) {
  nb::dict named, others, values;
  double loss = 0.0;
  for (const auto& [name, value] : metrics.losses) {
    const bool is_loss = std::find(losses.begin(), losses.end(), name) != losses.end();
    if (is_loss) loss += value;
    (is_loss ? named : others)[name.c_str()] = value;
  }
  values["loss"] = loss;
  values["losses"] = named;
  values["metrics"] = others;
  values["grad_norm"] = metrics.grad_norm ? nb::object(nb::float_(*metrics.grad_norm)) : nb::none();
  values["lr"] = metrics.learning_rate;
  values["tokens"] = metrics.tokens;
  values["iteration"] = metrics.iteration;
  values["consumed_samples"] = metrics.consumed_samples;
  values["skipped"] = metrics.skipped;
  values["seconds"] = metrics.seconds;
  return values;
}

// What a call of a trainer's method holds.
struct Call {
  Door door;
  TrainerHandle::Turn turn;
  explicit Call(TrainerHandle& self, Door::Log log = Door::Log::silent) : door(log), turn(self) {}
};

Split split_named(const std::string& name) {
  for (size_t i = 0; i < kSplitNames.size(); ++i) {
    if (name == kSplitNames[i]) return static_cast<Split>(i);
  }
  throw config_error({.what = fmt::format("'{}' is not a split", printable(name, 40)),
                      .where = "split",
                      .fix = "Use train, valid or test"});
}

void construct(TrainerHandle* self, const Settings& settings, const std::shared_ptr<Rank>& rank,
               const nb::dict& hooks) {
  const auto held = [&](const char* name) { return hooks.contains(name) ? Held(hooks[name]) : Held(); };
  Hooks all{.step = held("step"),
            .datasets = held("datasets"),
            .param_groups = held("param_groups"),
            .model = held("model")};
  const Door door;
  new (self) TrainerHandle(settings, rank, std::move(all));
}

int train(TrainerHandle& self, const nb::object& on_step) {
  const Held held(on_step);
  const std::vector<std::string> losses = self.trainer().model().losses;
  const Call call(self, Door::Log::printed);
  return static_cast<int>(self.train([&](const StepMetrics& metrics) {
    const TrainerHandle::Pause pause(self);
    const nb::gil_scoped_acquire gil;
    return nb::cast<bool>((*held)(to_python(metrics, losses)));
  }));
}

nb::list parameters(TrainerHandle& self) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  {
    const Call call(self);
    for (const Parameter& parameter : self.finished_trainer().engine().parameters().all())
      all.emplace_back(parameter.name, parameter.tensor.detach());
  }
  nb::list pairs;
  for (const auto& [name, tensor] : all) pairs.append(nb::make_tuple(name, tensor));
  return pairs;
}

// ([(name, shape, transposed), ...], [(source, row, our row, rows), ...]) of each parameter.
nb::list hf_tensors(TrainerHandle& self, const std::vector<ParameterInfo>& infos) {
  nb::list tensors;
  for (const HfPieces& pieces : hf_pieces(infos, self.checkpoint_config())) {
    nb::list sources, slices;
    for (const HfSource& source : pieces.sources)
      sources.append(nb::make_tuple(source.name, source.shape, source.transposed));
    for (const RowSlice& slice : pieces.slices)
      slices.append(nb::make_tuple(slice.source, slice.row, slice.our_row, slice.rows));
    tensors.append(nb::make_tuple(sources, slices));
  }
  return tensors;
}

using TrainerClass = nb::class_<TrainerHandle>;

void bind_checkpoints(TrainerClass& trainer) {
  trainer
      .def("load",
           [](TrainerHandle& self) {
             const Call call(self);
             return self.load();
           })
      .def("save",
           [](TrainerHandle& self) {
             const Call call(self);
             return self.save();
           })
      .def("load_from",
           [](TrainerHandle& self, const std::string& folder) {
             const Call call(self);
             return self.load(folder);
           })
      .def("save_to", [](TrainerHandle& self, const std::string& folder) {
        const Call call(self);
        self.save(folder);
      });
}

void bind_steps(TrainerClass& trainer) {
  trainer.def("__init__", construct, nb::arg("settings"), nb::arg("rank"), nb::arg("hooks"))
      .def("step",
           [](TrainerHandle& self) {
             const Call call(self);
             return self.step();
           })
      .def(
          "step_on",
          [](TrainerHandle& self, const std::optional<Tensors>& samples) {
            const Call call(self);
            return self.step(samples);
          },
          nb::arg("samples").none())
      .def("finish_step",
           [](TrainerHandle& self) {
             const Call call(self);
             self.finish_step();
           })
      .def("run_ahead", &TrainerHandle::run_ahead, nb::arg("on"))
      .def("evaluate",
           [](TrainerHandle& self, const std::string& split, int64_t steps) {
             const auto run = [&] {
               const Call call(self);
               return self.evaluate(split_named(split), steps);
             };
             return to_python(run());
           })
      .def(
          "evaluate_on",
          [](TrainerHandle& self, const std::optional<Tensors>& samples) {
            const auto run = [&] {
              const Call call(self);
              return self.evaluate(samples);
            };
            return to_python(run());
          },
          nb::arg("samples").none())
      .def(
          "logits",
          [](TrainerHandle& self, const std::optional<Tensors>& samples) {
            const Call call(self);
            return self.logits(samples);
          },
          nb::arg("samples").none());
}

void bind_halves(TrainerClass& trainer) {
  trainer
      .def(
          "compute_gradients",
          [](TrainerHandle& self, const std::optional<Tensors>& samples) {
            const Call call(self);
            self.compute_gradients(samples);
          },
          nb::arg("samples").none())
      .def("update",
           [](TrainerHandle& self) {
             const auto run = [&] {
               const Call call(self);
               return self.update();
             };
             return to_python(run());
           })
      .def(
          "answers",
          [](TrainerHandle& self, const std::vector<std::string>& requests, std::optional<int64_t> seed) {
            const Call call(self);
            return self.answers(requests, seed);
          },
          nb::arg("requests"), nb::arg("seed").none());
}

void bind_data(TrainerClass& trainer) {
  trainer.def("train", train, nb::arg("on_step"))
      .def("read",
           [](TrainerHandle& self, const std::string& split) {
             const Call call(self);
             return self.read(split_named(split));
           })
      .def("average",
           [](TrainerHandle& self, const at::Tensor& tensor) {
             const Call call(self);
             return self.finished_trainer().average(tensor);
           })
      .def("gather", [](TrainerHandle& self, const at::Tensor& tensor) {
        const Call call(self);
        return self.finished_trainer().gather(tensor);
      });
}

void bind_weights(TrainerClass& trainer) {
  trainer.def("parameters", parameters)
      .def("whole_parameters",
           [](TrainerHandle& self) {
             const Call call(self);
             return whole_parameters(self.finished_trainer());
           })
      .def("gathered",
           [](TrainerHandle& self, const ParameterInfo& info) {
             const Call call(self);
             return gathered(self.finished_trainer(), info);
           })
      .def("hf_tensors", hf_tensors)
      .def("assign",
           [](TrainerHandle& self, const std::string& name, const at::Tensor& whole) {
             const Call call(self);
             assign(self.finished_trainer(), name, whole);
           })
      .def("finish_assignment", [](TrainerHandle& self) {
        const Call call(self);
        finish_assignment(self.finished_trainer());
      });
}

void bind_state(TrainerClass& trainer) {
  trainer.def("checkpoint_config", &TrainerHandle::checkpoint_config)
      .def("close", &TrainerHandle::close_in_turn, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("is_open", &TrainerHandle::is_open)
      .def_prop_ro("mesh",
                   [](TrainerHandle& self) {
                     self.trainer();
                     return self.mesh();
                   })
      .def_prop_ro("iteration", [](TrainerHandle& self) { return self.trainer().state().iteration; })
      .def_prop_ro("consumed_samples",
                   [](TrainerHandle& self) { return self.trainer().state().consumed_train_samples; })
      .def_prop_ro("train_iters", [](TrainerHandle& self) { return self.trainer().train_iters(); })
      .def_prop_ro("global_batch_size",
                   [](TrainerHandle& self) { return self.trainer().global_batch_size(); })
      .def_prop_ro("micro_batches",
                   [](TrainerHandle& self) { return self.trainer().batch_size().microbatches; })
      .def_prop_ro("resumed_folder", [](TrainerHandle& self) { return self.trainer().resumed_folder(); })
      .def_prop_ro("reads",
                   [](TrainerHandle& self) { return reads_data(self.trainer().model().batch, self.mesh()); })
      .def_prop_ro("settings", &TrainerHandle::settings)
      .def_prop_ro("device", [](TrainerHandle& self) { return self.trainer().device().str(); })
      .def("columns", [](TrainerHandle& self) {
        nb::list rows;
        for (const Column& column : self.trainer().model().batch) {
          if (column.is_read()) rows.append(nb::make_tuple(column.name, column.shape));
        }
        return rows;
      });
}

}  // namespace

void bind_trainer(nb::module_& m) {
  nb::class_<ParameterInfo>(m, "ParameterInfo")
      .def_ro("name", &ParameterInfo::name)
      .def_ro("shape", &ParameterInfo::shape);
  nb::class_<SplitReader>(m, "SplitReader").def("next", [](SplitReader& self) {
    const Door door;
    return self.next();
  });
  nb::class_<StepOutcome>(m, "StepOutcome")
      .def_prop_ro("is_known", &StepOutcome::is_known)
      .def("values", [](const StepOutcome& self) { return to_python(self.result()); });
  TrainerClass trainer(m, "Trainer");
  bind_steps(trainer);
  bind_halves(trainer);
  bind_checkpoints(trainer);
  bind_data(trainer);
  bind_weights(trainer);
  bind_state(trainer);
}

}  // namespace teratron::python
