#include <deque>

#include "python/module/door.h"
#include "python/module/hooks.h"
#include "python/module/nn.h"
#include "python/module/tensor_caster.h"
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nlohmann/json.hpp>

#include "teratron/base/error.h"
#include "teratron/ckpt/checkpoint.h"
#include "teratron/models/gpt/data/gpt_dataset.h"
#include "teratron/models/gpt/data/mock_gpt_dataset.h"
#include "teratron/models/weights.h"
#include "teratron/optim/lr_schedule.h"
#include "teratron/optim/optimizer.h"
#include "teratron/pipeline/executor.h"
#include "teratron/pipeline/pipeline_layout.h"
#include "teratron/pipeline/schedule.h"
#include "teratron/train/data/batch_source.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

// ---- Pipeline ----

/// One stage of a pipeline, which computes in Python.
class PipelineHandle {
 public:
  PipelineHandle(const Mesh& mesh, const std::shared_ptr<ParameterSet>& set)
      : mesh_(mesh), tensors_(set->options().tensors()) {
    connect_links(mesh_, tensors_);
  }

  int64_t rank() const { return mesh_.group(Axis::pp).rank; }
  int64_t size() const { return mesh_.group(Axis::pp).size; }

  /// `forward(i, input or None)` -> hidden states, or on the last stage the scalar to differentiate; `last()`
  /// is called before the last backward.
  void run(const Held& forward, const Held& last, const std::vector<int64_t>& shape, int64_t microbatches,
           bool forward_only) const {
    const MessageShape message{shape, tensors_};
    ChunkMessages messages;
    if (rank() > 0) messages.in = {message};
    if (rank() + 1 < size()) messages.out = {message};
    const auto compute = [&](const Action& action, const std::vector<at::Tensor>& inputs) {
      const nb::gil_scoped_acquire gil;
      const nb::object input = inputs.empty() ? nb::none() : nb::cast(inputs.front());
      return std::vector{checked((*forward)(action.microbatch, input), shape)};
    };
    const auto before_backward = [&](const Action& action) {
      if (action.microbatch != microbatches - 1 || !last) return;
      const nb::gil_scoped_acquire gil;
      (*last)();
    };
    run_schedule(
        schedule(rank(), {.stages = size(), .microbatches = microbatches, .forward_only = forward_only}),
        mesh_.pipeline_links(), {compute, before_backward, [&](const Action&) { return messages; }});
  }

 private:
  // What a forward returned.
  at::Tensor checked(const nb::object& result, const std::vector<int64_t>& shape) const {
    at::Tensor tensor;
    if (!nb::try_cast(result, tensor) || !tensor.defined())
      throw nb::type_error("forward() must return a tensor");
    if (rank() + 1 == size()) {
      if (tensor.numel() != 1) throw nb::value_error("forward() must return one number on the last stage");
    } else if (tensor.sizes() != at::IntArrayRef(shape)) {
      throw nb::value_error("forward() must return hidden states of the shape that run() was given");
    }
    return tensor;
  }

  Mesh mesh_;
  at::TensorOptions tensors_;
};

void bind_pipeline(nb::module_& m) {
  nb::class_<PipelineHandle>(m, "Pipeline")
      .def("__init__",
           [](PipelineHandle* self, const Mesh& mesh, const std::shared_ptr<ParameterSet>& set) {
             const Entry entry;
             new (self) PipelineHandle(mesh, set);
           })
      .def_prop_ro("rank", &PipelineHandle::rank)
      .def_prop_ro("size", &PipelineHandle::size)
      .def("layers",
           [](const PipelineHandle& self, int64_t layers) {
             const PipelineLayout layout = pipeline_layout({.layers = layers, .stages = self.size()});
             const StageSpec& spec = layout.virtual_stages.at(static_cast<size_t>(self.rank()));
             return nb::make_tuple(spec.first_layer, spec.first_layer + spec.layers);
           })
      .def(
          "run",
          [](const PipelineHandle& self, const nb::object& forward, const nb::object& last,
             const std::vector<int64_t>& shape, int64_t microbatches, bool forward_only) {
            const Held held_forward(forward), held_last(last);
            const Entry entry;
            self.run(held_forward, held_last, shape, microbatches, forward_only);
          },
          nb::arg("forward"), nb::arg("last").none(), nb::arg("shape"), nb::arg("microbatches"),
          nb::arg("forward_only"));
}

// ---- Optimizer ----

struct BuffersHandle {
  ParamAndGradBuffers buffers;

