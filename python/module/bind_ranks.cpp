#include <exception>

#include "python/module/bindings.h"
#include "python/module/door.h"
#include "python/module/held.h"
#include "python/module/ranks.h"
#include "python/module/settings.h"
#include "python/module/tensor_caster.h"
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include "teratron/base/log.h"
#include "teratron/comm/collectives.h"
#include "teratron/comm/host/thread_world.h"
#include "teratron/comm/single_world.h"
#include "teratron/device/device.h"
#include "teratron/train/engine/engine_options.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

// A rank whose GPU does not return cannot be left otherwise.
void exit_immediately(const Fault& fault) {
  error_line(fault.what());
  _exit(static_cast<int>(fault.exit_code()));
}

WorldOptions world_options(const Settings& settings) {
  const Arguments& args = settings.args();
  WorldOptions options{.timeout = std::chrono::minutes(args.distributed_timeout_minutes)};
  if (args.distributed_timeout_seconds_after_init)
    options.timeout_after_start = std::chrono::seconds(*args.distributed_timeout_seconds_after_init);
  if (choose_device(args).is_cuda()) {
    const LaunchEnv launch = read_launch_env(process_environment);
    options.gpu = static_cast<int>(launch.local_rank % gpu_count());
    options.on_hang = exit_immediately;
  }
  return options;
}

void run_threads(int64_t ranks, const nb::object& function) {
  const Held held(function);
  const Door door;
  run_ranks(ranks, [&](World& world) {
    const nb::gil_scoped_acquire gil;
    const auto rank = std::make_shared<Rank>(world);
    struct End {
      Rank& rank;
      ~End() {
        const nb::gil_scoped_release released;
        rank.end();
      }
    } const end{*rank};
    (*held)(nb::cast(rank));
  });
}

ReduceOp reduce_op(const std::string& name) {
  if (name == "sum") return ReduceOp::sum;
  if (name == "max") return ReduceOp::max;
  if (name == "min") return ReduceOp::min;
  throw config_error({.what = fmt::format("'{}' is not a reduction", printable(name, 40)),
                      .where = "op",
                      .fix = "Use sum, max or min"});
}

// What the ranks can exchange.
void check_tensor(const at::Tensor& tensor, int64_t least_dimensions = 0) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta())
    throw nb::type_error("a collective takes a dense torch.Tensor with values");
  if (tensor.dim() < least_dimensions)
    throw nb::value_error("the collective takes a tensor of at least one dimension");
}

at::Tensor all_reduce(const Group& group, const at::Tensor& tensor, const std::string& op) {
  check_tensor(tensor);
  const Door door;
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  group.communicator->all_reduce(result, reduce_op(op)).wait();
  return result;
}

std::vector<int64_t> with_rows(const at::Tensor& tensor, int64_t rows) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.at(0) = rows;
  return shape;
}

at::Tensor all_gather(const Group& group, const at::Tensor& tensor) {
  check_tensor(tensor, 1);
  const Door door;
  const at::Tensor mine = tensor.detach().contiguous();
  const at::Tensor all = at::empty(with_rows(mine, mine.size(0) * group.size), mine.options());
  group.communicator->all_gather(all, mine).wait();
  return all;
}

at::Tensor reduce_scatter(const Group& group, const at::Tensor& tensor) {
  check_tensor(tensor, 1);
  if (tensor.dim() == 0 || tensor.size(0) % group.size != 0) {
    throw config_error(
        {.what = fmt::format("dimension 0 is not divisible by the {} ranks of the group", group.size),
         .where = "reduce_scatter()",
         .fix = "Pad it"});
  }
  const Door door;
  const at::Tensor all = tensor.detach().contiguous();
  const at::Tensor mine = at::empty(with_rows(all, all.size(0) / group.size), all.options());
  group.communicator->reduce_scatter(mine, all, ReduceOp::sum).wait();
  return mine;
}

at::Tensor broadcast(const Group& group, const at::Tensor& tensor, int64_t root) {
  check_tensor(tensor);
  if (root < 0 || root >= group.size) {
    throw config_error({.what = fmt::format("rank {} of a group of {}", root, group.size),
                        .where = "root",
                        .fix = "Use a rank of the group"});
  }
  const Door door;
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  group.communicator->broadcast(result, root).wait();
  return result;
}

