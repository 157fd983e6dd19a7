#include "teratron/tokenizer/pieces/piece_decoder.h"

#include <charconv>
#include <optional>

#include <fmt/ranges.h>

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

void decode_one(const MetaspaceDecoder& decoder, std::vector<std::string>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view space = i == 0 && decoder.prepended ? "" : " ";
    std::string text;
    for (size_t at = 0; at < tokens[i].size();) {
      const size_t symbol = std::min(tokens[i].find(decoder.symbol, at), tokens[i].size());
      text.append(tokens[i], at, symbol - at);
      if (symbol < tokens[i].size()) text += space;
      at = symbol + decoder.symbol.size();
    }
    tokens[i] = std::move(text);
  }
}

void decode_one(const ReplaceDecoder& decoder, std::vector<std::string>& tokens) {
  for (std::string& token : tokens) token = replaced(*decoder.pattern, decoder.content, token);
}

void decode_one(const ByteFallbackDecoder&, std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto flush = [&] {
    if (unicode::is_valid(bytes)) {
      if (!bytes.empty()) result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), "\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes += static_cast<char>(*byte);
      continue;
    }
    flush();
    result.push_back(std::move(token));
  }
  flush();
  tokens = std::move(result);
}

void decode_one(const FuseDecoder&, std::vector<std::string>& tokens) {
  tokens = {fmt::format("{}", fmt::join(tokens, ""))};
}

void decode_one(const StripDecoder& decoder, std::vector<std::string>& tokens) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (size_t i = 0; i < decoder.start && rest.starts_with(decoder.character); ++i)
      rest.remove_prefix(decoder.character.size());
    for (size_t i = 0; i < decoder.stop && rest.ends_with(decoder.character); ++i)
      rest.remove_suffix(decoder.character.size());
    token = std::string(rest);
  }
}

}  // namespace

std::string decode_pieces(const std::vector<PieceDecoder>& decoders, std::vector<std::string> tokens) {
  if (decoders.empty()) return fmt::format("{}", fmt::join(tokens, " "));
  for (const PieceDecoder& decoder : decoders)
    std::visit([&](const auto& one) { decode_one(one, tokens); }, decoder);
  return fmt::format("{}", fmt::join(tokens, ""));
}

}  // namespace teratron
