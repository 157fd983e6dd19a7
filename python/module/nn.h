// Layers, and what a training loop needs beside them, for loops that a program writes itself.
#pragma once

#include <memory>

#include <ATen/ATen.h>
#include <nanobind/nanobind.h>

#include "teratron/nn/linear.h"

namespace teratron::python {

/// A place in the tree of names of a set of parameters, which lives as long as anything of it.
struct ScopeHandle {
  std::shared_ptr<ParameterSet> set;
  Scope scope;
};

/// A tensor, or the output of a layer with a bias whose gradient is due.
Hidden hidden_of(nanobind::handle value);

void bind_layers(nanobind::module_& module);
void bind_loop(nanobind::module_& module);

}  // namespace teratron::python
