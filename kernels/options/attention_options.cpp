#include "kernels/options/attention_options.hpp"

#include <cmath>
#include <type_traits>

namespace hedgerow::kernels {
namespace {

std::string text_of(double value) {
  return value == std::floor(value) ? std::to_string(static_cast<std::int64_t>(value))
                                    : std::to_string(value);
}

// The rules of one option's row that `value` breaks, without its key; empty: none.
std::string why_not_number(double value, const OptionRules& rules, const HybridOptions& options) {
  const bool is_of_window = !rules.without_window.empty() || rules.within_window;
  if (rules.max > rules.min &&
      !(value <= rules.max && (rules.above_min ? value > rules.min : value >= rules.min))) {
    return "expected " +
           (rules.above_min ? "more than " + text_of(rules.min) + ", and at most "
                            : text_of(rules.min) + " to ") +
           text_of(rules.max);
  }
  if (is_of_window && !options.windowed() && value > 0.0) {
    return std::string(rules.without_window) + ", and attention.window is none; use 0";
  }
  if (rules.within_window && options.windowed() &&
      value > static_cast<double>(options.window_size)) {
    return "more than attention.window_size = " + std::to_string(options.window_size) +
           "; use at most that";
  }
  return {};
}

}  // namespace

std::string why_not(const HybridOptions& options) {
  std::string found;
  visit_options(options, [&](std::string_view key, const auto& value, const OptionRules& rules) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
      if (!found.empty() || (key == "window_size" && !options.windowed())) return;
      const std::string why = why_not_number(static_cast<double>(value), rules, options);
      if (!why.empty()) found = std::string(key) + " = " + std::to_string(value) + ": " + why;
    }
  });
  if (found.empty() && options.recall_cache > 0 && !options.row().positive) {
    found = "recall_cache = " + std::to_string(options.recall_cache) + ": features of " +
            std::string(to_string(options.feature_map)) +
            " have signs, so what the state recalls of a key divides by what may be 0; use 0, or "
            "another feature_map";
  }
  return found;
}

}  // namespace hedgerow::kernels
