// Axes of a mesh and sets of them.
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace teratron {

enum class Axis : uint8_t { tp, cp, dp, pp, ep, etp, edp };

/// "tp", "cp"...
std::string name_of(Axis axis);

/// {Axis::dp, Axis::cp}; sets join with |.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(1U << static_cast<unsigned>(axis)) {}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= AxisSet(axis).bits_;
  }
  static constexpr AxisSet from_bits(uint32_t bits) {
    AxisSet set;
    set.bits_ = bits;
    return set;
  }
  constexpr uint32_t bits() const { return bits_; }
  constexpr bool contains(Axis axis) const { return (bits_ & AxisSet(axis).bits_) != 0; }
  constexpr AxisSet operator|(AxisSet other) const { return from_bits(bits_ | other.bits_); }
  constexpr AxisSet operator-(AxisSet other) const { return from_bits(bits_ & ~other.bits_); }
  constexpr auto operator<=>(const AxisSet&) const = default;

 private:
  uint32_t bits_ = 0;
};

/// "cp-dp".
std::string to_string(AxisSet axes);

/// Replicas of a dense layer: they train the same weights on other samples or other parts of sequences.
inline constexpr AxisSet replica_axes{Axis::dp, Axis::cp};

/// The other axes of the same view: {tp, pp} of {dp, cp}, {etp, ep, pp} of {edp}.
constexpr AxisSet complement(AxisSet axes) {
  constexpr AxisSet dense{Axis::tp, Axis::cp, Axis::dp, Axis::pp};
  constexpr AxisSet expert{Axis::etp, Axis::ep, Axis::edp, Axis::pp};
  return (axes - dense == AxisSet() ? dense : expert) - axes;
}

}  // namespace teratron
