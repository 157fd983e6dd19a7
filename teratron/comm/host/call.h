// What a rank asks of its group: an entry of the ledger on which all ranks must agree.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace teratron {

struct Call {
  std::string operation;  // "all_reduce(sum)"
  std::string dtype;
  std::vector<int64_t> shape;
  bool operator==(const Call&) const = default;
};

/// "all_reduce(sum) Float [4, 2]". Equal calls have equal texts and different calls different ones.
std::string to_string(const Call& call);

/// "group [0 2]" and "ranks 0, 2".
std::string group_in_words(std::span<const int64_t> ranks);
std::string ranks_in_words(std::span<const int64_t> ranks);
/// "all_reduce(sum) Float [4, 2] (collective 7 of group [0 2])"
std::string collective_in_words(const std::string& call, int64_t sequence, std::span<const int64_t> ranks);

/// Who has what, in the order in which it is met first; texts[i] is that of ranks[i].
std::vector<std::pair<std::string, std::vector<int64_t>>> ranks_by_text(std::span<const int64_t> ranks,
                                                                        std::span<const std::string> texts);
/// "rank 0 has 64, ranks 1, 3 have 128"; "" where all have the same.
std::string who_has_what(std::span<const int64_t> ranks, std::span<const std::string> texts);

/// Which ranks ask for what at one place of the sequence, calls[i] being that of ranks[i]; "" if all agree.
std::string difference(std::span<const int64_t> ranks, std::span<const std::string> calls, int64_t sequence);

/// What a rank asked for in one group: its last calls, the newest of which has number `count`.
struct CallHistory {
  int64_t rank = 0;
  int64_t count = 0;
  std::vector<std::string> calls;
  /// Null where it was too long ago, or has not been asked for.
  const std::string* at(int64_t number) const;
};
/// As difference(), at the first place where ranks differ that both remember.
std::string first_difference(std::span<const CallHistory> histories);

/// Where a rank is, seen from a group that waits for it: what it waits in ("" if it computes) and the last
/// collective of this group that it asked for (number 0: none).
struct Whereabouts {
  std::string waits_in;
  int64_t last_number = 0;
  std::string last_call;
};
std::string to_string(const Whereabouts& whereabouts);

}  // namespace teratron