  BuffersHandle(ParameterSet& set, const Mesh& mesh, const ParamAndGradBuffer::Options& options,
                const AdamOptions& adam)
      : buffers(set, mesh, options, {}, {{adam_rule(adam)}}) {}
  BuffersHandle(const BuffersHandle&) = delete;
  BuffersHandle& operator=(const BuffersHandle&) = delete;
};

void bind_optimizer(nb::module_& m) {
  nb::class_<BuffersHandle>(m, "GradBuffers")
      .def(
          "__init__",
          [](BuffersHandle* self, const std::shared_ptr<ParameterSet>& set, const Mesh& mesh, bool sharded,
             int64_t bucket_size, const std::vector<double>& adam) {
            const AdamOptions rule{.beta1 = adam.at(0), .beta2 = adam.at(1), .eps = adam.at(2)};
            const Entry entry;
            new (self) BuffersHandle(*set, mesh, {.sharded = sharded, .bucket_size = bucket_size}, rule);
          },
          nb::keep_alive<1, 2>())
      .def("zero_grad", [](BuffersHandle& self) { self.buffers.zero_grad(); })
      .def("set_last_microbatch", [](BuffersHandle& self) { self.buffers.set_last_microbatch(); })
      .def("finish_grad_sync",
           [](BuffersHandle& self) {
             const Entry entry;
             self.buffers.finish_grad_sync();
           })
      .def("finish_param_gather", [](BuffersHandle& self) {
        const Entry entry;
        self.buffers.finish_param_gather();
      });
  nb::class_<Optimizer>(m, "Optimizer")
      .def(
          "__init__",
          [](Optimizer* self, BuffersHandle& buffers, const Mesh& mesh, double clip_grad) {
            const Entry entry;
            new (self) Optimizer(buffers.buffers, mesh, {.clip_grad = clip_grad});
          },
          nb::keep_alive<1, 2>())
      .def("step",
           [](Optimizer& self, double lr, double weight_decay) {
             const Entry entry;
             return self.step({.lr = lr, .weight_decay = weight_decay}).grad_norm;
           })
      .def_prop_rw("steps", &Optimizer::steps, &Optimizer::set_steps)
      .def("reset_master_weights", [](Optimizer& self) {
        const Entry entry;
        self.reset_master_weights();
      });
}

LrScheduleOptions schedule_options(const nb::dict& given) {
  LrScheduleOptions options;
  const auto take = [&](const char* name, double& value) {
    if (given.contains(name)) value = nb::cast<double>(nb::float_(given[name]));
  };
  take("init_lr", options.init_lr);
  take("max_lr", options.max_lr);
  take("min_lr", options.min_lr);
  take("warmup_samples", options.warmup_steps);
  take("decay_samples", options.decay_steps);
  options.start_weight_decay = options.end_weight_decay = 0.01;
  take("weight_decay", options.start_weight_decay);
  options.end_weight_decay = options.start_weight_decay;
  const auto style = nb::cast<std::string>(given["decay_style"]);
  const auto found = lr_decay_style_from_name(style);
  if (!found || *found == LrDecayStyle::wsd) {
    throw config_error({.what = fmt::format("'{}' is not a decay style", printable(style, 40)),
                        .where = "decay_style",
                        .fix = "Use constant, linear, cosine or inverse-square-root"});
  }
  options.decay_style = *found;
  return options;
}

void bind_schedule(nb::module_& m) {
  nb::class_<OptimizerParamScheduler>(m, "Schedule")
      .def("__init__",
           [](OptimizerParamScheduler* self, const nb::dict& options) {
             new (self) OptimizerParamScheduler(schedule_options(options));
           })
      .def_prop_ro("lr", [](const OptimizerParamScheduler& self) { return self.lr(); })
      .def_prop_ro("weight_decay", [](const OptimizerParamScheduler& self) { return self.wd(); })
      .def_prop_ro("samples", &OptimizerParamScheduler::num_steps)
      .def("step", &OptimizerParamScheduler::step)
      .def("state", [](const OptimizerParamScheduler& self) { return self.state().dump(); })
      .def("load", [](OptimizerParamScheduler& self, const std::string& state) {
        self.load(nlohmann::json::parse(state), ScheduleLoadRule::keep_flags);
      });
}

// ---- Checkpoints ----

