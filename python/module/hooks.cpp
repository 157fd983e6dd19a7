#include "python/module/hooks.h"

#include <algorithm>
#include <stdexcept>

#include "python/module/tensor_caster.h"
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace teratron::python {

namespace {

constexpr const char* expected =
    "return (sum, count), or (sum, count, {metric: sum}), each a tensor of one element or a number";

std::string class_of(nb::handle object) {
  return nb::type_name(object.type()).c_str();
}

// One number on the losses' device.
at::Tensor scalar(nb::handle value, const char* what, at::Device device) {
  if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr()))
    return at::full({}, nb::cast<double>(value), at::TensorOptions().dtype(at::kFloat).device(device));
  at::Tensor tensor;
  if (!nb::try_cast(value, tensor) || !tensor.defined())
    throw nb::type_error(fmt::format("loss(): its {} is a {}; {}", what, class_of(value), expected).c_str());
  if (tensor.numel() != 1)
    throw nb::type_error(
        fmt::format("loss(): its {} has the shape [{}]; {}", what, fmt::join(tensor.sizes(), ", "), expected)
            .c_str());
  if (tensor.device() != device) tensor = tensor.to(device);
  if (!tensor.is_floating_point()) tensor = tensor.to(at::kFloat);
  return tensor;
}

LossTerm loss_term(nb::handle sum, nb::handle count, at::Device device) {
  LossTerm term{.sum = scalar(sum, "sum", device), .count = scalar(count, "count", device).detach()};
  if (at::GradMode::is_enabled() && !term.sum.requires_grad())
    throw nb::value_error(
        "loss(): the loss does not depend on the model's output (was it detached, or computed under "
        "no_grad()?)");
  return term;
}

// What the model finds in a batch beside tokens, such as places and numbers of samples, is the source's.
void check_like(const MicroBatch& given, const std::optional<MicroBatch>& last) {
  constexpr const char* wanted = "return the Batch of source.next(), or Batch.replace() of it";
  if (!last) throw nb::value_error(fmt::format("get_batch() did not call source.next(): {}", wanted).c_str());
  const auto is_like = [](const at::Tensor& a, const at::Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    return a.sizes() == b.sizes() && a.device() == b.device() && a.scalar_type() == b.scalar_type();
  };
  for (const auto& [name, tensor] : last->tensors) {
    if (!is_like(given[name], tensor))
      throw nb::value_error(fmt::format("get_batch(): {} is another column: {}", name, wanted).c_str());
  }
  if (given.sample_ids_B.defined() != last->sample_ids_B.defined())
    throw nb::value_error(fmt::format("get_batch() returned another Batch: {}", wanted).c_str());
}

class PythonStep final : public TrainStep {
 public:
  PythonStep(const Held& object, size_t losses)
      : forward_step_(object->attr("forward_step")),
        get_batch_(object->attr("get_batch")),
        losses_(losses),
        names_(nb::cast<std::vector<std::string>>(nb::list(object->attr("metrics")))) {}

  std::vector<std::string> metric_names() const override { return names_; }

  MicroBatch get_batch(BatchSource& source, Padding padding) override {
    if (!get_batch_) return TrainStep::get_batch(source, padding);
    const nb::gil_scoped_acquire gil;
    const nb::object view = nb::cast(Source{&source, {}});
    struct End {
      Source& view;
      ~End() { view.source = nullptr; }
    } const end{nb::cast<Source&>(view)};
    const nb::object result = (*get_batch_)(view);
    PythonBatch* batch = nullptr;
    if (!nb::try_cast(result, batch) || !batch)
      throw nb::type_error(
          fmt::format("get_batch() returned a {}; return a Batch, as source.next() does", class_of(result))
              .c_str());
    check_like(batch->batch, nb::cast<Source&>(view).last);
    return batch->batch;
  }

  StepLoss forward_step(Model& model, const Activations& output, const MicroBatch& batch) override {
    if (!forward_step_) return TrainStep::forward_step(model, output, batch);
    const nb::gil_scoped_acquire gil;
    const auto view = std::make_shared<ModelOutput>(model, output, batch);
    struct End {
      ModelOutput& view;
      ~End() { view.end(); }
    } const end{*view};
    const nb::object result = (*forward_step_)(nb::cast(view), nb::cast(PythonBatch(batch)));
    return step_loss(result, device_of(batch));
  }

 private:
  static at::Device device_of(const MicroBatch& batch) {
    for (const auto& [name, tensor] : batch.tensors) {
      if (tensor.defined()) return tensor.device();
    }
    return at::kCPU;
  }

