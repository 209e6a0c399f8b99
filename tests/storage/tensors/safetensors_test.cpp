#include "storage/tensors/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <list>

#include "storage/base/error.hpp"
#include "storage/tensors/safetensors_header.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string message_of(const std::string& json, std::uint64_t buffer_bytes) {
  try {
    (void)parse_safetensors_header(json, buffer_bytes, "m.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    return error.what();
  }
  return "(accepted)";
}

std::string file_bytes(const std::string& json, std::size_t buffer_bytes) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return out + json + std::string(buffer_bytes, '\1');
}

struct BadHeader {
  const char* rule;  // a part of the message
  std::string json;
  std::uint64_t buffer_bytes;
};

// One header for each rule of storage/README.md "safetensors checks"; buffer sizes are right unless
// they are the rule.
std::vector<BadHeader> bad_headers() {
  const std::string tensor = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string many = "[" + [] {
    std::string ones = "1";
    for (std::size_t i = 0; i < kMaxSafetensorsDimensions; ++i) ones += ",1";
    return ones;
  }() + "]";
  return {
      {"begin with '{'", "", 0},
      {"begin with '{'", " {}", 0},
      {"begin with '{'", "[1]", 0},
      {"not valid JSON", R"({"a":)", 0},
      {"not valid JSON", "{\"\xff\":" + tensor + "}", 8},
      {"not valid JSON", R"({"a":)" + tensor + "} x", 8},
      {"'a' stands twice", R"({"a":)" + tensor + R"(,"a":)" + tensor + "}", 8},
      {"'a' stands twice", R"({"a":)" + tensor + R"(,"\u0061":)" + tensor + "}", 8},
      {"'dtype' stands twice",
       R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8},
      {"'__metadata__' stands twice", R"({"__metadata__":{},"__metadata__":{}})", 0},
      {"metadata key 'k' stands twice", R"({"__metadata__":{"k":"1","k":"2"}})", 0},
      {"expected a string", R"({"__metadata__":{"k":1}})", 0},
      {"expected a string", R"({"__metadata__":{"k":{}}})", 0},
      {"expected an object", R"({"a":1})", 0},
      {"expected an object", R"({"a":null})", 0},
      {"expected an object", R"({"a":[)" + tensor + "]}", 8},
      {"nesting too deep", R"({"a":{"dtype":{}}})", 0},
      {"an array", R"({"a":{"shape":[[2]],"dtype":"F32","data_offsets":[0,8]}})", 8},
      {"an array", R"({"a":{"shape":)" + std::string(50000, '['), 0},
      {"unknown key 'stride'",
       R"({"a":{"stride":[1],"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8},
      {"'dtype' is missing", R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8},
      {"'shape' is missing", R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8},
      {"'data_offsets' is missing", R"({"a":{"dtype":"F32","shape":[2]}})", 8},
      {"overlaps",
       R"({"a":)" + tensor + R"(,"b":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[4,12]}})",
       12},
      {"stands twice",
       R"({"b":{"dtype":"C64","shape":[1],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"C64","shape":[1],"data_offsets":[8,16]}})",
       16},
      {"negative number -1", R"({"a":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}})", 8},
      {"negative number -8", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 0},
      {"the number 2.0", R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8},
      {"2^63", R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0},
      {"overflows",
       R"({"a":{"dtype":"F32","shape":[4294967296,4294967297],"data_offsets":[0,4]}})",
       4},
      {"overflows",
       R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})",
       4},
      {"dimensions", R"({"a":{"dtype":"U8","shape":)" + many + R"(,"data_offsets":[0,1]}})", 1},
      {"need 8", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4},
      {"not in order", R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[8,0]}})", 8},
      {"data has 4 bytes", R"({"a":)" + tensor + "}", 4},
      {"data_offsets must be two", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8},
      {"more than two", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8},
      {"overlaps",
       R"({"a":)" + tensor + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12},
      {"overlaps", R"({"a":)" + tensor + R"(,"b":)" + tensor + "}", 8},
      {"a hole of 4",
       R"({"a":)" + tensor + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
       20},
      {"a hole of 8", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", 16},
      {"belong to no tensor", R"({"a":)" + tensor + "}", 9},
      {"belong to no tensor", "{}", 1},
      {"is 1025 bytes long", "{\"" + std::string(1025, 'n') + "\":" + tensor + "}", 8},
  };
}

TEST(Safetensors, TensorsOfOtherTypesAreListedApart) {
  const SafetensorsHeader header =
      parse_safetensors_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                               R"("scale":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[8,11]},)"
                               R"("packed":{"dtype":"F4","shape":[4],"data_offsets":[11,13]}})",
                               13,
                               "m.safetensors");
  EXPECT_EQ(header.tensors.size(), 1U);
  EXPECT_EQ(header.unread,
            (std::map<std::string, std::string>{{"packed", "'F4'"}, {"scale", "'F8_E4M3'"}}));
}

