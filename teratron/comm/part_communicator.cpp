#include "teratron/comm/part_communicator.h"

#include <functional>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"

namespace teratron {
namespace {

struct CallingPart {
  std::string name;
  std::string group;
  int64_t rank = 0;  // global
};

// Until the call has been recorded.
class RecordedPart {
 public:
  RecordedPart(PartRecorder* recorder, const std::string& part) : recorder_(recorder) {
    if (recorder_) recorder_->set_part(part);
  }
  ~RecordedPart() {
    if (recorder_) recorder_->set_part("");
  }
  RecordedPart(const RecordedPart&) = delete;
  RecordedPart& operator=(const RecordedPart&) = delete;

 private:
  PartRecorder* recorder_;
};

// A failure that does not name the part was found elsewhere: this rank says where it was.
template <typename Call>
auto explained(const char* operation, const CallingPart& part, const Call& call) {
  try {
    return call();
  } catch (const Fault& fault) {
    const std::string reason = fault.what();
    if (reason.find(part.name) != std::string::npos) throw;
    throw Fault(
        fmt::format("{}; rank {} was in {} of {} in {}", reason, part.rank, operation, part.name, part.group),
        fault.exit_code());
  }
}

class PartCommunicator final : public Communicator {
 public:
  PartCommunicator(std::shared_ptr<Communicator> inner, CallingPart part)
      : inner_(std::move(inner)),
        recorder_(dynamic_cast<PartRecorder*>(inner_.get())),
        part_(std::move(part)),
        fault_point_("comm." + part_.name) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }

  Work all_reduce(at::Tensor tensor, ReduceOp op) override {
    return call("all_reduce", [&] { return inner_->all_reduce(tensor, op); });
  }
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return call("reduce_scatter", [&] { return inner_->reduce_scatter(output, input, op); });
  }
  Work reduce_scatter_pipelined(at::Tensor output, at::Tensor input, ReduceOp op,
                                const ProduceParts& produce) override {
    return call("reduce_scatter",
                [&] { return inner_->reduce_scatter_pipelined(output, input, op, produce); });
  }
  Work all_gather(at::Tensor output, at::Tensor input) override {
    return call("all_gather", [&] { return inner_->all_gather(output, input); });
  }
  Work broadcast(at::Tensor tensor, int64_t root) override {
    return call("broadcast", [&] { return inner_->broadcast(tensor, root); });
  }
  Work all_to_all(at::Tensor output, at::Tensor input) override {
    return call("all_to_all", [&] { return inner_->all_to_all(output, input); });
  }
  Work batch_isend_irecv(std::vector<P2POp> ops) override {
    return call("messages", [&] { return inner_->batch_isend_irecv(std::move(ops)); });
  }

  at::Tensor alloc_symmetric(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return inner_->alloc_symmetric(sizes, options);
  }
  void send_bytes(int64_t to, const std::string& bytes) override { inner_->send_bytes(to, bytes); }
  std::string receive_bytes(int64_t from) override { return inner_->receive_bytes(from); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return inner_->all_gather_bytes(bytes);
  }
  std::vector<std::string> gather_bytes(const std::string& bytes) override {
    return inner_->gather_bytes(bytes);
  }
  std::string broadcast_bytes(const std::string& bytes) override { return inner_->broadcast_bytes(bytes); }
  void barrier() override { inner_->barrier(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  Work call(const char* operation, const std::function<Work()>& start) const {
    return explained(operation, part_, [&] {
      fault_point(fault_point_);
      const RecordedPart recorded(recorder_, part_.name);
      return Work([operation, part = part_, work = start()]() mutable {
        explained(operation, part, [&] { work.wait(); });
      });
    });
  }

  std::shared_ptr<Communicator> inner_;
  PartRecorder* recorder_;  // null: calls are recorded without the part
  CallingPart part_;
  std::string fault_point_;
};

}  // namespace

Group of_part(const Group& group, const std::string& part) {
  if (group.size == 1) return group;
  Group named = group;
  named.communicator = std::make_shared<PartCommunicator>(
      group.communicator, CallingPart{.name = part,
                                      .group = describe_group(group.ranks),
                                      .rank = group.ranks.at(static_cast<size_t>(group.rank))});
  return named;
}

}  // namespace teratron
