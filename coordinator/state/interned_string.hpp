// A name of which there are few and which many records bear: a worker's, a device's. Each text is
// kept once in the process and never freed: a run of weeks knows thousands of names, and 100,000
// tasks held copies of them. The table is the process's and not a state's, because states are
// copied and compared; nothing but the texts themselves depends on it. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace hedgerow::coordinator {

class InternedString {
 public:
  InternedString() : InternedString(std::string_view()) {}
  explicit InternedString(
      std::string_view text);  // of what a run records, and not of whatever comes in

  [[nodiscard]] const std::string& text() const { return *text_; }
  operator const std::string&() const { return *text_; }
  [[nodiscard]] bool empty() const { return text_->empty(); }
  bool operator==(const InternedString&) const = default;  // one text, one place
  bool operator==(std::string_view text) const { return *text_ == text; }

 private:
  const std::string* text_;
};
[[nodiscard]] inline const std::string& to_string(const InternedString& text) { return text; }
inline void from_word(const std::string& word, InternedString& text) {
  text = InternedString(word);
}

}  // namespace hedgerow::coordinator
