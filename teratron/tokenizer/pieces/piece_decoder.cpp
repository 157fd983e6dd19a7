#include "teratron/tokenizer/pieces/piece_decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "teratron/tokenizer/unicode/unicode.h"

namespace teratron {

namespace {

std::string replaced(const Regex& pattern, const std::string& content, const std::string& token) {
  std::string text;
  for (const Regex::Piece& piece : pattern.find_all(token)) text += piece.is_match ? content : piece.text;
  return text;
}

// As the library reads it: also lower-case digits, and a sign.
std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  return error == std::errc() && end == digits.data() + digits.size() ? std::optional(byte) : std::nullopt;
}

// The character, so often at most, is cut off the end.
size_t stripped_end(std::string_view text, const StripDecoder& decoder) {
  size_t end = text.size();
  for (size_t i = 0; i < decoder.stop && text.substr(0, end).ends_with(decoder.character); ++i)
    end -= decoder.character.size();
  return end;
}

// Bytes at the end that may be the beginning of a `literal`.
size_t begun_bytes(std::string_view text, std::string_view literal) {
  for (size_t length = std::min(text.size(), literal.size() - 1); length > 0; --length) {
    if (text.ends_with(literal.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

PieceDecoding::PieceDecoding(const std::vector<PieceDecoder>& decoders)
    : decoders_(&decoders), states_(decoders.size()) {
  for (size_t i = 1; i < states_.size(); ++i)
    states_[i].fused = states_[i - 1].fused || std::holds_alternative<FuseDecoder>(decoders[i - 1]);
}

std::string PieceDecoding::add(std::string token) {
  pass(0, std::move(token));
  return std::exchange(text_, {});
}

std::string PieceDecoding::finish() {
  for (size_t stage = 0; stage < states_.size(); ++stage)
    std::visit([&](const auto& decoder) { finish_stage(decoder, stage); }, (*decoders_)[stage]);
  return std::exchange(text_, {});
}

void PieceDecoding::pass(size_t stage, std::string token) {
  if (stage < states_.size())
    return std::visit([&](const auto& decoder) { apply(decoder, stage, std::move(token)); },
                      (*decoders_)[stage]);
  if (states_.empty() && !is_first_) text_ += ' ';
  is_first_ = false;
  text_ += token;
}

void PieceDecoding::apply(const MetaspaceDecoder& decoder, size_t stage, std::string token) {
  State& state = states_[stage];
  const std::string_view space = state.is_first && decoder.prepended ? "" : " ";
  state.is_first = state.fused;
  std::string text;
  for (size_t at = 0; at < token.size();) {
    const size_t symbol = std::min(token.find(decoder.symbol, at), token.size());
    text.append(token, at, symbol - at);
    if (symbol < token.size()) text += space;
    at = symbol + decoder.symbol.size();
  }
  pass(stage + 1, std::move(text));
}

void PieceDecoding::apply(const ReplaceDecoder& decoder, size_t stage, std::string token) {
  State& state = states_[stage];
  if (!state.fused) return pass(stage + 1, replaced(*decoder.pattern, decoder.content, token));
  state.held += token;
  const std::string_view literal = decoder.pattern->literal_text();
  if (literal.empty()) return;  // a match may begin anywhere
  size_t last_match = 0;        // its end
  for (const Regex::Piece& piece : decoder.pattern->find_all(state.held)) {
    if (piece.is_match)
      last_match = static_cast<size_t>(piece.text.data() - state.held.data()) + literal.size();
  }
  const size_t begun = begun_bytes(std::string_view(state.held).substr(last_match), literal);
  std::string rest = state.held.substr(state.held.size() - begun);
  state.held.erase(state.held.size() - begun);
  pass(stage + 1, replaced(*decoder.pattern, decoder.content, std::exchange(state.held, std::move(rest))));
}

void PieceDecoding::finish_stage(const ReplaceDecoder& decoder, size_t stage) {
  if (!states_[stage].held.empty())
    pass(stage + 1, replaced(*decoder.pattern, decoder.content, std::exchange(states_[stage].held, {})));
}

void PieceDecoding::apply(const ByteFallbackDecoder&, size_t stage, std::string token) {
  State& state = states_[stage];
  constexpr size_t byte_token = 6;
  if (state.fused) {  // a byte only if that is all
    state.held += token;
    if (state.is_first && state.held.size() <= byte_token) return;
    state.is_first = false;
    return pass(stage + 1, std::exchange(state.held, {}));
  }
  if (const auto byte = byte_of_token(token)) {
    state.held += static_cast<char>(*byte);
    return;
  }
  finish_stage(ByteFallbackDecoder{}, stage);
  pass(stage + 1, std::move(token));
}

void PieceDecoding::finish_stage(const ByteFallbackDecoder&, size_t stage) {
  State& state = states_[stage];
  std::string bytes = std::exchange(state.held, {});
  if (bytes.empty()) return;
  if (state.fused) {
    const auto byte = byte_of_token(bytes);
    if (!byte) return pass(stage + 1, std::move(bytes));
    bytes = static_cast<char>(*byte);
  }
  if (unicode::is_valid(bytes)) return pass(stage + 1, std::move(bytes));
  for (size_t i = 0; i < bytes.size(); ++i) pass(stage + 1, "\xef\xbf\xbd");
}

void PieceDecoding::apply(const FuseDecoder&, size_t stage, std::string token) {
  pass(stage + 1, std::move(token));
}

void PieceDecoding::apply(const StripDecoder& decoder, size_t stage, std::string token) {
  State& state = states_[stage];
  state.held += token;
  size_t begin = 0;
  while (state.cut < decoder.start &&
         std::string_view(state.held).substr(begin).starts_with(decoder.character)) {
    begin += decoder.character.size();
    state.cut += 1;
  }
  state.held.erase(0, begin);
  if (!state.held.empty()) state.cut = decoder.start;  // no more at the start
  const size_t end = stripped_end(state.held, decoder);
  std::string rest = state.held.substr(end);
  state.held.erase(end);
  pass(stage + 1, std::exchange(state.held, std::move(rest)));
  if (!state.fused) state = {};
}

// What is left is cut off the end.
void PieceDecoding::finish_stage(const StripDecoder&, size_t stage) {
  states_[stage].held.clear();
}

}  // namespace teratron
