// teratron._engine: the engine as the package's Python files call it. Import torch first.
#include "python/module/bindings.h"
#include "python/module/door.h"
#include "python/module/nn.h"
#include <nanobind/nanobind.h>

NB_MODULE(_engine, module) {
  nanobind::set_leak_warnings(false);  // a trainer that a traceback still holds at the exit is not an error
  teratron::python::note_process();
  module.def("keep", [](const nanobind::object& object) { object.inc_ref(); });  // indefinitely
  teratron::python::bind_errors(module);
  teratron::python::bind_settings(module);
  teratron::python::bind_ranks(module);
  teratron::python::bind_batches(module);
  teratron::python::bind_trainer(module);
  teratron::python::bind_files(module);
  teratron::python::bind_layers(module);
  teratron::python::bind_loop(module);
}
