// What a layer keeps of the sequences of a generation, in static memory: per token in pages (keys and values
// of attention), per sequence in slots (the state of a recurrence).
//
// The engine asks for the needs, chooses how many pages and slots there are, and says which of them belong to
// which row of a step (generation_batch.h). It knows nothing else of a state.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace teratron {

/// Bytes on this rank.
struct StateNeeds {
  int64_t per_token = 0;
  int64_t per_sequence = 0;

  StateNeeds& operator+=(const StateNeeds& other) {
    per_token += other.per_token;
    per_sequence += other.per_sequence;
    return *this;
  }
};

/// Page 0 and slot 0 belong to no sequence: rows that pad a batch write there.
struct StateCapacity {
  int64_t page_size = 16;  // tokens
  int64_t pages = 0;
  int64_t slots = 0;
};

/// Pages and slots to copy, from[i] to to[i]. None is written that is read.
struct StateCopies {
  struct Pairs {
    std::vector<int32_t> from, to;
  };
  Pairs pages, slots;
};

class LayerState {
 public:
  LayerState() = default;
  LayerState(const LayerState&) = delete;
  LayerState& operator=(const LayerState&) = delete;
  virtual ~LayerState() = default;

  virtual StateNeeds needs() const = 0;
  /// Called once, before the first forward.
  virtual void allocate(const StateCapacity& capacity) = 0;
  virtual void copy(const StateCopies& copies) = 0;
  /// Whether a step of one token per row reads what differs between steps from tensors of GenerationBatch
  /// alone, so that it can be a CUDA graph.
  virtual bool decodes_from_tables() const = 0;
};

/// The states of the parts of a layer, or of the layers of a stage; null for what keeps nothing.
class LayerStates final : public LayerState {
 public:
  void add(std::unique_ptr<LayerState> state) { states_.push_back(std::move(state)); }
  LayerState* operator[](size_t i) const { return states_.at(i).get(); }

  StateNeeds needs() const override;
  void allocate(const StateCapacity& capacity) override;
  void copy(const StateCopies& copies) override;
  bool decodes_from_tables() const override;

 private:
  std::vector<std::unique_ptr<LayerState>> states_;
};

}  // namespace teratron
