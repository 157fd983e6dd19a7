#include "python/module/bindings.h"
#include "python/module/door.h"
#include "python/module/files.h"
#include "python/module/generation.h"
#include "python/module/tensor_caster.h"
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "teratron/cli/commands.h"
#include "teratron/data/indexed/indexed_dataset.h"
#include "teratron/data/indexed/indexed_dataset_builder.h"
#include "teratron/tokenizer/build_tokenizer.h"

namespace nb = nanobind;

namespace teratron::python {

namespace {

TokenizerOptions tokenizer_options(const std::string& type, const nb::dict& given) {
  TokenizerOptions options{.type = type};
  const auto take = [&](const char* name, auto& value) {
    if (given.contains(name)) value = nb::cast<std::decay_t<decltype(value)>>(given[name]);
  };
  take("vocab_file", options.vocab_file);
  take("merge_file", options.merge_file);
  take("tokenizer_model", options.tokenizer_model);
  take("vocab_size", options.vocab_size);
  take("vocab_extra_ids", options.vocab_extra_ids);
  take("include_special_tokens", options.include_special_tokens);
  return options;
}

nb::object id_or_none(const std::optional<int32_t>& id) {
  return id ? nb::object(nb::int_(*id)) : nb::none();
}

at::Tensor sequence(const IndexedDataset& self, int64_t i) {
  if (i < 0) i += self.sequences();
  if (i < 0 || i >= self.sequences())
    throw nb::index_error(fmt::format("sequence {} of {}", i, self.sequences()).c_str());
  std::vector<int64_t> tokens;
  {
    const nb::gil_scoped_release released;
    self.read(i, 0, -1, tokens);
  }
  return at::tensor(tokens, at::kLong);
}

void bind_checkpoint(nb::module_& m) {
  nb::class_<CheckpointFile>(m, "Checkpoint")
      .def(
          "__init__",
          [](CheckpointFile* self, const std::string& folder, std::optional<int64_t> iteration) {
            const nb::gil_scoped_release released;
            new (self) CheckpointFile(folder, iteration);
          },
          nb::arg("folder"), nb::arg("iteration").none())
      .def_prop_ro("path", [](const CheckpointFile& self) { return self.info().path.string(); })
      .def_prop_ro("iteration", [](const CheckpointFile& self) { return self.info().iteration; })
      .def_prop_ro("config", [](const CheckpointFile& self) { return self.info().config; })
      .def_prop_ro("state", [](const CheckpointFile& self) { return self.info().state; })
      .def("names",
           [](const CheckpointFile& self) {
             std::vector<std::string> names;
             for (const auto& [name, tensor] : self.info().tensors) names.push_back(name);
             return names;
           })
      .def("shape",
           [](const CheckpointFile& self, const std::string& name) { return self.tensor(name).shape; })
      .def("read",
           [](const CheckpointFile& self, const std::string& name) {
             const Door door;
             return self.read(name);
           })
      .def("verify", &CheckpointFile::verify, nb::call_guard<nb::gil_scoped_release>());
}

void bind_text(nb::module_& m) {
  nb::class_<Generator>(m, "Generator")
      .def("__init__",
           [](Generator* self, const std::vector<std::string>& flags) {
             const Door door;
             new (self) Generator(flags);
           })
      .def("generate",
           [](Generator& self, const std::vector<std::string>& prompts,
              const std::vector<std::string>& flags) {
             const Door door;
             return self.generate(prompts, flags);
           })
      .def("logits",
           [](Generator& self, const at::Tensor& ids) {
             const Door door;
             return self.logits(ids);
           })
      .def("json", &Generator::json)
      .def_prop_ro("iteration", &Generator::iteration);
  nb::class_<Tokenizer>(m, "Tokenizer")
      .def("encode",
           [](const Tokenizer& self, const std::string& text) {
             const nb::gil_scoped_release released;
             std::vector<int32_t> ids;
             self.encode(text, ids);
             return ids;
           })
      .def("decode",
           [](const Tokenizer& self, const std::vector<int32_t>& ids) {
             const std::string text = self.decode(ids);
             return nb::bytes(text.data(), text.size());
           })
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def_prop_ro("eod", [](const Tokenizer& self) { return id_or_none(self.special().eod); })
      .def_prop_ro("bos", [](const Tokenizer& self) { return id_or_none(self.special().bos); })
      .def_prop_ro("eos", [](const Tokenizer& self) { return id_or_none(self.special().eos); })
      .def_prop_ro("pad", [](const Tokenizer& self) { return id_or_none(self.special().pad); });
  m.def("build_tokenizer", [](const std::string& type, const nb::dict& options) {
    const TokenizerOptions all = tokenizer_options(type, options);
    const nb::gil_scoped_release released;
    return std::shared_ptr<Tokenizer>(build_tokenizer(all));
  });
}

}  // namespace

void bind_files(nb::module_& m) {
  bind_checkpoint(m);
  bind_text(m);
  nb::class_<IndexedDataset>(m, "IndexedDataset")
      .def("__init__",
           [](IndexedDataset* self, const std::string& prefix) {
             new (self) IndexedDataset(strip_dataset_suffix(prefix));
           })
      .def("__len__", &IndexedDataset::sequences)
      .def("__getitem__", sequence)
      .def_prop_ro("sizes", [](const IndexedDataset& self) { return self.lengths(0, self.sequences()); })
      .def_prop_ro("documents",
                   [](const IndexedDataset& self) { return self.document_starts(0, self.documents() + 1); });
  nb::class_<IndexedDatasetBuilder>(m, "IndexedDatasetBuilder")
      .def("__init__",
           [](IndexedDatasetBuilder* self, const std::string& prefix, int64_t vocabulary) {
             new (self) IndexedDatasetBuilder(prefix, token_dtype(vocabulary));
           })
      .def("add_sequence",
           [](IndexedDatasetBuilder& self, const std::vector<int32_t>& tokens) { self.add_sequence(tokens); })
      .def("end_document", &IndexedDatasetBuilder::end_document)
      .def("finalize", &IndexedDatasetBuilder::finalize);
  m.def("ckpt", [](const std::vector<std::string>& arguments) {
    const Door door;
    return ckpt_command(arguments);
  });
}

}  // namespace teratron::python