TEST(SafetensorsHeader, EachRuleIsEnforcedAndTheErrorNamesFileAndRule) {
  for (const BadHeader& bad : bad_headers()) {
    EXPECT_THAT(message_of(bad.json, bad.buffer_bytes),
                AllOf(HasSubstr("m.safetensors"), HasSubstr(bad.rule)))
        << bad.json.substr(0, 200);
  }
}

TEST(SafetensorsHeader, TheErrorNamesTheTensorButNeverEchoesControlCharacters) {
  const std::string json = R"({"a\u001b[31m":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})";
  EXPECT_THAT(message_of(json, 4), HasSubstr("tensor 'a?[31m'"));
}

TEST(SafetensorsHeader, LengthIsBoundedByTheCapAndByTheFile) {
  const auto reason = [](const std::string& bytes, std::uint64_t size) -> std::string {
    try {
      return "(accepted " +
             std::to_string(safetensors_header_length(bytes, size, "m.safetensors")) + ")";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(reason(file_bytes("{}", 0), 10), "(accepted 2)");
  EXPECT_THAT(reason(file_bytes("{}", 0), 9), HasSubstr("truncated"));
  EXPECT_THAT(reason("\1", 1), HasSubstr("too few"));
  EXPECT_THAT(reason(std::string(8, '\xff'), 100), HasSubstr("no safetensors file"));
  EXPECT_THAT(reason(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), 1ULL << 40),
              HasSubstr("exceeds 100000000"));
  EXPECT_THAT(reason("version https://git-lfs.github.com/spec/v1", 130), HasSubstr("Git LFS"));
}

TEST(SafetensorsHeader, ZeroSizeTensorsAndTrailingSpacesAreAccepted) {
  const SafetensorsHeader header = parse_safetensors_header(
      R"({"z":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},"s":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}   )",
      1,
      "m.safetensors");
  EXPECT_EQ(header.tensors.at("z").shape, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(header.tensors.at("s").shape.empty());
}

class SafetensorsTest : public ::testing::Test {
 protected:
  TensorView view(DType dtype, std::vector<std::int64_t> shape, unsigned char fill) {
    TensorView tensor{dtype, std::move(shape), {}};
    buffers_.emplace_back(static_cast<std::size_t>(tensor.num_elements()) * size_of(dtype),
                          std::byte(fill));
    tensor.bytes = buffers_.back();
    return tensor;
  }
  std::string bytes_of(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  tests::TemporaryDirectory directory_;
  std::list<std::vector<std::byte>> buffers_;
};

TEST_F(SafetensorsTest, RoundTripKeepsTypesShapesBytesAndMetadata) {
  const std::map<std::string, TensorView> tensors{
      {"w \"quoted\" \xc3\xa9", view(DType::kBF16, {3, 5}, 7)},
      {"a", view(DType::kF32, {2, 1, 3}, 9)},
      {"scalar", view(DType::kI64, {}, 1)},
      {"empty", view(DType::kF16, {0, 8}, 0)},
      {"flags", view(DType::kBool, {5}, 1)}};
  const std::filesystem::path path = directory_.path() / "x.safetensors";
  write_safetensors(path, tensors, {{"format", "pt"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    const TensorView& found = file.at(name);
    EXPECT_EQ(found.dtype, expected.dtype) << name;
    EXPECT_EQ(found.shape, expected.shape) << name;
    EXPECT_TRUE(std::ranges::equal(found.bytes, expected.bytes)) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found.bytes.data()) % size_of(found.dtype), 0U)
        << name;
  }
  EXPECT_THROW((void)file.at("b"), Error);
}

TEST_F(SafetensorsTest, SameTensorsGiveTheSameBytes) {
  const std::map<std::string, TensorView> tensors{{"b", view(DType::kF32, {4}, 1)},
                                                  {"a", view(DType::kU8, {3}, 2)}};
  write_safetensors(directory_.path() / "1", tensors, {{"k", "v"}, {"a", "b"}});
  write_safetensors(directory_.path() / "2", tensors, {{"a", "b"}, {"k", "v"}});
  EXPECT_EQ(bytes_of(directory_.path() / "1"), bytes_of(directory_.path() / "2"));
  EXPECT_EQ((bytes_of(directory_.path() / "1").size() - 19) % 8, 0U)
      << "the data must begin at a multiple of 8";
}

TEST_F(SafetensorsTest, EveryTruncationOfAFileIsRefused) {
  write_safetensors(directory_.path() / "x",
                    {{"a", view(DType::kF32, {4}, 1)}, {"b", view(DType::kU8, {3}, 2)}});
  const std::string whole = bytes_of(directory_.path() / "x");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    std::ofstream(directory_.path() / "x", std::ios::binary | std::ios::trunc)
        << whole.substr(0, length);
    EXPECT_THROW(SafetensorsFile(directory_.path() / "x"), Error)
        << length << " of " << whole.size() << " bytes";
  }
}

TEST_F(SafetensorsTest, AFailedWriteLeavesNoFile) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limited{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  EXPECT_THROW(write_safetensors(directory_.path() / "x", {{"a", view(DType::kF32, {4096}, 1)}}),
               Error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "x"));
}

}  // namespace
}  // namespace hedgerow::storage
