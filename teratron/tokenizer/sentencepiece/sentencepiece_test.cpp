// Small hand-written models; tests/parity compares with the library.
#include "sentencepiece_model.pb.h"
#include <nlohmann/json.hpp>

#include "teratron/testing/tokenizer_files.h"
#include "teratron/tokenizer/sentencepiece/sentencepiece_tokenizer.h"

namespace teratron {
namespace {

using testing::encode;
using testing::expect_user_error;
using Ids = std::vector<int32_t>;

/// A model with <unk> <s> </s>, and more pieces added by the test.
class ModelFile {
 public:
  explicit ModelFile(int32_t model_type) {
    model.mutable_trainer_spec()->set_model_type(model_type);
    add("<unk>", 0, PieceType::unknown);
    add("<s>", 0, PieceType::control);
    add("</s>", 0, PieceType::control);
  }

  void add(const std::string& text, float score, PieceType type = PieceType::normal) {
    auto* const piece = model.add_pieces();
    piece->set_piece(text);
    piece->set_score(score);
    piece->set_type(static_cast<int32_t>(type));
  }
  void add_bytes() {
    model.mutable_trainer_spec()->set_byte_fallback(true);
    for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0, PieceType::byte);
  }

  std::unique_ptr<Tokenizer> build(const std::string& type = "GPTSentencePieceTokenizer",
                                   const std::string& version = "0.7", int64_t extra_ids = 0) const {
    return build_tokenizer({.type = type,
                            .tokenizer_model = folder.write("a.model", model.SerializeAsString()),
                            .vocab_extra_ids = extra_ids,
                            .compat_version = version});
  }

  sentencepiece::ModelProto model;
  testing::TemporaryFolder folder;
};

TEST(SentencePiece, UnigramTakesTheSegmentationOfLargestScore) {
  ModelFile file(1);
  file.add("\u2581a", -1);   // 3
  file.add("b", -3);         // 4
  file.add("\u2581ab", -5);  // 5: worse than 3 4, which sum to -4
  file.add("\u2581", -2);    // 6
  file.add("bc", -2);        // 7
  const auto tokenizer = file.build();
  EXPECT_EQ(encode(*tokenizer, "ab"), (Ids{3, 4}));
  EXPECT_EQ(encode(*tokenizer, "abc"), (Ids{3, 7}));
  EXPECT_EQ(encode(*tokenizer, "  b  bc "), (Ids{6, 4, 6, 7}));  // trimmed, and runs collapsed
  EXPECT_EQ(encode(*tokenizer, "xyz"), (Ids{6, 0}));             // a run of unknown characters is one piece
  EXPECT_EQ(encode(*tokenizer, ""), Ids{});
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 6, 7, 0, 2}), "ab bc \u2047 ");
  EXPECT_EQ(tokenizer->special().eod, 2);
  EXPECT_EQ(tokenizer->special().bos, 1);
  EXPECT_FALSE(tokenizer->special().pad.has_value());
}

TEST(SentencePiece, UserDefinedPiecesWinAndUnusedOnesAreNotUsed) {
  for (const int32_t kind : {1, 2}) {
    ModelFile file(kind);
    file.add("\u2581", -1);                          // 3
    file.add("a", -2);                               // 4
    file.add("b", -3);                               // 5
    file.add("ab", -0.5f, PieceType::unused);        // 6
    file.add("<user>", 0, PieceType::user_defined);  // 7
    file.add("\u2581a", -1.5f);                      // 8
    const auto tokenizer = file.build();
    EXPECT_EQ(encode(*tokenizer, "b<user>ab"), (Ids{3, 5, 7, 4, 5})) << kind;
    EXPECT_EQ(encode(*tokenizer, "a"), Ids{8}) << kind;
  }
}

TEST(SentencePiece, BpeJoinsTheBestPairAndFallsBackToBytes) {
  ModelFile file(2);
  file.add_bytes();  // 3 to 258
  for (const char* const piece : {"\u2581", "l", "o", "w", "lo", "ow", "low"}) {
    file.add(piece, -static_cast<float>(file.model.pieces_size()));
  }
  const auto tokenizer = file.build();
  EXPECT_EQ(encode(*tokenizer, "low"), (Ids{259, 265}));
  EXPECT_EQ(encode(*tokenizer, "oww"), (Ids{259, 264, 262}));
  EXPECT_EQ(encode(*tokenizer, "\u00e9o"), (Ids{259, 3 + 0xc3, 3 + 0xa9, 261}));
  EXPECT_EQ(tokenizer->decode(Ids{259, 3 + 0xc3, 3 + 0xa9, 261, 3 + 0xa9, 3 + 'x'}), "\u00e9o\ufffdx");
}

TEST(SentencePiece, LlamaBeginsWithBosAndHeadDoesNot) {
  ModelFile file(2);
  file.add("\u2581", -1);
  file.add("a", -2);
  EXPECT_EQ(encode(*file.build("Llama2Tokenizer"), "a"), (Ids{1, 3, 4}));
  EXPECT_EQ(encode(*file.build("Llama2Tokenizer"), ""), Ids{1});
  EXPECT_EQ(encode(*file.build("Llama2Tokenizer", "head"), "a"), (Ids{3, 4}));
  file.model.mutable_trainer_spec()->set_bos_piece("<none>");
  expect_user_error(ExitCode::data, "no bos piece", [&] { file.build("Llama2Tokenizer"); });
}

