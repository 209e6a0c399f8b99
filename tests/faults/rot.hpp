// Damages one file in every way that rot has, and has it read after each: the tally says what was
// tried and what came of it. A damage is detected (the reader complained), harmless (it gave
// exactly the same data) or silent, which fails the test. Used by one thread; the file is sound
// again when the object goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace hedgerow::tests {

inline constexpr std::uint32_t kRotSeed = 20261;
inline constexpr std::size_t kRotPage = 4096;

// What a reader made of a file: its data as one digest, and whether it said that something is
// wrong. It may also throw storage::Error of a kind that is about the bytes.
struct Seen {
  std::string data;
  bool complained = false;
};
using RotReader = std::function<Seen()>;

class RotTally {
 public:
  void count(const std::string& damage, const std::string& outcome);
  [[nodiscard]] std::uint64_t total(const std::string& outcome) const;
  [[nodiscard]] std::uint64_t tried() const { return tried_; }
  [[nodiscard]] nlohmann::json by_damage() const { return counts_; }

 private:
  std::map<std::string, std::map<std::string, std::uint64_t>> counts_;
  std::map<std::string, std::uint64_t> totals_;
  std::uint64_t tried_ = 0;
};

class Rot {
 public:
  // `kind` is a name for people; `reader` reads the file at `path` as production does.
  Rot(std::string kind, std::filesystem::path path, RotReader reader);
  // Puts the sound file back and prints the tally, one line of JSON.
  ~Rot();
  Rot(const Rot&) = delete;
  Rot& operator=(const Rot&) = delete;

  // Single bits, in [begin, end) of the file; end 0: all of it.
  void flips(int count, std::size_t begin = 0, std::size_t end = 0);
  // At each page and its edges, and anywhere. `is_earlier`: lengths at which a cut file is a sound
  // one of an earlier moment, which no reader can tell from it.
  void cuts(int count, const std::function<bool(std::size_t)>& is_earlier = {});
  // Each page zeroed, and each filled with noise.
  void pages();
  // `count` pairs of the runs of `bytes` in [begin, end) change places: sound bytes, wrong place.
  void swaps(std::size_t bytes, std::size_t begin, std::size_t end, int count);
  void swap_pages();
  // A sound file of the same kind under this one's name.
  void replaced(const std::filesystem::path& other);

 private:
  void write(const std::string& damage, const std::string& bytes, const std::string& where);
  void judge(const std::string& damage, const std::string& where);

  std::string kind_;
  std::filesystem::path path_;
  RotReader reader_;
  std::string sound_;
  Seen expected_;
  std::mt19937 random_;
  RotTally tally_;
};

}  // namespace hedgerow::tests
