#include "worker/bench/alternate.hpp"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/task/stopwatch.hpp"

namespace hedgerow::worker::bench {
namespace {

constexpr double kLeastMilliseconds = 2;  // of a repeat on the CPU: a thousand times its clock
constexpr int kMostCalls = 1000;
constexpr std::int64_t kLargerThanL2 = std::int64_t{256} << 20;  // bytes; an H100 has 50 MiB

double milliseconds_on_device(const std::function<void()>& call,
                              int calls,
                              const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  const at::Tensor cache = at::empty({kLargerThanL2}, at::TensorOptions(device).dtype(at::kByte));
  std::vector<c10::Event> events;
  for (int i = 0; i < 2 * calls; ++i)
    events.emplace_back(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  for (int i = 0; i < calls; ++i) {
    cache.zero_();
    events[2 * static_cast<std::size_t>(i)].record(stream);
    call();
    events[2 * static_cast<std::size_t>(i) + 1].record(stream);
  }
  events.back().synchronize();
  double total = 0;
  for (std::size_t i = 0; i < events.size(); i += 2) total += events[i].elapsedTime(events[i + 1]);
  return total;
}

int calls_of_a_repeat(double warm_up_ms, const at::Device& device) {
  if (!device.is_cpu()) return 1;
  const double wanted = std::ceil(kLeastMilliseconds / std::max(warm_up_ms, 1e-6));
  return static_cast<int>(std::min<double>(wanted, kMostCalls));
}

}  // namespace

double milliseconds(const std::function<void()>& call, int calls, const at::Device& device) {
  if (!device.is_cpu()) return milliseconds_on_device(call, calls, device);
  const Stopwatch clock;
  for (int i = 0; i < calls; ++i) call();
  return clock.seconds() * 1e3;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> alternate(std::span<const std::function<void()>> contenders,
                              int repeats,
                              const at::Device& device) {
  std::vector<int> calls;
  for (const auto& call : contenders) {
    double warm_up_ms = milliseconds(call, 1, device);
    // The very first call may be a slow one; the number of calls follows one that was not.
    if (warm_up_ms <= 10 * kLeastMilliseconds) warm_up_ms = milliseconds(call, 1, device);
    calls.push_back(calls_of_a_repeat(warm_up_ms, device));
  }
  std::vector<std::vector<double>> times(contenders.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t i = 0; i < contenders.size(); ++i)
      times[i].push_back(milliseconds(contenders[i], calls[i], device) / calls[i]);
  }
  std::vector<double> medians;
  for (std::vector<double>& of_contender : times)
    medians.push_back(median(std::move(of_contender)));
  return medians;
}

}  // namespace hedgerow::worker::bench
