#include "python/module/bindings.h"
#include "python/module/settings.h"
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "teratron/comm/launch_env.h"
#include "teratron/plan/rank_memory.h"
#include "teratron/settings/component_options.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

nb::list memory_of_stages(const Settings& settings) {
  const Arguments& args = settings.args();
  const ModelPlan model = settings.family().plan(args, planned_vocabulary(args));
  nb::list stages;
  for (int64_t stage = 0; stage < args.pipeline_model_parallel_size; ++stage) {
    const RankMemory memory = rank_memory(args, model, stage);
    nb::dict row;
    row["stage"] = stage;
    row["parameters"] = memory.parameters;
    row["weights"] = memory.weights;
    row["gradients"] = memory.gradients;
    row["optimizer"] = memory.optimizer;
    row["activations"] = memory.activations;
    row["temporary"] = memory.temporary;
    row["host"] = memory.host;
    row["peak"] = memory.peak();
    row["on_gpu"] = memory.on_gpu();
    stages.append(row);
  }
  return stages;
}

}  // namespace

void bind_settings(nb::module_& m) {
  nb::enum_<Data>(m, "Data")
      .value("later", Data::later)
      .value("settings", Data::settings)
      .value("program", Data::program);
  nb::class_<Settings>(m, "Settings")
      .def(
          "__init__",
          [](Settings* self, const std::string& family, std::vector<std::string> flags, int64_t world_size) {
            const nb::gil_scoped_release released;
            new (self) Settings(family, std::move(flags), world_size, Data::later);
          },
          nb::arg("family"), nb::arg("flags"), nb::arg("world_size"))
      .def("json", &Settings::json)
      .def_prop_ro("flags", &Settings::flags)
      .def_prop_ro("world_size", &Settings::world_size)
      .def_prop_ro("family", [](const Settings& self) { return std::string(self.family().name); })
      .def_prop_ro("notices", [](const Settings& self) { return self.parsed().notices; })
      .def("memory_of_stages", memory_of_stages)
      .def("tokenizer", [](const Settings& self) {
        const nb::gil_scoped_release released;
        return std::shared_ptr<Tokenizer>(build_tokenizer(tokenizer_options(self.args())));
      });
  // (name, is a boolean, flags that set it to false) of each setting.
  m.def("fields", [] {
    nb::list rows;
    for (const Field& field : arguments_schema().fields())
      rows.append(nb::make_tuple(std::string(field.name), field.type == FieldType::boolean,
                                 std::string(field.traits.off)));
    return rows;
  });
  m.def("launched_ranks", [] { return read_launch_env(process_environment).size; });
  m.def("launched_rank", [] { return read_launch_env(process_environment).rank; });
}

}  // namespace teratron::python
