// A call of a function in the text of an answer, {"name": "f", "arguments": {...}}, read as it comes.
// "parameters" is another word for "arguments".
#pragma once

#include <string>

namespace teratron {

class CallScanner {
 public:
  /// Takes the next byte; false: the text is something else, or the object is complete.
  bool add(char byte);
  bool is_complete() const { return place_ == Place::done; }
  bool has_failed() const { return place_ == Place::failed; }
  bool has_name() const { return has_name_; }
  /// Whether there are arguments that can be passed on.
  bool has_arguments() const { return has_arguments_; }
  const std::string& name() const { return name_; }
  /// Whether a member is none of a call's, so that the object means something else.
  bool has_other_members() const { return has_others_; }
  /// The text of the arguments that came since the last time.
  std::string take_arguments();

 private:
  enum class Place : uint8_t { start, key, in_key, colon, value, in_value, behind, done, failed };

  void begin_value(char byte);
  bool add_to_value(char byte);
  void end_value();
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }

  Place place_ = Place::start;
  std::string raw_key_, key_, value_, name_, arguments_;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false, first_key_ = true;
  bool has_name_ = false, has_arguments_ = false, has_others_ = false;
};

}  // namespace teratron
