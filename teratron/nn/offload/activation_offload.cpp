#include "teratron/nn/offload/activation_offload.h"

#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "teratron/nn/offload/host_pool.h"
#include "teratron/nn/offload/transfer_stream.h"

namespace teratron {

// Not anonymous: fields of ActivationOffload::State.
namespace offload_detail {

constexpr int64_t alignment = 256;  // of ranges of a storage and of a block, in bytes

inline int64_t aligned(int64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

struct ByteRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// What a tensor covers of its storage, begun at an aligned address.
inline ByteRange bytes_of(const at::Tensor& x) {
  int64_t last = x.storage_offset();
  for (int64_t dim = 0; dim < x.dim(); ++dim) last += (x.size(dim) - 1) * x.stride(dim);
  const auto element = static_cast<int64_t>(x.element_size());
  return {x.storage_offset() * element / alignment * alignment, (last + 1) * element};
}

inline at::Tensor bytes_in(const c10::Storage& storage, const ByteRange& range) {
  return at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()))
      .set_(storage, range.begin, {range.size()}, {1});
}

// A range of a storage that autograd saved.
struct SavedStorage {
  enum class Place : uint8_t {
    device,
    leaving,   // the copy to the host is launched
    host,      //
    returning  // the copy to the device is launched
  };

  SavedStorage(c10::Storage storage_, const ByteRange& range_)
      : storage(std::move(storage_)), range(range_) {}
  // A copy may still read or write the memory.
  ~SavedStorage() { settle(); }
  SavedStorage(const SavedStorage&) = delete;
  SavedStorage& operator=(const SavedStorage&) = delete;

  bool on_device() const { return place != Place::host; }
  // Ends a copy under way for the current stream; the storage is then on the device.
  void settle() {
    if (!mark) return;
    mark->let_current_wait();
    mark.reset();
    host.reset();
    place = Place::device;
  }
  // Ends a copy to the host.
  void leave() {
    mark->let_current_wait();
    mark.reset();
    storage = c10::Storage();
    place = Place::host;
  }

  Place place = Place::device;
  c10::Storage storage;  // begins with byte `begin` of the original one
  int64_t begin = 0;
  ByteRange range;  // in the original one
  std::shared_ptr<const HostBlock> host;
  int64_t host_offset = 0;
  std::shared_ptr<const TransferMark> mark;  // of the copy under way
};

// A tensor in a saved storage.
struct SavedView {
  explicit SavedView(const at::Tensor& x)
      : sizes(x.sizes().vec()),
        strides(x.strides().vec()),
        offset(x.storage_offset()),
        options(x.options()) {}
  at::Tensor in(const SavedStorage& saved) const {
    const auto element = static_cast<int64_t>(options.dtype().itemsize());
    return at::empty({0}, options).set_(saved.storage, offset - saved.begin / element, sizes, strides);
  }

  std::vector<int64_t> sizes, strides;
  int64_t offset;
  at::TensorOptions options;
};

using Storages = std::vector<std::weak_ptr<SavedStorage>>;

}  // namespace offload_detail

using namespace offload_detail;

// What the passes of a stack share. The mutex guards it, the passes and their storages: the thread of a
// backward on a GPU may still release a graph when the next forward runs.
struct ActivationOffload::State {
  State(const OffloadOptions& options_, at::Device device_)
      : options(options_),
        device(device_),
        pool(std::make_shared<HostPool>(device_)),
        to_host(device_),
        to_device(device_) {}

  // Storages that nothing but autograd holds.
  void launch_to_host(const std::vector<std::shared_ptr<SavedStorage>>& storages) {
    if (storages.empty()) return;
    int64_t bytes = 0;
    for (const auto& saved : storages) bytes += aligned(saved->range.size());
    const auto block = std::make_shared<const HostBlock>(pool, bytes);
    to_host.follow_current();
    Storages batch;
    for (int64_t offset = 0; const auto& saved : storages) {
      copy(*saved, *block, offset, to_host);
      saved->host = block;
      saved->host_offset = offset;
      offset += aligned(saved->range.size());
      batch.push_back(saved);
    }
    const std::shared_ptr<const TransferMark> mark = to_host.mark();
    for (const auto& saved : storages) {
      saved->mark = mark;
      saved->place = SavedStorage::Place::leaving;
    }
    in_flight.push_back(std::move(batch));
  }

