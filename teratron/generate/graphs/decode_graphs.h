// Steps that decode one token of each sequence, as CUDA graphs: forward and sampling are one launch. There is
// a graph for each of a few batch sizes and each kind of sampling; smaller batches are padded with rows that
// write to page 0.
//
// While the host works on the tokens of a step, the device does the next one, whose tokens it has: a step
// that continues (step.h) is followed by the next at once. If that is the step the engine then asks for, its
// tokens are there already; else it is done for nothing, and what it wrote is written again or never read.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <c10/core/Event.h>

#include "teratron/device/device_graph.h"
#include "teratron/generate/request.h"
#include "teratron/generate/sampling.h"
#include "teratron/generate/step.h"

namespace teratron {

/// The pages of the rows of a step on the device, in static memory.
class PageTable {
 public:
  struct Shape {
    int64_t rows = 0, width = 0;                                     // width: pages of the longest sequence
    const std::vector<int32_t>* StepRow::* pages = &StepRow::pages;  // or those of its source
  };
  PageTable() = default;
  PageTable(const Shape& shape, at::Device device);
  /// Sets the first `count` rows; others have page 0. Copies what changed; whether anything did.
  bool set(const std::vector<StepRow>& rows, int64_t count, int64_t padded);
  at::Tensor rows(int64_t count) const { return device_.narrow(0, 0, count); }

 private:
  Shape shape_;
  at::Tensor host_, device_;  // i32 [rows, width]
};

/// A number for each row of a step on the device, in static memory.
class RowNumbers {
 public:
  RowNumbers() = default;
  RowNumbers(int64_t rows, at::Device device);
  /// Sets the first rows. Copies them if they changed; whether they did.
  bool set(const std::vector<int64_t>& numbers);
  at::Tensor rows(int64_t count) const { return device_.narrow(0, 0, count); }

 private:
  std::vector<int64_t> host_;
  at::Tensor device_;  // i64 [rows]
};

/// The pages of the sources of the rows, and their last positions.
class SourceTable {
 public:
  SourceTable() = default;
  SourceTable(int64_t rows, int64_t width, at::Device device);
  /// As PageTable::set(); others have position 0.
  bool set(const std::vector<StepRow>& rows, int64_t count, int64_t padded);
  at::Tensor pages(int64_t count) const { return pages_.rows(count); }
  at::Tensor last(int64_t count) const { return last_.rows(count); }

 private:
  PageTable pages_;
  RowNumbers last_;
};

class DecodeGraphs {
 public:
  /// Tokens and positions i64 [R] -> f64 [N, R] as sample_rows(). Everything else it uses must be static.
  using Body = std::function<at::Tensor(const at::Tensor& tokens_R, const at::Tensor& positions_R,
                                        const at::Tensor& parameters_R5, const SamplingNeeds& needs)>;
  /// `replayed`: called when a step was launched that replays the collectives of its capture; may be empty.
  DecodeGraphs(int64_t max_rows, at::Device device, std::function<void()> replayed = {});
  ~DecodeGraphs();
  /// The size of a batch of so many rows.
  int64_t padded_rows(int64_t rows) const;
  /// f64 [N, padded rows] on the host, valid until the next call. Waits for the step, not for the next one.
  /// `same_pages`: those of the rows are as in the call before.
  at::Tensor run(const StepInput& step, bool same_pages, const Body& body);

 private:
  struct Captured {
    bool warm = false;  // ran eagerly: libraries are initialized
    std::unique_ptr<DeviceGraph> graph;
    int64_t values = 2;  // of a row of the result
  };
  /// What a step reads and writes on the host: two, as two steps may be in flight. For n rows: i64 [n]
  /// tokens, i64 [n] positions, f64 [n, 5] sampling parameters. A graph copies them to `input_`, so that a
  /// step is one launch; a token of -1 is the one chosen last.
  struct Slot {
    at::Tensor input, result;
    std::optional<c10::Event> done;
    std::map<std::pair<int64_t, SamplingNeeds>, Captured> graphs;
  };
  struct Ahead {
    StepInput step;  // its tokens are not set
    SamplingNeeds needs;
  };

  static StepInput step_after(const StepInput& step);
  bool is_ahead(const StepInput& step, const SamplingNeeds& needs) const;
  void launch(const StepInput& step, const SamplingNeeds& needs, const Body& body);
  void set_input(const StepInput& step, int64_t padded);
  const DeviceGraph* any_graph() const;
  void wait(Slot& slot) const;

  int64_t max_rows_;
  at::Device device_;
  std::function<void()> replayed_;
  at::Tensor input_, chosen_;  // on the device; f64 [n] ids
  std::array<Slot, 2> slots_;
  int current_ = 0;                     // the slot launched last
  std::vector<int64_t> chosen_tokens_;  // by the last call
  std::optional<Ahead> ahead_;          // in flight, in the current slot
};

/// What choosing the next tokens of a step needs.
SamplingNeeds needs_of(const StepInput& step);

}  // namespace teratron
