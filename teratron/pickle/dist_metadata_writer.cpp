#include "teratron/pickle/dist_metadata.h"
#include "teratron/pickle/globals.h"
#include "teratron/pickle/pickle_writer.h"

namespace teratron {

namespace {

constexpr std::string_view module = "torch.distributed.checkpoint.metadata";

class MetadataPickle {
 public:
  explicit MetadataPickle(const DistMetadata& metadata) : metadata_(metadata) {}

  std::string write() {
    pickle_.begin_object(module, "Metadata");
    pickle_.text("state_dict_metadata");
    pickle_.begin(PickledDict::plain);
    for (const std::string& name : metadata_.order) {
      pickle_.text(name);
      add_tensor(metadata_.tensors.at(name));
    }
    for (const auto& [name, item] : metadata_.items) {
      pickle_.text(name);
      pickle_.object(module, "BytesStorageMetadata");
    }
    pickle_.end(PickledDict::plain);
    for (const char* name : {"planner_data", "storage_meta"}) {
      pickle_.text(name);
      pickle_.none();
    }
    pickle_.text("version");
    pickle_.text("1.0.0");
    add_places();
    pickle_.end_object();
    return pickle_.finish();
  }

 private:
  void add_size(const std::vector<int64_t>& size) {
    pickle_.begin_call("torch", "Size");
    pickle_.begin_tuple();
    for (const int64_t value : size) pickle_.integer(value);
    pickle_.end_tuple();
    pickle_.end_call();
  }

  // Its state is a tuple: dtype, layout, requires_grad, memory format, pinned.
  void add_properties(Dtype dtype) {
    pickle_.object(module, "TensorProperties");
    pickle_.begin_state();
    const std::string_view name = torch_dtype(dtype);
    pickle_.global("torch", name);
    pickle_.begin_call("torch.serialization", "_get_layout");
    pickle_.text("torch.strided");
    pickle_.end_call();
    pickle_.boolean(false);
    pickle_.begin_call(module, "_MEM_FORMAT_ENCODING");
    pickle_.integer(0);
    pickle_.end_call();
    pickle_.boolean(false);
    pickle_.end_state();
  }

  void add_tensor(const DistTensor& tensor) {
    pickle_.begin_object(module, "TensorStorageMetadata");
    pickle_.text("properties");
    add_properties(tensor.dtype);
    pickle_.text("size");
    add_size(tensor.shape);
    pickle_.text("chunks");
    pickle_.begin_list();
    for (const DistChunk& chunk : tensor.chunks) {
      pickle_.begin_object(module, "ChunkStorageMetadata");
      pickle_.text("offsets");
      add_size(chunk.offsets);
      pickle_.text("sizes");
      add_size(chunk.sizes);
      pickle_.end_object();
    }
    pickle_.end_list();
    pickle_.end_object();
  }

  // `offsets`: of the chunk; nullptr if it is not a tensor.
  void add_place(const std::string& name, const std::vector<int64_t>* offsets, const DistItem& item) {
    pickle_.begin_object(module, "MetadataIndex");
    pickle_.text("fqn");
    pickle_.text(name);
    pickle_.text("offset");
    offsets ? add_size(*offsets) : pickle_.none();
    pickle_.text("index");
    pickle_.none();
    pickle_.end_object();
    pickle_.begin_object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    pickle_.text("relative_path");
    pickle_.text(item.file);
    pickle_.text("offset");
    pickle_.integer(item.offset);
    pickle_.text("length");
    pickle_.integer(item.bytes);
    pickle_.end_object();
  }

  void add_places() {
    pickle_.text("storage_data");
    pickle_.begin(PickledDict::plain);
    for (const std::string& name : metadata_.order) {
      for (const DistChunk& chunk : metadata_.tensors.at(name).chunks)
        add_place(name, &chunk.offsets, chunk.item);
    }
    for (const auto& [name, item] : metadata_.items) add_place(name, nullptr, item);
    pickle_.end(PickledDict::plain);
  }

  const DistMetadata& metadata_;
  PickleWriter pickle_;
};

}  // namespace

std::string write_dist_metadata(const DistMetadata& metadata) {
  return MetadataPickle(metadata).write();
}

}  // namespace teratron
