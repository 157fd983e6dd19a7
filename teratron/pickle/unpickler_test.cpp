#include "teratron/pickle/unpickler.h"

#include <chrono>

#include <gtest/gtest.h>

#include "teratron/base/error.h"

namespace teratron {
namespace {

using Kind = PickleValue::Kind;

std::string error_of(const std::string& stream) {
  try {
    parse_pickle(stream, "x.pt");
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::checkpoint);
    EXPECT_NE(std::string(error.what()).find("x.pt"), std::string::npos);
    return error.what();
  }
  return "";
}

std::string repeat(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(UnpicklerTest, ReadsEveryScalar) {
  const auto parse = [](std::string_view stream) { return parse_pickle(stream, "x"); };
  EXPECT_TRUE(parse("N.").root->is(Kind::none));
  EXPECT_EQ(parse("\x88.").root->integer(), 1);
  EXPECT_TRUE(parse("\x89.").root->is(Kind::boolean));
  EXPECT_EQ(parse(std::string("J\xfe\xff\xff\xff.")).root->integer(), -2);
  EXPECT_EQ(parse("K\xff.").root->integer(), 255);
  EXPECT_EQ(parse(std::string("M\x01\x02.")).root->integer(), 513);
  EXPECT_EQ(parse("I-17\n.").root->integer(), -17);
  EXPECT_TRUE(parse("I01\n.").root->is(Kind::boolean));
  EXPECT_EQ(parse("L99L\n.").root->integer(), 99);
  EXPECT_EQ(parse("\x8a\x01\xff.").root->integer(), -1);
  EXPECT_EQ(parse(std::string("\x8a\x02\x00\x80.", 5)).root->integer(), -32768);
  EXPECT_EQ(parse(std::string("\x8a\x00.", 3)).root->integer(), 0);
  EXPECT_EQ(parse(std::string("G\xbf\xe0\0\0\0\0\0\0.", 10)).root->real(), -0.5);
  EXPECT_EQ(parse(std::string("X\x02\0\0\0ab.", 8)).root->text(), "ab");
  EXPECT_EQ(parse("\x8c\x02"
                  "ab.")
                .root->text(),
            "ab");
}

TEST(UnpicklerTest, ReadsContainersAndTheMemo) {
  const Pickle pickle = parse_pickle(
      "\x80\x02}q\x01(U\x01"
      "aK\x01U\x01"
      "b](K\x02K\x03"
      "eU\x01"
      "cK\x04K\x05\x86u.",
      "x");
  EXPECT_EQ(pickle.root->find("a")->integer(), 1);
  EXPECT_EQ(pickle.root->find("b")->items()[1]->integer(), 3);
  EXPECT_TRUE(pickle.root->find("c")->is(Kind::tuple));
  EXPECT_EQ(pickle.root->find("d"), nullptr);
}

TEST(UnpicklerTest, MakesADictOfANamespaceAndAnObjectOfAnEnum) {
  const Pickle pickle = parse_pickle(
      "\x80\x02"
      "cargparse\nNamespace\n)\x81}(U\x01lK\x02U\x01tcmegatron.core.enums\nModelType\nK\x01\x85Rub.",
      "x");
  ASSERT_TRUE(pickle.root->is(Kind::dict));
  EXPECT_EQ(pickle.root->find("l")->integer(), 2);
  EXPECT_TRUE(pickle.root->find("t")->is(Kind::object));
  EXPECT_EQ(pickle.root->find("t")->text(), "megatron.core.enums.ModelType");
}

TEST(UnpicklerTest, RefusesEveryOtherNameByName) {
  EXPECT_NE(error_of("cos\nsystem\n(U\x02id"
                     "tR.")
                .find("'os.system', which is refused"),
            std::string::npos);
  EXPECT_NE(error_of("\x8c\x05posix\x8c\x06system\x93.").find("'posix.system'"), std::string::npos);
  EXPECT_NE(error_of("c__builtin__\neval\n.").find("'__builtin__.eval'"), std::string::npos);
  EXPECT_NE(error_of("ctorch.serialization\nload\n.").find("'torch.serialization.load'"), std::string::npos);
  EXPECT_NE(error_of("cargparse\nArgumentParser\n.").find("refused"), std::string::npos);
  EXPECT_NE(error_of("i"
                     "os\nsystem\n.")
                .find("0x69 is not an operation"),
            std::string::npos);
}

// Python 3.11 names a member of an enum by getattr(class, name).
TEST(UnpicklerTest, ReadsMembersOfEnumsAndNoOtherAttributes) {
  const std::string call = "c__builtin__\ngetattr\ncmegatron.core.enums\nModelType\nU\x01x\x86R.";
  const Pickle pickle = parse_pickle(call, "x");
  EXPECT_TRUE(pickle.root->is(Kind::object));
  EXPECT_NE(error_of("cbuiltins\ngetattr\n}U\x01x\x86R.").find("'builtins.getattr', which is refused"),
            std::string::npos);
  EXPECT_NE(error_of("cbuiltins\ngetattr\ncbuiltins\ngetattr\nU\x01x\x86R.").find("refused"),
            std::string::npos);
  EXPECT_NE(
      error_of("cbuiltins\ngetattr\n" + call.substr(0, call.size() - 1) + "U\x01x\x86R.").find("refused"),
      std::string::npos);
}

TEST(UnpicklerTest, RefusesCutStreams) {
  const std::string whole =
      "\x80\x02}q\x01(U\x01"
      "aK\x01U\x01"
      "b](K\x02K\x03"
      "eu.";
  EXPECT_EQ(error_of(whole), "");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_NE(error_of(whole.substr(0, size)), "") << size;
}

TEST(UnpicklerTest, RefusesCyclesAndDeepNesting) {
  EXPECT_NE(error_of("]q\x01h\x01"
                     "a.")
                .find("contains itself"),
            std::string::npos);
  EXPECT_NE(error_of("}q\x01U\x01"
                     "a]h\x01"
                     "as.")
                .find("contains itself"),
            std::string::npos);
  EXPECT_NE(error_of(repeat("]", 100000) + repeat("a", 99999) + ".").find("nested deeper"),
            std::string::npos);
  EXPECT_EQ(error_of(repeat("]", 100) + repeat("a", 99) + "."), "");
}

TEST(UnpicklerTest, RefusesHugeSizesWithoutAllocatingThem) {
  EXPECT_NE(error_of("X\xff\xff\xff\x7f"
                     "ab.")
                .find("cut off"),
            std::string::npos);
  EXPECT_NE(error_of("\x8e\xff\xff\xff\xff\xff\xff\xff\xff.").find("cut off"), std::string::npos);
  EXPECT_NE(error_of("\x8b\xff\xff\xff\xff.").find("cut off"), std::string::npos);
}

// Operations of one or two bytes that would make the stream many times larger in memory, or in time.
TEST(UnpicklerTest, BoundsMemoryAndTime) {
  const auto start = std::chrono::steady_clock::now();
  const std::string list = "]q\x01(" + repeat("N", 60000) + "e";
  const std::string key = "X" + std::string("\0\0\x10\0", 4) + std::string(1 << 20, 'k') + "q\x01";  // 1 MiB
  const std::string storage =
      "(U\x07storagectorch\nFloatStorage\nh\x01U\x03"
      "cpuK\x06tQ0";
  const std::pair<std::string, const char*> cases[] = {
      {list + repeat("ctorch\nSize\nh\x01\x85R0", 1000) + ".", "more than"},
      {"N" + repeat("2", 8 << 20) + ".", "more than"},
      {repeat("(", 8 << 20) + ".", "more than"},
      {repeat("]", 8 << 20) + ".", "more than"},
      {repeat("M\1\1", 4 << 20) + ".", "more than"},
      {key + repeat(storage, 1000) + ".", "too long"},
      {key +
           repeat("h\x01h\x01\x93"
                  "0",
                  1000) +
           ".",
       "too long"},
      {key + "](" + repeat("h\x01", 10000) + "e.", "shared too often"},
  };
  for (const auto& [stream, expected] : cases)
    EXPECT_NE(error_of(stream).find(expected), std::string::npos) << stream.substr(0, 20) << error_of(stream);
  std::string doubling = "]q\x01";  // of lists of the list before, twice
  for (char i = 1; i < 60; ++i)
    doubling += std::string("](h") + i + "h" + i + "eq" + static_cast<char>(i + 1);
  EXPECT_NE(error_of(doubling + ".").find("shared too often"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(UnpicklerTest, SharesWhatNothingChanges) {
  const Pickle pickle = parse_pickle("](NNK\x05K\x05\x88\x88(tctorch\nSize\nctorch\nSize\ne.", "x");
  const auto items = pickle.root->items();
  ASSERT_EQ(items.size(), 9U);
  for (const size_t i : {0, 2, 4, 7}) EXPECT_EQ(items[i], items[i + 1]) << i;
  EXPECT_EQ(sizeof(PickleValue), 16U);
}

TEST(UnpicklerTest, ReadsAMemoWithGaps) {
  const Pickle pickle =
      parse_pickle(std::string_view("](K\x01r\0\0\0\x7fK\x02q\0K\x03q\x01j\0\0\0\x7fh\0h\x01"
                                    "e.",
                                    28),
                   "x");
  std::vector<int64_t> values;
  for (const PickleValue* item : pickle.root->items()) values.push_back(item->integer());
  EXPECT_EQ(values, (std::vector<int64_t>{1, 2, 3, 1, 2, 3}));
}

TEST(UnpicklerTest, RefusesTensorsBeyondTheirStorage) {
  const auto tensor = [](const std::string& offset, const std::string& shape, const std::string& strides) {
    return error_of(
        "ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x01"
        "0U\x03"
        "cpuK\x06tQ" +
        offset + "(" + shape + "t(" + strides + "ttR.");
  };
  EXPECT_EQ(tensor("K\x01", "K\x05", "K\x01"), "");
  EXPECT_NE(tensor("K\x02", "K\x05", "K\x01").find("exceeds its storage of 6"), std::string::npos);
  EXPECT_NE(tensor("I0\n", "K\x07", "I0\n").find("exceeds"), std::string::npos);
  EXPECT_NE(tensor("I0\n", "I9223372036854775807\nK\x03", "I9223372036854775807\nK\x01").find("exceeds"),
            std::string::npos);
  EXPECT_NE(tensor("I-1\n", "K\x01", "K\x01").find("exceeds"), std::string::npos);
  EXPECT_NE(tensor("I0\n", "I-1\n", "K\x01").find("not valid"), std::string::npos);
}

}  // namespace
}  // namespace teratron
