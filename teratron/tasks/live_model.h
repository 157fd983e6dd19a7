// Answers of a model in training, by its ranks together.
//
// The model's layers are built a second time, on the memory of the weights in training and on the same ranks,
// without sequence parallelism, FP8 and dropout. Every replica generates the same texts, so that all have the
// same tokens for the experts that they share. Nothing of the training is changed, and no random number of it
// is drawn.
#pragma once

#include <vector>

#include "teratron/comm/ranks/host_group.h"
#include "teratron/generate/json/request_json.h"
#include "teratron/generate/language_model.h"
#include "teratron/generate/request.h"
#include "teratron/train/trainer.h"

namespace teratron {

class LiveModel {
 public:
  /// Collective. The trainer must outlive it, and have a family that generates.
  explicit LiveModel(Trainer& trainer);

  /// How requests are read: sampled at temperature 1 with --seed, up to 64 new tokens, unless they say
  /// otherwise.
  RequestReader reader() const;
  /// What request_problems() allows.
  RequestLimits limits() const;
  /// Results in the order of the requests, which are valid; the same on every rank. Between calls no memory
  /// is held. Fault(out_of_memory), on all ranks, where memory does not hold keys and values. Collective.
  std::vector<GenerationResult> answers(const std::vector<GenerationRequest>& requests);

 private:
  Trainer& trainer_;
  HostGroup& ranks_;
  ParameterSet parameters_;
  LanguageModel model_;
};

}  // namespace teratron
