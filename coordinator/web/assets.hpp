// The page's files, which the build embeds (coordinator/web/page, and Chart.js as the system has
// it).
#pragma once

#include <span>
#include <string_view>

namespace hedgerow::coordinator {

struct Asset {
  std::string_view path;  // "/page.js"
  std::string_view type;  // of its content
  std::string_view body;
};

[[nodiscard]] std::span<const Asset> web_assets();

}  // namespace hedgerow::coordinator
