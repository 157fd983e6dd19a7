#include <new>

#include "python/module/bindings.h"
#include <ATen/ATen.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <torch/csrc/Exceptions.h>

#include "teratron/base/error.h"
#include "teratron/comm/torch_fault.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

const char* error_class(ExitCode code) {
  switch (code) {
    case ExitCode::config:
      return "ConfigError";
    case ExitCode::data:
      return "DataError";
    case ExitCode::checkpoint:
      return "CheckpointError";
    case ExitCode::numerics:
      return "NumericsError";
    case ExitCode::out_of_memory:
      return "OutOfMemory";
    default:
      return "Error";
  }
}

void raise(ExitCode code, const char* text, const std::vector<Problem>& problems) {
  const nb::object type = nb::module_::import_("teratron._errors").attr(error_class(code));
  nb::list list;
  for (const Problem& problem : problems)
    list.append(nb::make_tuple(problem.what, problem.where, problem.fix));
  nb::object error = type(text, nb::tuple(list), static_cast<int>(code));
  PyErr_SetObject(type.ptr(), error.ptr());
}

// The exception that torch raises for it.
PyObject* torch_class(const c10::Error& error) {
  if (dynamic_cast<const c10::IndexError*>(&error)) return PyExc_IndexError;
  if (dynamic_cast<const c10::ValueError*>(&error)) return PyExc_ValueError;
  if (dynamic_cast<const c10::TypeError*>(&error)) return PyExc_TypeError;
  if (dynamic_cast<const c10::NotImplementedError*>(&error)) return PyExc_NotImplementedError;
  return PyExc_RuntimeError;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UserError& error) {
    raise(error.exit_code(), error.what(), error.problems());
  } catch (const Fault& error) {
    raise(error.exit_code(), error.what(), {});
  } catch (const c10::Error& error) {
    const Fault fault = to_fault(error);
    if (fault.exit_code() == ExitCode::out_of_memory) return raise(fault.exit_code(), fault.what(), {});
    PyErr_SetString(torch_class(error), error.what_without_backtrace());
  } catch (::python_error& error) {  // of a backward in Python, which may have set it already
    if (!PyErr_Occurred()) error.restore();
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator(translate);
}

}  // namespace teratron::python