int64_t dimension_of(const at::Tensor& tensor, int64_t dim) {
  check_tensor(tensor, 1);
  if (dim < -tensor.dim() || dim >= tensor.dim())
    throw nb::index_error(fmt::format("dimension {} of a tensor that has {}", dim, tensor.dim()).c_str());
  return dim < 0 ? dim + tensor.dim() : dim;
}

// Collectives whose backward is their adjoint (comm/collectives.h).
void bind_differentiable(nb::class_<Group>& group) {
  group
      .def("copy_to",
           [](const Group& self, const at::Tensor& x) {
             check_tensor(x);
             const Entry entry;
             return copy_to(x, self);
           })
      .def("reduce_from",
           [](const Group& self, const at::Tensor& x) {
             check_tensor(x);
             const Entry entry;
             return reduce_from(x, self);
           })
      .def("gather_from",
           [](const Group& self, const at::Tensor& x, int64_t dim) {
             dim = dimension_of(x, dim);
             const Entry entry;
             return gather_from(x, dim, self);
           })
      .def("scatter_to", [](const Group& self, const at::Tensor& x, int64_t dim) {
        dim = dimension_of(x, dim);
        if (x.size(dim) % self.size != 0)
          throw nb::value_error(
              fmt::format("scatter_to(): {} rows for {} ranks", x.size(dim), self.size).c_str());
        const Entry entry;
        return scatter_to(x, dim, self);
      });
}

}  // namespace

void bind_ranks(nb::module_& m) {
  nb::class_<Rank>(m, "Rank")
      .def_prop_ro("rank", [](const Rank& self) { return self.world().rank(); })
      .def_prop_ro("size", [](const Rank& self) { return self.world().size(); })
      .def_prop_ro("is_process", &Rank::is_process)
      .def("end", &Rank::end, nb::call_guard<nb::gil_scoped_release>())
      .def("fail", &Rank::fail, nb::call_guard<nb::gil_scoped_release>());
  m.def("join", [](const Settings& settings) {
    const Door door;
    return Rank::join(world_options(settings));
  });
  m.def("run_ranks", run_threads, nb::arg("ranks"), nb::arg("function"));
  nb::class_<Group> group(m, "Group");
  group.def_ro("rank", &Group::rank)
      .def_ro("size", &Group::size)
      .def("all_reduce", all_reduce, nb::arg("tensor"), nb::arg("op") = "sum")
      .def("all_gather", all_gather, nb::arg("tensor"))
      .def("reduce_scatter", reduce_scatter, nb::arg("tensor"))
      .def("broadcast", broadcast, nb::arg("tensor"), nb::arg("root") = 0)
      .def("barrier", [](const Group& self) {
        const Door door;
        self.communicator->barrier();
      });
  bind_differentiable(group);
  nb::class_<Mesh>(m, "Mesh")
      .def("__init__",
           [](Mesh* self, const Rank& rank, const nb::dict& sizes) {
             const auto size = [&](const char* axis, int64_t otherwise) {
               return sizes.contains(axis) ? nb::cast<int64_t>(sizes[axis]) : otherwise;
             };
             const MeshOptions options{.tp = size("tp", 1),
                                       .pp = size("pp", 1),
                                       .cp = size("cp", 1),
                                       .ep = size("ep", 1),
                                       .etp = size("etp", 0)};
             const Door door;
             new (self) Mesh(options, rank.world());
           })
      .def_prop_ro("rank", &Mesh::rank)
      .def_prop_ro("world_size", &Mesh::world_size)
      .def("group",
           [](const Mesh& self, const std::vector<std::string>& names) {
             AxisSet axes;
             for (const std::string& name : names) axes = axes | axis_named(name);
             const nb::gil_scoped_release released;
             return names.empty() ? self.world() : self.group(axes);
           })
      .def("__str__", [](const Mesh& self) { return to_string(self); });
}

}  // namespace teratron::python