TEST(SentencePiece, MegatronsOwnTokenizerAddsItsTokens) {
  ModelFile file(1);
  file.add("\u2581", -1);
  file.add("a", -2);
  const auto tokenizer = file.build("SentencePieceTokenizer", "0.7", 2);
  // <CLS> <SEP> <EOD> <MASK> <PAD> are new; bos and eos are the model's; then two sentinels.
  EXPECT_EQ(tokenizer->vocab_size(), 5 + 5 + 2);
  EXPECT_EQ(tokenizer->special().cls, 5);
  EXPECT_EQ(tokenizer->special().eod, 7);
  EXPECT_EQ(tokenizer->special().pad, 9);
  EXPECT_EQ(tokenizer->special().eos, 2);
  EXPECT_EQ(tokenizer->special().additional, (Ids{10, 11}));
  EXPECT_EQ(encode(*tokenizer, "a<EOD>a</s><extra_id_1>"), (Ids{3, 4, 7, 3, 4, 2, 11}));
  EXPECT_EQ(tokenizer->decode(Ids{3, 4, 7, 3, 4}), "a <EOD> a");
  EXPECT_EQ(file.build("SentencePieceTokenizer", "head")->vocab_size(), 5);
}

TEST(SentencePiece, RefusesDamagedModels) {
  const auto build = [](auto change, int32_t kind = 1) {
    return [change, kind] {
      ModelFile file(kind);
      change(file);
      file.build();
    };
  };
  expect_user_error(ExitCode::data, "model type 3", build([](ModelFile&) {}, 3));
  expect_user_error(ExitCode::data, "appears twice",
                    build([](ModelFile& f) { f.add("<s>", 0, PieceType::control); }));
  expect_user_error(ExitCode::data, "is empty", build([](ModelFile& f) { f.add("", 0); }));
  expect_user_error(ExitCode::data, "no finite score", build([](ModelFile& f) { f.add("a", 0.0f / 0.0f); }));
  expect_user_error(ExitCode::data, "both 0 and 3",
                    build([](ModelFile& f) { f.add("a", 0, PieceType::unknown); }));
  expect_user_error(ExitCode::data, "no unknown piece",
                    build([](ModelFile& f) { f.model.mutable_pieces(0)->set_type(1); }));
  expect_user_error(ExitCode::data, "is not a valid byte piece",
                    build([](ModelFile& f) { f.add("<0xG0>", 0, PieceType::byte); }));
  expect_user_error(ExitCode::data, "<0x00> is missing",
                    build([](ModelFile& f) { f.model.mutable_trainer_spec()->set_byte_fallback(true); }));
  expect_user_error(ExitCode::data, "unknown type 9",
                    build([](ModelFile& f) { f.model.mutable_pieces(0)->set_type(9); }));
  for (const std::string& map : {std::string("ab"), std::string("\xff\0\0\0abcd", 8),
                                 std::string("\4\0\0\0abcd", 8), std::string("\4\0\0\0abcdx", 9)}) {
    expect_user_error(ExitCode::data, "invalid normalization rules", build([&](ModelFile& f) {
                        f.model.mutable_normalizer_spec()->set_precompiled_charsmap(map);
                      }));
  }
  const testing::TemporaryFolder folder;
  for (const char* const text : {"", "no model", "\n\3abc"}) {
    expect_user_error(ExitCode::data, "is not a SentencePiece model", [&] {
      build_tokenizer({.type = "Llama2Tokenizer", .tokenizer_model = folder.write("b.model", text)});
    });
  }
  expect_user_error(ExitCode::config, "requires --tokenizer-model",
                    [] { build_tokenizer({.type = "Llama2Tokenizer"}); });
}

// The key "a" with the replacement "b", and the same damaged.
TEST(SentencePiece, RefusesDamagedNormalizationRules) {
  const auto charsmap = [](uint32_t node, uint32_t value, const std::string& replacements) {
    std::vector<uint32_t> units(98);
    units[96] = 0x80000000u | value;
    units[97] = node;
    const uint32_t bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
    std::string map(sizeof(bytes) + bytes, '\0');
    std::memcpy(map.data(), &bytes, sizeof(bytes));
    std::memcpy(map.data() + sizeof(bytes), units.data(), bytes);
    return map + replacements;
  };
  const auto model_with = [](const std::string& map) {
    return [map] {
      ModelFile file(1);
      file.model.mutable_normalizer_spec()->set_precompiled_charsmap(map);
      file.build("Llama2Tokenizer");
    };
  };
  constexpr uint32_t leaf = 1 << 8, offset = 1 << 10, label = 'a';
  const std::string one("b\0", 2), two("b\0c\0", 4);
  EXPECT_NO_THROW(model_with(charsmap(offset | leaf | label, 0, one))());
  for (const std::string& damaged :
       {charsmap(offset | leaf | label, 1, one), charsmap(offset | leaf | label, 9, one),
        charsmap(offset | leaf | label, 0, two), charsmap(offset | label, 0, one),
        charsmap(offset | leaf | 'b', 0, one), charsmap(200 * offset | leaf | label, 0, one),
        charsmap(offset | leaf | label, 0, std::string("\xff\0", 2))}) {
    expect_user_error(ExitCode::data, "invalid normalization rules", model_with(damaged));
  }
}

}  // namespace
}  // namespace teratron
