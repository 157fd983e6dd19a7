#include "teratron/comm/part_communicator.h"

#include <functional>
#include <utility>

#include <fmt/format.h>

#include "teratron/base/error.h"
#include "teratron/base/fault_point.h"
#include "teratron/comm/forwarding_communicator.h"

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

class PartCommunicator final : public ForwardingCommunicator {
 public:
  PartCommunicator(std::shared_ptr<Communicator> inner, CallingPart part)
      : ForwardingCommunicator(std::move(inner)),
        recorder_(dynamic_cast<PartRecorder*>(this->inner().get())),
        part_(std::move(part)),
        fault_point_("comm." + part_.name) {}

 private:
  Work start(const char* operation, const std::function<Work()>& collective) override {
    return explained(operation, part_, [&] {
      fault_point(fault_point_);
      const RecordedPart recorded(recorder_, part_.name);
      return Work([operation, part = part_, work = collective()]() mutable {
        explained(operation, part, [&] { work.wait(); });
      });
    });
  }

  PartRecorder* recorder_;  // null: calls are recorded without the part
  CallingPart part_;
  std::string fault_point_;
};

}  // namespace

Group named_group(const Group& group, const std::string& part) {
  if (group.size == 1) return group;
  Group named = group;
  named.communicator = std::make_shared<PartCommunicator>(
      group.communicator,
      CallingPart{.name = part, .group = describe_group(group.ranks.all()), .rank = group.ranks[group.rank]});
  return named;
}

}  // namespace teratron
