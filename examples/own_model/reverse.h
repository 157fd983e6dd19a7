// An encoder reads a sequence, a classifier names its kind, and a decoder with a gated recurrence in place of
// self-attention writes it backwards.
#pragma once

#include "teratron/models/family.h"

struct ReverseSettings {
  int64_t encoder_layers = 2;
  int64_t source_length = 16;
  int64_t kinds = 4;
};

/// Its flags set `settings`, which must outlive it.
teratron::Family reverse_family(ReverseSettings& settings);
