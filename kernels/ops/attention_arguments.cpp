#include "kernels/ops/attention_arguments.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>
#include <string_view>

namespace hedgerow::kernels::ops {
namespace {

constexpr std::size_t kTensors = 5;

template <class Named>
auto value_of(std::string_view argument, const std::string& name, const Named& known) {
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.word == name; });
  if (found == known.end()) {
    std::string names;
    for (const auto& each : known) {
      names += (names.empty() ? "" : ", ") + std::string(each.word);
    }
    TORCH_CHECK(false, "attention: ", argument, " must be one of ", names, ", found '", name, "'");
  }
  return found->value;
}

void read(std::string_view argument, const c10::IValue& from, FeatureMapKind& value) {
  value = value_of(argument, from.toStringRef(), kFeatureMaps);
}
void read(std::string_view argument, const c10::IValue& from, WindowLayout& value) {
  value = value_of(argument, from.toStringRef(), kWindowLayouts);
}
template <typename Value>
void read(std::string_view /*argument*/, const c10::IValue& from, Value& value) {
  value = from.to<Value>();
}

// "int num_sinks=0"
template <typename Value>
std::string argument_of(const char* key, const Value& value) {
  std::ostringstream text;
  if constexpr (std::is_same_v<Value, bool>) {
    text << "bool " << key << (value ? "=True" : "=False");
  } else if constexpr (std::is_enum_v<Value>) {
    text << "str " << key << "=\"" << to_string(value) << '"';
  } else if constexpr (std::is_integral_v<Value>) {
    text << "int " << key << "=" << value;
  } else {
    text << "float " << key << "=" << std::to_string(value);
  }
  return text.str();
}

at::Tensor or_undefined(const std::optional<at::Tensor>& x) { return x.value_or(at::Tensor()); }

// The tail of the schemas. Names of maps and windows are those of an export's config.json.
std::string attention_schema() {
  std::string schema =
      "Tensor? layer_q=None, Tensor? bias_q=None, Tensor? layer_k=None, Tensor? bias_k=None, "
      "Tensor? window_factors=None";
  const HybridOptions defaults;
  visit_options(defaults, [&](const char* key, const auto& value, const OptionRules& /*rules*/) {
    schema += ", " + argument_of(key, value);
  });
  // Exports of earlier builds give it.
  return schema + ", int order=2";
}

}  // namespace

void define(torch::Library& library, const std::string& own, const std::string& results) {
  library.def(torch::schema((own + attention_schema() + ") -> " + results).c_str()),
              {at::Tag::pt2_compliant_tag});
}

std::size_t AttentionArguments::count() {
  std::size_t options = 0;
  const HybridOptions none;
  visit_options(none, [&](const auto&...) { ++options; });
  return kTensors + options + 1;
}

AttentionArguments::AttentionArguments(at::ArrayRef<c10::IValue> values) {
  std::size_t next = 0;
  for (std::optional<at::Tensor>* each : {&layer_q, &bias_q, &layer_k, &bias_k, &window_factors}) {
    *each = values[next++].toOptional<at::Tensor>();
  }
  visit_options(options, [&](const char* key, auto& value, const OptionRules& /*rules*/) {
    read(key, values[next++], value);
  });
  TORCH_CHECK(
      values[next].toInt() == 2, "attention: order must be 2, found ", values[next].toInt());
}

HybridParameters AttentionArguments::parameters() const {
  return {.q = {or_undefined(layer_q), or_undefined(bias_q)},
          .k = {or_undefined(layer_k), or_undefined(bias_k)},
          .window_factors = or_undefined(window_factors)};
}

}  // namespace hedgerow::kernels::ops