  void free_all_but(int64_t batches) {
    for (; std::ssize(in_flight) > batches; in_flight.pop_front()) {
      for (const std::weak_ptr<SavedStorage>& weak : in_flight.front()) {
        const std::shared_ptr<SavedStorage> saved = weak.lock();
        if (saved && saved->place == SavedStorage::Place::leaving) saved->leave();
      }
    }
  }

  void launch_to_device(const std::vector<std::shared_ptr<SavedStorage>>& storages) {
    if (storages.empty()) return;
    for (const auto& saved : storages) {
      saved->storage =
          at::empty({saved->range.size()}, at::TensorOptions(at::kByte).device(device)).storage();
      saved->begin = saved->range.begin;
    }
    to_device.follow_current();  // the memory was another tensor's
    for (const auto& saved : storages) copy(*saved, *saved->host, saved->host_offset, to_device);
    const std::shared_ptr<const TransferMark> mark = to_device.mark();
    for (const auto& saved : storages) {
      saved->mark = mark;
      saved->place = SavedStorage::Place::returning;
    }
  }

  void copy(const SavedStorage& saved, const HostBlock& block, int64_t offset, TransferStream& stream) const {
    const at::AutoGradMode no_grad(false);
    ByteRange range{saved.range.begin - saved.begin, saved.range.begin - saved.begin};
    for (const at::Tensor& piece : block.pieces(offset, offset + saved.range.size())) {
      range = {range.end, range.end + piece.numel()};
      const at::Tensor part = bytes_in(saved.storage, range);
      &stream == &to_host ? stream.copy(piece, part) : stream.copy(part, piece);
    }
  }

  OffloadOptions options;
  at::Device device;
  std::shared_ptr<HostPool> pool;
  TransferStream to_host, to_device;
  std::mutex mutex;
  std::deque<Storages> in_flight;  // batches on their way to the host, the oldest first
};

namespace {

using State = ActivationOffload::State;

class OffloadPass : public ActivationOffload::Pass, public std::enable_shared_from_this<OffloadPass> {
 public:
  explicit OffloadPass(std::shared_ptr<State> state)
      : state_(std::move(state)),
        schedule_(state_->options.schedule),
        steps_(static_cast<size_t>(schedule_.offloaded)),
        first_on_device_(schedule_.offloaded) {}

  std::unique_ptr<SavedTensorScope> save_step(int64_t step) override;
  void end_step(int64_t step, const at::Tensor& output) override;

  // Null: the tensor stays as it is.
  std::shared_ptr<SavedStorage> save(const at::Tensor& x, int64_t step);
  at::Tensor restore(const std::shared_ptr<SavedStorage>& saved, const SavedView& view);

 private:
  void begin_backward(int64_t step);

  std::shared_ptr<State> state_;
  OffloadSchedule schedule_;
  std::vector<Storages> steps_;  // by the step that saved them, some by several
  Storages waiting_;             // to be held by autograd alone
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<SavedStorage>> known_;
  int64_t first_on_device_;
};

class Hooks : public SavedTensorScope::Hooks {
 public:
  Hooks(std::shared_ptr<OffloadPass> pass, int64_t step) : pass_(std::move(pass)), step_(step) {}

  void call_pack_hook(const at::Tensor& x) override {
    saved_ = pass_->save(x, step_);
    if (saved_) {
      view_.emplace(x);
    } else {
      kept_ = x.tensor_data();
    }
  }
  at::Tensor call_unpack_hook() override { return saved_ ? pass_->restore(saved_, *view_) : kept_; }

