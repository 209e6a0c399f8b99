// Where a process is, kept in a file that outlives it, so that a test which kills processes at
// random moments knows what each was about when it died, and can ask for a kill in a stretch of
// work that is over in microseconds. Made when the environment names a directory:
//
//   HEDGEROW_STORM=/dir        this process keeps /dir/<pid>.beacon, one page, mapped
//
// The process writes place, visits and step; the test writes the wishes, then `armed` = 1. At a
// visit of a wished place (after `skip` others of it) the process asks the kernel for a SIGKILL
// `delay_us` later, and `armed` becomes 2. Read by tests/faults/storm.py; in no production path.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace hedgerow::storage {

constexpr std::size_t kPlaceBytes = 48;  // its end filled with zeros
constexpr std::size_t kMaxWishes = 16;

struct FaultWish {
  std::array<char, kPlaceBytes> place{};
  std::uint32_t skip = 0, delay_us = 0;
};

struct FaultBeacon {
  std::array<char, 8> magic{'H', 'G', 'B', 'E', 'A', 'C', 'N', '1'};
  std::uint32_t pid = 0;
  std::atomic<std::uint32_t> changes{0};  // odd: the process died while it wrote
  std::uint64_t visits = 0;
  std::int64_t step = -1;  // whole training steps in its task; -1: none
  std::array<char, kPlaceBytes> place{};
  std::atomic<std::uint32_t> armed{0};
  std::uint32_t num_wishes = 0;
  std::array<FaultWish, kMaxWishes> wishes{};
};
static_assert(sizeof(FaultBeacon) == 88 + kMaxWishes * 56, "storm.py reads these offsets");

// Null without HEDGEROW_STORM. Throws what system_error() (error.hpp) makes of a file that cannot
// be made: kNotFound if the directory is not there.
[[nodiscard]] FaultBeacon* open_beacon();

// Any thread. Writes the place, and dies of it if that is wished.
void show_place(FaultBeacon& beacon, std::string_view place);
// The same without a visit: a stretch of work has ended inside another.
void show_return(FaultBeacon& beacon, std::string_view place);
void show_step(FaultBeacon& beacon, std::int64_t step);

}  // namespace hedgerow::storage