// Weights, and the optimizer's moments, of which every replica has a part.
std::vector<StateTensor> saved_tensors(ParameterSet& set, const Optimizer* optimizer) {
  std::vector<StateTensor> all = weight_tensors(set);
  if (!optimizer) return all;
  for (const StateTensor& state : optimizer->state()) all.push_back(state);
  return all;
}

void save(const Mesh& mesh, const std::vector<StateTensor>& tensors, SaveRequest request) {
  std::deque<at::Tensor> host;
  for (const StateTensor& tensor : tensors) {
    std::vector<LocalTensor>& parts = request.tensors;
    parts.push_back(local_tensor(tensor, tensor.type()));
    host.push_back(tensor.read().to(at::kCPU).contiguous());
    parts.back().data = host.back().data_ptr();
  }
  save_checkpoint(request, *mesh.world().communicator);
}

// The saved state; nothing if there is no checkpoint.
std::optional<std::string> load(const Mesh& mesh, ParameterSet& set, Optimizer* optimizer,
                                const std::string& folder) {
  HostTensors host;
  for (const StateTensor& tensor : saved_tensors(set, optimizer)) host.add(tensor, tensor.type());
  const auto found =
      load_checkpoint({.directory = folder, .tensors = host.list()}, *mesh.world().communicator);
  if (!found) return std::nullopt;
  host.copy_from_host();
  set.on_loaded(optimizer != nullptr);
  return found->state;
}

void bind_checkpoints(nb::module_& m) {
  m.def(
      "save_loop",
      [](const Mesh& mesh, const std::shared_ptr<ParameterSet>& set, const Optimizer* optimizer,
         const std::string& folder, int64_t iteration, const std::string& state) {
        const Entry entry;
        save(mesh, saved_tensors(*set, optimizer),
             {.directory = folder, .iteration = iteration, .state = state});
      },
      nb::arg("mesh"), nb::arg("set"), nb::arg("optimizer").none(), nb::arg("folder"), nb::arg("iteration"),
      nb::arg("state"));
  m.def(
      "load_loop",
      [](const Mesh& mesh, const std::shared_ptr<ParameterSet>& set, Optimizer* optimizer,
         const std::string& folder) {
        const Entry entry;
        return load(mesh, *set, optimizer, folder);
      },
      nb::arg("mesh"), nb::arg("set"), nb::arg("optimizer").none(), nb::arg("folder"));
}

// ---- Data ----

/// Its threads may wait for the GIL.
struct SampleReader {
  std::unique_ptr<BatchSource> source;

  ~SampleReader() {
    const nb::gil_scoped_release released;
    source.reset();
  }
};

std::shared_ptr<const Dataset> dataset_of(const nb::object& dataset, const BatchSchema& schema) {
  MockGPTDataset* mock = nullptr;
  if (nb::try_cast(dataset, mock) && mock) return std::make_shared<MockGPTDataset>(*mock);
  return std::make_shared<PythonDataset>(Held(dataset), schema, "train");
}

void bind_data(nb::module_& m) {
  nb::class_<MockGPTDataset>(m, "MockGPTDataset")
      .def("__init__", [](MockGPTDataset* self, int64_t samples, int64_t length, int64_t vocabulary) {
        new (self) MockGPTDataset({.samples = samples, .sequence_length = length, .vocab_size = vocabulary});
      });
  nb::class_<SampleReader>(m, "SampleReader")
      .def("__init__",
           [](SampleReader* self, const nb::object& dataset, const Mesh& mesh, const std::string& device,
              const std::vector<int64_t>& sizes) {
             const BatchSchema schema = gpt_schema(sizes.at(0), {});
             const std::shared_ptr<const Dataset> data = dataset_of(dataset, schema);
             const Group& replicas = mesh.data_parallel();
             const BatchSource::Options options{.loader = {.sampler = {.consumed_samples = sizes.at(2),
                                                                       .micro_batch_size = sizes.at(1),
                                                                       .dp_rank = replicas.rank,
                                                                       .dp_size = replicas.size},
                                                           .num_workers = 1},
                                                .schema = schema,
                                                .device = at::Device(device)};
             const Entry entry;
             new (self) SampleReader{std::make_unique<BatchSource>(data, options, mesh)};
           })
      .def("next", [](SampleReader& self) {
        const Entry entry;
        return PythonBatch(self.source->next());
      });
}

}  // namespace

void bind_loop(nb::module_& m) {
  bind_pipeline(m);
  bind_optimizer(m);
  bind_schedule(m);
  bind_checkpoints(m);
  bind_data(m);
}

}  // namespace teratron::python
