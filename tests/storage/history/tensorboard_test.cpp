// The event file's frames and fields, read back by hand. tensorboard_test.py reads it with
// TensorBoard itself.
#include "storage/history/tensorboard.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>

#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

constexpr float kNotMeasured = std::numeric_limits<float>::quiet_NaN();

History small_history() {
  History history;
  history.series["layer/12"] = {
      .columns = {"mse", "window_share"},
      .rows = {{0, 1700000001.5, {4.0F, kNotMeasured}}, {300, 1700000002.5, {0.25F, 0.75F}}}};
  history.series["finetune"] = {.columns = {"loss"},
                                .rows = {{1, 1700000000.25, {2.5F}},
                                         {2, 1700000003.0, {kNotMeasured}},
                                         {3, 1700000004.0, {1.5F}}}};
  history.series["run"].columns = {"tokens_per_second"};
  return history;
}

// CRC-32C bit by bit, masked as TFRecord does.
std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

template <typename Number>
Number number_at(std::string_view bytes, std::size_t offset) {
  Number number;
  std::memcpy(&number, bytes.substr(offset).data(), sizeof number);
  return number;
}

// The payloads, their lengths and checksums compared.
std::vector<std::string> records(std::string_view bytes) {
  std::vector<std::string> payloads;
  while (!bytes.empty()) {
    if (bytes.size() < 16) throw std::runtime_error("a record of less than 16 bytes");
    const auto length = number_at<std::uint64_t>(bytes, 0);
    EXPECT_EQ(number_at<std::uint32_t>(bytes, 8), masked_crc32c(bytes.substr(0, 8)));
    if (length > bytes.size() - 16) throw std::runtime_error("a record that ends too early");
    payloads.emplace_back(bytes.substr(12, length));
    EXPECT_EQ(number_at<std::uint32_t>(bytes, 12 + length), masked_crc32c(payloads.back()));
    bytes.remove_prefix(16 + length);
  }
  return payloads;
}

class TensorBoard : public ::testing::Test {
 protected:
  tests::TemporaryDirectory directory_;
};

TEST_F(TensorBoard, ChecksumIsCastagnolis) {
  // "123456789" has the check value 0xE3069283.
  EXPECT_EQ(masked_crc32c("123456789"), ((0xE3069283U >> 15) | (0xE3069283U << 17)) + 0xA282EAD8U);
}

TEST_F(TensorBoard, EveryRecordHasItsLengthAndChecksumsAndTheFirstTheVersion) {
  write_tensorboard(directory_ / "made/here", small_history());
  const auto file = directory_ / "made/here/events.out.tfevents.1700000000.hedgerow";
  const std::vector<std::string> payloads = records(read_text(file));
  ASSERT_EQ(payloads.size(), 5U) << "the version and four rows in which something was measured";
  EXPECT_EQ(payloads[0].front(), '\x09') << "wall_time, a double";
  EXPECT_EQ(number_at<double>(payloads[0], 1), 1700000000.25);
  EXPECT_EQ(payloads[0].substr(9), std::string("\x10\x00\x1A\x0D", 4) + "brain.Event:2");
}

TEST_F(TensorBoard, ARowIsOneEventWithTheValuesThatWereMeasured) {
  write_tensorboard(directory_.path(), small_history());
  const std::vector<std::string> payloads =
      records(read_text(directory_ / "events.out.tfevents.1700000000.hedgerow"));
  ASSERT_EQ(payloads.size(), 5U);
  // finetune's two rows come first, then those of the layer: step 0 and step 300 = 0xAC 0x02.
  const auto value = [](const std::string& tag, float number) {
    std::string text = std::string("\x0A") + static_cast<char>(tag.size()) + tag + "\x15";
    text.append(reinterpret_cast<const char*>(&number), sizeof number);
    return std::string("\x0A") + static_cast<char>(text.size()) + text;
  };
  const auto event = [](const std::string& step, const std::string& summary) {
    return "\x10" + step + "\x2A" + static_cast<char>(summary.size()) + summary;
  };
  EXPECT_EQ(payloads[1].substr(9), event("\x01", value("finetune/loss", 2.5F)));
  EXPECT_EQ(payloads[2].substr(9), event("\x03", value("finetune/loss", 1.5F)));
  EXPECT_EQ(payloads[3].substr(9), event(std::string(1, '\0'), value("layer/12/mse", 4.0F)));
  EXPECT_EQ(
      payloads[4].substr(9),
      event("\xAC\x02", value("layer/12/mse", 0.25F) + value("layer/12/window_share", 0.75F)));
  EXPECT_EQ(number_at<double>(payloads[4], 1), 1700000002.5);
}

TEST_F(TensorBoard, AnEqualHistoryReplacesItsFileWithEqualBytes) {
  const auto file = directory_ / "events.out.tfevents.1700000000.hedgerow";
  write_tensorboard(directory_.path(), small_history());
  const std::string bytes = read_text(file);
  write_tensorboard(directory_.path(), small_history());
  EXPECT_EQ(read_text(file), bytes);
  const auto num_files = std::distance(std::filesystem::directory_iterator(directory_.path()), {});
  EXPECT_EQ(num_files, 1) << "and nothing temporary stays";
}

TEST_F(TensorBoard, AHistoryWithoutRowsIsTheVersionAlone) {
  write_tensorboard(directory_.path(), {});
  EXPECT_EQ(records(read_text(directory_ / "events.out.tfevents.0.hedgerow")).size(), 1U);
}

// tensorboard_test.py tells it by the variable, and reads the file.
TEST_F(TensorBoard, WritesItsFileWhereItIsTold) {
  const char* told = std::getenv("HEDGEROW_TEST_TENSORBOARD");
  const std::filesystem::path directory = told == nullptr ? directory_.path() : told;
  write_tensorboard(directory, small_history());
  EXPECT_TRUE(std::filesystem::exists(directory / "events.out.tfevents.1700000000.hedgerow"));
}

}  // namespace
}  // namespace hedgerow::storage
