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
  const auto parse = [](std::string_view stream) {
    const Pickle pickle = parse_pickle(stream, "x");
    return *pickle.root;
  };
  EXPECT_TRUE(parse("N.").is(Kind::none));
  EXPECT_EQ(parse("\x88.").integer, 1);
  EXPECT_TRUE(parse("\x89.").is(Kind::boolean));
  EXPECT_EQ(parse(std::string("J\xfe\xff\xff\xff.")).integer, -2);
  EXPECT_EQ(parse("K\xff.").integer, 255);
  EXPECT_EQ(parse(std::string("M\x01\x02.")).integer, 513);
  EXPECT_EQ(parse("I-17\n.").integer, -17);
  EXPECT_TRUE(parse("I01\n.").is(Kind::boolean));
  EXPECT_EQ(parse("L99L\n.").integer, 99);
  EXPECT_EQ(parse("\x8a\x01\xff.").integer, -1);
  EXPECT_EQ(parse(std::string("\x8a\x02\x00\x80.", 5)).integer, -32768);
  EXPECT_EQ(parse(std::string("\x8a\x00.", 3)).integer, 0);
  EXPECT_EQ(parse(std::string("G\xbf\xe0\0\0\0\0\0\0.", 10)).real, -0.5);
  EXPECT_EQ(parse(std::string("X\x02\0\0\0ab.", 8)).text, "ab");
  EXPECT_EQ(parse("\x8c\x02"
                  "ab.")
                .text,
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
  EXPECT_EQ(pickle.root->find("a")->integer, 1);
  EXPECT_EQ(pickle.root->find("b")->items.at(1)->integer, 3);
  EXPECT_TRUE(pickle.root->find("c")->is(Kind::tuple));
  EXPECT_EQ(pickle.root->find("d"), nullptr);
}

TEST(UnpicklerTest, MakesADictOfANamespaceAndAnObjectOfAnEnum) {
  const Pickle pickle = parse_pickle(
      "\x80\x02"
      "cargparse\nNamespace\n)\x81}(U\x01lK\x02U\x01tcmegatron.core.enums\nModelType\nK\x01\x85Rub.",
      "x");
  ASSERT_TRUE(pickle.root->is(Kind::dict));
  EXPECT_EQ(pickle.root->find("l")->integer, 2);
  EXPECT_TRUE(pickle.root->find("t")->is(Kind::object));
  EXPECT_EQ(pickle.root->find("t")->text, "megatron.core.enums.ModelType");
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

// Each step doubles what a walk of the values would see; the values themselves are few.
TEST(UnpicklerTest, BoundsWhatItCopies) {
  const auto start = std::chrono::steady_clock::now();
  std::string stream = "]q\x01(" + repeat("N", 60000) + "e";
  for (int i = 0; i < 1000; ++i) stream += "ctorch\nSize\nh\x01\x85R0";
  EXPECT_NE(error_of(stream + ".").find("more than"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
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
