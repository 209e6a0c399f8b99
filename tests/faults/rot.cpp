#include "tests/faults/rot.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include "storage/base/error.hpp"
#include "tests/support/shard_fixture.hpp"

namespace hedgerow::tests {

using nlohmann::json;
using storage::ErrorKind;

void RotTally::count(const std::string& damage, const std::string& outcome) {
  ++counts_[damage][outcome];
  ++totals_[outcome];
  ++tried_;
}

std::uint64_t RotTally::total(const std::string& outcome) const {
  const auto found = totals_.find(outcome);
  return found == totals_.end() ? 0 : found->second;
}

Rot::Rot(std::string kind, std::filesystem::path path, RotReader reader)
    : kind_(std::move(kind)),
      path_(std::move(path)),
      reader_(std::move(reader)),
      sound_(bytes_of(path_)),
      expected_(reader_()),
      random_(kRotSeed) {
  EXPECT_FALSE(expected_.complained) << kind_ << " must be sound to begin with";
}

Rot::~Rot() {
  write_bytes(path_, sound_);
  try {
    const Seen again = reader_();
    EXPECT_TRUE(again.data == expected_.data && !again.complained) << kind_ << " must be sound";
  } catch (const storage::Error& error) {
    ADD_FAILURE() << kind_ << " must be sound: " << error.what();
  }
  std::cout << json{{"test", "damage"},
                    {"file", kind_},
                    {"bytes", sound_.size()},
                    {"seed", kRotSeed},
                    {"damaged", tally_.tried()},
                    {"detected", tally_.total("detected")},
                    {"harmless", tally_.total("harmless")},
                    {"silent", tally_.total("silent")},
                    {"crashed", 0},  // else this line is not reached
                    {"of", tally_.by_damage()}}
                   .dump()
            << std::endl;
}

void Rot::flips(int count, std::size_t begin, std::size_t end) {
  if (end == 0) end = sound_.size();
  for (int i = 0; i < count; ++i) {
    const std::size_t bit = begin * 8 + random_() % ((end - begin) * 8);
    flip_bit(path_, bit);
    judge("flip", "bit " + std::to_string(bit));
    flip_bit(path_, bit);
  }
}

void Rot::cuts(int count, const std::function<bool(std::size_t)>& is_earlier) {
  std::vector<std::size_t> lengths;
  for (std::size_t page = 0; page < sound_.size(); page += kRotPage)
    lengths.insert(lengths.end(), {page, page + 1, page + kRotPage - 1});
  for (int i = 0; i < count; ++i) lengths.push_back(random_() % sound_.size());
  for (const std::size_t length : lengths) {
    if (length >= sound_.size() || (is_earlier && is_earlier(length))) continue;
    write_bytes(path_, sound_.substr(0, length));
    judge("cut", std::to_string(length) + " bytes of " + std::to_string(sound_.size()));
  }
  write_bytes(path_, sound_);
}

void Rot::pages() {
  for (const bool zero : {true, false}) {
    for (std::size_t page = 0; page < sound_.size(); page += kRotPage) {
      std::string damaged = sound_;
      for (std::size_t at = page; at < std::min(page + kRotPage, damaged.size()); ++at)
        damaged[at] = zero ? '\0' : static_cast<char>(random_());
      write(zero ? "zeroed page" : "random page", damaged, "page at " + std::to_string(page));
    }
  }
}

void Rot::swaps(std::size_t bytes, std::size_t begin, std::size_t end, int count) {
  const std::size_t num = (end - begin) / bytes;
  ASSERT_GE(num, 2U) << kind_;
  for (int i = 0; i < count; ++i) {
    const std::size_t a = random_() % (num - 1), b = a + 1 + random_() % (num - 1 - a);
    std::string damaged = sound_;
    const auto at = [&](std::size_t run) {
      return damaged.begin() + static_cast<std::ptrdiff_t>(begin + run * bytes);
    };
    std::swap_ranges(at(a), at(a) + static_cast<std::ptrdiff_t>(bytes), at(b));
    write("swapped chunks", damaged, std::to_string(a) + " and " + std::to_string(b));
  }
}

void Rot::swap_pages() {
  if (sound_.size() >= 2 * kRotPage) swaps(kRotPage, 0, sound_.size(), 50);
}

void Rot::replaced(const std::filesystem::path& other) {
  write("other file", bytes_of(other), other.string());
}

void Rot::write(const std::string& damage, const std::string& bytes, const std::string& where) {
  if (bytes == sound_) return;
  write_bytes(path_, bytes);
  judge(damage, where);
  write_bytes(path_, sound_);
}

void Rot::judge(const std::string& damage, const std::string& where) {
  Seen seen;
  try {
    seen = reader_();
  } catch (const storage::Error& error) {
    // A kind that says the bytes are bad, not a bug of ours that they set off.
    EXPECT_TRUE(error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUsage)
        << kind_ << ", " << damage << ", " << where << ": " << error.what();
    seen.complained = true;
  }
  const bool same = seen.data == expected_.data;
  tally_.count(damage, seen.complained ? "detected" : same ? "harmless" : "silent");
  EXPECT_TRUE(seen.complained || same)
      << kind_ << ", seed " << kRotSeed << ", " << damage << ", " << where << ": read silently";
}

}  // namespace hedgerow::tests