  StepLoss step_loss(const nb::object& result, at::Device device) const {
    if (!nb::isinstance<nb::tuple>(result) && !nb::isinstance<nb::list>(result))
      throw nb::type_error(fmt::format("loss() returned a {}; {}", class_of(result), expected).c_str());
    const nb::list items(result);
    const bool several = items.size() > 0 && nb::isinstance<nb::list>(items[0]);
    const size_t terms = several ? 1 : 2;
    if (items.size() < terms || items.size() > terms + 1)
      throw nb::type_error(fmt::format("loss() returned {} values; {}", items.size(), expected).c_str());
    StepLoss loss;
    if (several) {
      for (const nb::handle pair : nb::list(items[0])) {
        const nb::list both(pair);
        if (both.size() != 2)
          throw nb::type_error(
              fmt::format("loss() returned {} values for a loss; return [(sum, count), ...]", both.size())
                  .c_str());
        loss.losses.push_back(loss_term(both[0], both[1], device));
      }
    } else {
      loss.losses.push_back(loss_term(items[0], items[1], device));
    }
    if (loss.losses.size() != losses_)
      throw nb::type_error(
          fmt::format("loss() returned {} of the model's {} losses: return [(sum, count), ...]",
                      loss.losses.size(), losses_)
              .c_str());
    add_metrics(items.size() > terms ? nb::object(items[terms]) : nb::none(), device, loss);
    return loss;
  }

  void add_metrics(const nb::object& given, at::Device device, StepLoss& loss) const {
    if (!given.is_none() && !nb::isinstance<nb::dict>(given))
      throw nb::type_error(
          fmt::format("loss(): its metrics are a {}; {}", class_of(given), expected).c_str());
    const nb::dict metrics = given.is_none() ? nb::dict() : nb::cast<nb::dict>(given);
    for (const std::string& name : names_) {
      if (!metrics.contains(name.c_str()))
        throw nb::value_error(fmt::format("loss() did not return the metric '{}'", name).c_str());
      loss.metrics.push_back(scalar(metrics[name.c_str()], name.c_str(), device).detach());
    }
    for (const auto& [key, value] : metrics) {
      const auto name = nb::cast<std::string>(key);
      if (std::find(names_.begin(), names_.end(), name) == names_.end())
        throw nb::value_error(
            fmt::format("loss() returned the metric '{}', which the class does not declare: "
                        "metrics = (\"{}\",)",
                        name, name)
                .c_str());
    }
  }

  Held forward_step_, get_batch_;
  size_t losses_;
  std::vector<std::string> names_;
};

}  // namespace

Model& ModelOutput::model() const {
  if (model_) return *model_;
  throw std::runtime_error("the model's output is gone: it is there during forward_step() alone");
}

at::Tensor ModelOutput::token_losses() const {
  return model().token_losses(*output_, *batch_);
}

at::Tensor ModelOutput::logits() const {
  return model().logits(*output_);
}

std::vector<LossTerm> ModelOutput::losses() const {
  return model().losses(*output_, *batch_);
}

BertScores ModelOutput::bert_scores() const {
  if (auto* const bert = dynamic_cast<Bert*>(&model())) return bert->scores(*output_, *batch_);
  throw std::runtime_error("the model is not a BERT");
}

MicroBatch Source::next() {
  if (!source) throw std::runtime_error("the source is gone: it is there during get_batch() alone");
  last = source->next();
  return *last;
}

std::unique_ptr<TrainStep> python_step(const Held& object, size_t losses) {
  return std::make_unique<PythonStep>(object, losses);
}

ParamGroupFunction python_param_groups(const Held& function) {
  if (!function) return nullptr;
  return [function](const std::string& name, const std::vector<int64_t>& shape) -> ParamGroupChange {
    const nb::gil_scoped_acquire gil;
    nb::list sizes;
    for (const int64_t size : shape) sizes.append(size);
    const nb::object group = (*function)(name, nb::tuple(sizes));
    if (group.is_none()) return {};
    if (!nb::hasattr(group, "weight_decay") || !nb::hasattr(group, "lr_mult"))
      throw nb::type_error(
          fmt::format("param_groups({}) returned a {}; return a ParamGroup or None", name, class_of(group))
              .c_str());
    return {.weight_decay_mult = nb::cast<double>(nb::float_(group.attr("weight_decay"))),
            .lr_mult = nb::cast<double>(nb::float_(group.attr("lr_mult")))};
  };
}

}  // namespace teratron::python
