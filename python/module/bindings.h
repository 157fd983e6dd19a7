// The parts of the module teratron._engine, which the package's Python files wrap (python/teratron).
#pragma once

#include <nanobind/nanobind.h>

namespace teratron::python {

void bind_errors(nanobind::module_& module);
void bind_settings(nanobind::module_& module);
void bind_ranks(nanobind::module_& module);
void bind_batches(nanobind::module_& module);
void bind_trainer(nanobind::module_& module);
void bind_files(nanobind::module_& module);

}  // namespace teratron::python