 private:
  std::shared_ptr<OffloadPass> pass_;
  int64_t step_;
  std::shared_ptr<SavedStorage> saved_;
  std::optional<SavedView> view_;
  at::Tensor kept_;
};

std::unique_ptr<SavedTensorScope> OffloadPass::save_step(int64_t step) {
  if (step >= schedule_.offloaded) return nullptr;
  return std::make_unique<SavedTensorScope>(
      [pass = shared_from_this(), step] { return std::make_unique<Hooks>(pass, step); });
}

std::shared_ptr<SavedStorage> OffloadPass::save(const at::Tensor& x, int64_t step) {
  const bool is_plain = x.layout() == at::kStrided && x.has_storage() && !x.is_conj() && !x.is_neg();
  if (!is_plain || x.device() != state_->device || x.numel() == 0) return nullptr;
  if (static_cast<int64_t>(x.storage().nbytes()) < state_->options.min_bytes) return nullptr;
  const ByteRange range = bytes_of(x);
  const std::lock_guard lock(state_->mutex);
  std::weak_ptr<SavedStorage>& known = known_[x.storage().unsafeGetStorageImpl()];
  std::shared_ptr<SavedStorage> saved = known.lock();
  if (!saved || saved->storage.unsafeGetStorageImpl() != x.storage().unsafeGetStorageImpl() ||
      saved->place != SavedStorage::Place::device) {
    known = saved = std::make_shared<SavedStorage>(x.storage(), range);
    waiting_.push_back(saved);
  }
  saved->range = {std::min(saved->range.begin, range.begin), std::max(saved->range.end, range.end)};
  steps_[static_cast<size_t>(step)].push_back(saved);
  return saved;
}

void OffloadPass::end_step(int64_t step, const at::Tensor& output) {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::shared_ptr<SavedStorage>> leaving;
  Storages waiting;
  for (const std::weak_ptr<SavedStorage>& weak : waiting_) {
    std::shared_ptr<SavedStorage> saved = weak.lock();
    if (!saved) continue;
    if (saved->storage.use_count() == 1) {
      leaving.push_back(std::move(saved));
    } else {
      waiting.push_back(weak);
    }
  }
  waiting_ = std::move(waiting);
  state_->launch_to_host(leaving);
  state_->free_all_but(schedule_.most_in_flight(step));
  if (!output.requires_grad()) return;
  output.register_hook([pass = shared_from_this(), step](const at::Tensor&) { pass->begin_backward(step); });
}

void OffloadPass::begin_backward(int64_t step) {
  const std::lock_guard lock(state_->mutex);
  for (const int64_t first = schedule_.first_on_device(step); first_on_device_ > first;) {
    std::vector<std::shared_ptr<SavedStorage>> returning;
    for (const std::weak_ptr<SavedStorage>& weak : steps_[static_cast<size_t>(--first_on_device_)]) {
      std::shared_ptr<SavedStorage> saved = weak.lock();
      if (!saved || saved->on_device()) continue;
      saved->place = SavedStorage::Place::returning;  // a step may list it twice
      returning.push_back(std::move(saved));
    }
    state_->launch_to_device(returning);
  }
}

at::Tensor OffloadPass::restore(const std::shared_ptr<SavedStorage>& saved, const SavedView& view) {
  const std::lock_guard lock(state_->mutex);
  if (!saved->on_device()) state_->launch_to_device({saved});
  saved->settle();
  return view.in(*saved);
}

}  // namespace

std::shared_ptr<ActivationOffload::Pass> ActivationOffload::begin_pass(at::Device device) {
  if (!state_) state_ = std::make_shared<State>(options_, device);
  return std::make_shared<OffloadPass>(state_);
}

int64_t ActivationOffload::host_bytes() const {
  return state_ ? state_->pool->bytes() : 0;
}

}  // namespace teratron
